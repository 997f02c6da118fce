#!/usr/bin/env bash
# Trains on a slice of Cloud TPU hosts: creates it or uses it as it is, installs this clone (its last commit) on every worker,
# gives all of them the same command, and fetches the results from the first.
#
#   launch/tpu_pod.sh --name=NAME --zone=ZONE --type=v5litepod-64 --before='sudo mkdir -p /data && sudo mount HOST:/share /data' \
#     -- --config=configs/congen.py:minilm-l3 --workdir=/data/runs/l3
#
#   --type=TYPE      slice to create, such as v5litepod-64 or v6e-256
#   --version=IMAGE  runtime image; default: the one of the type
#   --project=NAME   default: gcloud's
#   --spot           create a spot slice
#   --retries=N      further tries after a preemption, a lost connection, or a creation or installation that fails, each a minute later;
#                    default 0
#   --before=COMMAND run on every worker before the training, such as the mount of a file system
#   --out=FOLDER     of the results, default results/NAME
#   --dry_run        print the commands and stop
#
# --workdir lies on a file system that all workers see, or in a bucket (gs://BUCKET/runs/l3, s3://...). The same command continues the
# training. The slice stays until:
# gcloud compute tpus tpu-vm delete NAME --zone=ZONE
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=tpu.sh
. "$(dirname "$0")/tpu.sh"
cd "$(dirname "$SCRIPT")/.."
read_options "$@"
[[ $workdir == /* || $workdir == *://* ]] || fail "--workdir=$workdir is no folder that all workers see; name one, such as /data/runs/l3, or gs://BUCKET/runs/l3."
launch
