#!/usr/bin/env bash
# Trains on a Cloud TPU VM: creates it or uses it as it is, installs this clone (its last commit), trains, fetches the results.
#
#   launch/tpu_vm.sh --name=NAME --zone=ZONE [OPTIONS] -- --config=configs/congen.py:minilm-l3 --workdir=runs/l3
#
#   --type=TYPE      accelerator to create, of one host; default v5litepod-8
#   --version=IMAGE  runtime image; default: the one of the type
#   --project=NAME   default: gcloud's
#   --spot           create a spot VM
#   --retries=N      further tries after a preemption, a lost connection, or a creation or installation that fails, each a minute later;
#                    default 0. --workdir must then outlive the VM, as gs://BUCKET/runs/l3 does
#   --before=COMMAND run on the VM before the training, such as the mount of a file system
#   --out=FOLDER     of the results, default results/NAME
#   --dry_run        print the commands and stop
#
# The same command continues the training. The VM stays until: gcloud compute tpus tpu-vm delete NAME --zone=ZONE
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=tpu.sh
. "$(dirname "$0")/tpu.sh"
cd "$(dirname "$SCRIPT")/.."
type=v5litepod-8
read_options "$@"
launch
