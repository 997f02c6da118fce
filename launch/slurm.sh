#!/usr/bin/env bash
# Trains on a SLURM cluster; JAX finds the tasks. The clone, its Python and --workdir lie on a file system that all nodes see.
#
#   launch/slurm.sh --nodes=2 --gpus=8 --cpus-per-task=32 --time=04:00:00 \
#     -- --config=configs/congen.py:minilm-l3 --config.data.text='texts/*.txt.gz' --workdir=runs/l3
#
#   --nodes=N     default 1
#   --gpus=N      of each node; default 0: CPUs
#   --per=node    one task on each node, which uses all of its GPUs (default); --per=gpu: one task for each GPU
#   --restarts=N  times the job may start again, lost nodes included; default 100
#   --dry_run     check the training, print the sbatch command and stop
#   PYTHON        in the environment: the Python to use, default python3
#
# Other options go to sbatch as they are, such as --partition=NAME, and --cpus-per-task=N, without which a task may get one CPU. The
# options of the training, its text and its teacher are checked before the job is submitted. SLURM sends SIGTERM two minutes before the time is over;
# the training saves and ends with status 75, and the job goes back into the queue, where it continues. It does so too after another process
# was lost (134, with which JAX ends the others), and after a SIGTERM that came before or after the training's loop (143), --restarts
# times in all.
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

# The job itself, which SLURM runs as a copy of this file. The sbatch command below marks it, because SLURM_JOB_ID is set inside salloc too;
# an argument, because --export=NONE keeps variables from the job.
if [[ ${1:-} == --job_with_restarts=* ]]; then
  restarts=${1#*=} status=0
  shift
  # JAX gives a task the device of its number on the node; one that is alone there takes all of them.
  if [ "${SLURM_NTASKS_PER_NODE:-}" = 1 ] && [ -n "${SLURM_GPUS_ON_NODE:-}" ]; then
    JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1)))
    export JAX_LOCAL_DEVICE_IDS
  fi
  # SLURM 22.05 and later: srun does not take the CPUs of a task from sbatch.
  srun ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} "${PYTHON:-python3}" -m jaxdistill.main "$@" || status=$?
  case $status in 75 | 134 | 143) ;; *) exit "$status" ;; esac
  # None of them proves progress: a bucket that cannot be reached gives 75 at each start.
  [ "${SLURM_RESTART_COUNT:-0}" -ge "$restarts" ] || exec scontrol requeue "$SLURM_JOB_ID"
  echo "error: the training ended with status $status, and --restarts=$restarts allows no further start of the job;" \
    "see the cause above, and give the same command again, which continues the training." >&2
  exit "$status"
fi

# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
cd "$(dirname "$SCRIPT")/.."
nodes=1 gpus=0 per=node restarts=100 options=()
while [ $# -gt 0 ]; do
  case $1 in
    --nodes=*) nodes=${1#*=} ;;
    --gpus=*) gpus=${1#*=} ;;
    --per=*) per=${1#*=} ;;
    --restarts=*) restarts=${1#*=} ;;
    --dry_run) DRY_RUN=1 ;;
    --help) usage && exit 0 ;;
    --) shift && break ;;
    -*) options+=("$1") ;;
    *) fail "$1 is not an option; write --OPTION=VALUE, and the options of the training after --." ;;
  esac
  shift
done
[ $# -gt 0 ] || fail "the training has no arguments; give them after --; see --help."
[[ $nodes =~ ^[1-9][0-9]*$ ]] || fail "--nodes=$nodes must be a number of at least 1."
tpu=$(sky_tpu "$gpus")
[ -z "$tpu" ] || fail "--gpus=$gpus is a TPU slice, and SLURM has GPUs; use launch/sky.sh --gpus=$tpu."
[[ $gpus =~ ^[0-9]+$ ]] || fail "--gpus=$gpus must be a number."
[[ $restarts =~ ^[0-9]+$ ]] || fail "--restarts=$restarts must be a number; 0: never."
case $per in
  node) tasks=1 ;;
  gpu) tasks=$gpus ;;
  *) fail "--per=$per is unknown; allowed: node, gpu." ;;
esac
[ "$tasks" -gt 0 ] || fail "--per=gpu needs --gpus=N of at least 1."
[ "$gpus" = 0 ] || options+=(--gpus-per-node="$gpus") # not --gpus-per-task: JAX takes each task's GPU from all of the node's
checked here "$@"
needs sbatch "start this on a login node of the cluster."
run sbatch --nodes="$nodes" --ntasks-per-node="$tasks" ${options[@]+"${options[@]}"} launch/slurm.sh --job_with_restarts="$restarts" "$@"
