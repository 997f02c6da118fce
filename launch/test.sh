#!/usr/bin/env bash
# Fresh machine with Python 3.11, 3.12 or 3.13: makes .venv if missing, installs the locked versions, runs the tests.
# .venv gets the newest of these Pythons that is there, also as a version of pyenv. Another one has an environment of its own:
# PYTHON=python3.11 launch/test.sh makes and uses .venv-python3.11.
# Chromium, for the report, is installed by apt-get where it is missing.
# Arguments go to pytest: launch/test.sh tests/test_queue.py -k gradient
# --help prints this text and installs nothing.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
if [ "${1:-}" = --help ]; then
  usage
  exit
fi
cd "$(dirname "$0")/.."
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
  sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo -n"
  if ! { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver; } >/dev/null; then
    echo "error: the tests need chromium and chromedriver, and apt-get could not install them; install them and try again." >&2
    exit 1
  fi
fi

first_found() {  # the first Python of these names that can make an environment
  local name python
  for name in "$@"; do
    for python in "$name" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/"$name"; do
      if "$python" -c "import ensurepip, venv" 2>/dev/null; then
        echo "$python"
        return
      fi
    done
  done
  echo "error: found none of $*, or they have no module venv; install one (PYTHON=NAME launch/test.sh takes another)." >&2
  return 1
}

venv=.venv${PYTHON:+-${PYTHON##*/}}
if [ ! -x "$venv/bin/python" ]; then
  read -ra names <<<"${PYTHON:-python3.13 python3.12 python3.11}"
  python=$(first_found "${names[@]}")
  "$python" -m venv "$venv"
fi
pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check"
# The lock has all but torch, the TPU's compiler included; of torch any build of the locked version will do, also the CPU's.
$pip --no-deps -r launch/requirements-test.txt
$pip torch==2.13.0
$pip --no-deps --no-build-isolation --editable .
# Bytecode is kept even where the environment says not to: each program that the tests start would compile the package again.
export JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=
"$venv/bin/ruff" check --quiet .
"$venv/bin/ruff" format --quiet --check .
"$venv/bin/basedpyright" --pythonpath "$venv/bin/python"
"$venv/bin/shellcheck" launch/*.sh .ci/run
"$venv/bin/hadolint" launch/Dockerfile
# Two processes, a file of tests each: most of the time goes into compiling, which uses one core. In the order of
# tests/conftest.py: sorted by number of tests, the long programs would come last, one process alone with them.
exec "$venv/bin/python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
