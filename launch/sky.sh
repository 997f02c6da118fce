#!/usr/bin/env bash
# Trains on Cloud TPUs, or on GPUs of any cloud, with SkyPilot (pip install 'skypilot[gcp]>=0.11.2'; for AWS skypilot[aws]). Checks the
# training on this machine, then submits launch/sky.yaml as a managed job: it gets machines, installs this clone and trains, and after a
# preemption continues on new machines.
#
#   launch/sky.sh --gpus=tpu-v5litepod-8 \
#     -- --config=configs/congen.py:minilm-l3 --config.data.text='gs://BUCKET/texts/*.txt.gz' --workdir=gs://BUCKET/runs/l3
#
#   --gpus=TYPE[:N]  accelerators of a node: a TPU VM (tpu-v5litepod-8), a slice of several hosts (tpu-v6e-64), or GPUs (A100:8)
#   --dry_run        check the training, print the sky command and stop
#   PYTHON           in the environment: a Python with jaxdistill, default python3
#
# Other options go to `sky jobs launch` as they are, such as --num-nodes=2 for two machines with GPUs, --infra=gcp/us-west4 and
# --no-use-spot. It shows the machines and their price, and asks. Text, models and --workdir are in buckets or on the hub.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
cd "$(dirname "$SCRIPT")/.."
gpus="" nodes=1 options=()
while [ $# -gt 0 ]; do
  case $1 in
    --gpus=*) gpus=${1#*=} ;;
    --num-nodes=*) nodes=${1#*=} && options+=("$1") ;;
    --dry_run) DRY_RUN=1 ;;
    --help) usage && exit 0 ;;
    --) shift && break ;;
    -*) options+=("$1") ;;
    *) fail "$1 is not an option; write --OPTION=VALUE, and the options of the training after --." ;;
  esac
  shift
done
[ -n "$gpus" ] || fail "--gpus is missing, such as --gpus=tpu-v5litepod-8 or --gpus=A100:8."
[ $# -gt 0 ] || fail "the training has no arguments; give them after --; see --help."
extra=cuda tpu=$(sky_tpu "$gpus")
if [ -n "$tpu" ]; then
  extra=tpu
  [ "$gpus" = "$tpu" ] || fail "--gpus=$gpus is a TPU slice, which SkyPilot knows by another name; give --gpus=$tpu."
  [ "$nodes" = 1 ] || fail "--num-nodes=$nodes: a TPU slice is one node; give a larger one, such as --gpus=tpu-v6e-64."
fi
checked elsewhere "$@"
needs sky "run pip install 'skypilot[gcp]>=0.11.2'."
run sky jobs launch launch/sky.yaml --gpus="$gpus" ${options[@]+"${options[@]}"} --env EXTRA="$extra" --env ARGUMENTS="$(quoted "$@")"
