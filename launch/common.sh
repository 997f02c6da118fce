# shellcheck shell=bash
# Shared by the launchers: one-line errors, the check of a training, and commands that a dry run prints instead of running.
DRY_RUN=${DRY_RUN:-}
SCRIPT=$(realpath "$0")

fail() {
  echo "error: $*" >&2
  exit 2
}

# Prints the comment at the top of the script.
usage() {
  sed -n '2,/^[^#]/ s/^# \{0,1\}//p' "$SCRIPT" | grep -v '^SBATCH'
}

# needs COMMAND HOW_TO_GET_IT; a dry run needs nothing.
needs() {
  [ -n "$DRY_RUN" ] || command -v "$1" >/dev/null || fail "$1 is not installed; $2"
}

# sky_tpu NAME: SkyPilot's name of a TPU slice, by any of its names (v5e-16, v5litepod-16, tpu-v5litepod-16); empty for another accelerator.
sky_tpu() {
  local name=${1#tpu-}
  case $name in
    v5e-*) echo "tpu-v5litepod-${name#v5e-}" ;;
    v[2-9]*-*) echo "tpu-$name" ;;
  esac
}

# checked here|elsewhere ARGUMENTS: checks a training with the Python of this machine, before anything is created.
checked() {
  local python=${PYTHON:-python3}
  "$python" -c 'import jaxdistill.main' 2>/dev/null || fail "$python has no jaxdistill; run pip install -e . in the clone, or set PYTHON."
  JAX_PLATFORMS=cpu "$python" -m jaxdistill.main --check="$1" "${@:2}" >&2 || exit
}

# The words as a shell reads them back.
quoted() {
  local line
  line=$(printf '%q ' "$@")
  echo "${line% }"
}

# Runs a command, which is shown on standard error; a dry run prints it alone.
run() {
  if [ -n "$DRY_RUN" ]; then
    quoted "$@"
  else
    echo "+ $(quoted "$@")" >&2
    "$@"
  fi
}
