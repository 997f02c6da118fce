#!/usr/bin/env bash
# Trains on a SLURM cluster; JAX finds the tasks. The clone, its Python and --workdir lie on a file system that all nodes see.
#
#   launch/slurm.sh --nodes=2 --gpus=8 [--per=node|gpu] [SBATCH OPTIONS] -- --config=configs/congen.py:minilm-l3 --workdir=runs/l3
#
#   --nodes=N   default 1
#   --gpus=N    of each node; default 0: CPUs
#   --per=node  one task on each node, which uses all of its GPUs (default); --per=gpu: one task for each GPU
#   --dry_run   print the sbatch command and stop
#   PYTHON      in the environment: the Python to use, default python3
#
# Other options go to sbatch as they are, such as --time=04:00:00 --partition=NAME. SLURM sends SIGTERM two minutes before the time is over;
# the training saves and ends with status 75, and the job goes back into the queue, where it continues.
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

# The job itself, which SLURM runs as a copy of this file. 75 comes only after a save, so that each turn gets further.
if [ -n "${SLURM_JOB_ID:-}" ]; then
  status=0
  srun "${PYTHON:-python3}" -m jaxdistill.main "$@" || status=$?
  [ "$status" != 75 ] || exec scontrol requeue "$SLURM_JOB_ID"
  exit "$status"
fi

# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
cd "$(dirname "$SCRIPT")/.."
nodes=1 gpus=0 per=node options=()
while [ $# -gt 0 ]; do
  case $1 in
    --nodes=*) nodes=${1#*=} ;;
    --gpus=*) gpus=${1#*=} ;;
    --per=*) per=${1#*=} ;;
    --dry_run) DRY_RUN=1 ;;
    --help) usage && exit 0 ;;
    --) shift && break ;;
    -*) options+=("$1") ;;
    *) fail "$1 is no option; those of the training come after --." ;;
  esac
  shift
done
[ $# -gt 0 ] || fail "the training has no arguments; give them after --, such as -- --config=configs/congen.py:minilm-l3 --workdir=runs/l3."
[[ $nodes =~ ^[1-9][0-9]*$ ]] || fail "--nodes=$nodes must be a number of at least 1."
[[ $gpus =~ ^[0-9]+$ ]] || fail "--gpus=$gpus must be a number."
case $per in
  node) tasks=1 ;;
  gpu) tasks=$gpus ;;
  *) fail "--per=$per is unknown; allowed: node, gpu." ;;
esac
[ "$tasks" -gt 0 ] || fail "--per=gpu needs --gpus=N of at least 1."
[ "$gpus" = 0 ] || options+=(--gpus-per-node="$gpus") # not --gpus-per-task: JAX takes each task's GPU from all of the node's
needs sbatch "start this on a login node of the cluster."
run sbatch --nodes="$nodes" --ntasks-per-node="$tasks" "${options[@]}" launch/slurm.sh "$@"
