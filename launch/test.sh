#!/usr/bin/env bash
# Fresh machine, Python >= 3.11 and pip: makes .venv if missing, installs the locked versions, runs the tests.
# Chromium, for the report, and WordNet, for synonyms, are installed by apt-get where they are missing.
# Arguments go to pytest: launch/test.sh tests/test_queue.py -k gradient
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null || [ ! -d /usr/share/wordnet ]; then
  sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo -n"
  if ! { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver wordnet-base; } >/dev/null; then
    echo "error: the tests need chromium, chromedriver and wordnet-base, and apt-get could not install them; install them and try again." >&2
    exit 1
  fi
fi
[ -x .venv/bin/python ] || python3 -m venv .venv
pip=".venv/bin/python -m pip install --quiet --disable-pip-version-check"
# The lock has all but torch, the TPU's compiler included; of torch any build of the locked version will do, also the CPU's.
$pip --no-deps --require-hashes -r requirements-test.lock
$pip torch==2.13.0
$pip --no-deps --no-build-isolation --editable .
export JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1
.venv/bin/ruff check --quiet .
.venv/bin/ruff format --quiet --check .
.venv/bin/basedpyright
.venv/bin/shellcheck launch/*.sh .ci/run
.venv/bin/hadolint launch/Dockerfile
# Two processes, a file of tests each: most of the time goes into compiling, which uses one core. In the order of names:
# sorted by number of tests, the long programs would come last, one process alone with them.
exec .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
