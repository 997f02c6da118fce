# shellcheck shell=bash
# Shared by tpu_vm.sh and tpu_pod.sh: creates the TPU or uses it as it is, installs, runs one command on all workers, and fetches results.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

FOLDER=jaxdistill # in the home folder of each worker
INSTALL="mkdir -p $FOLDER && tar xzf $FOLDER.tar.gz -C $FOLDER && cd $FOLDER && python3 -m pip install --quiet --user 'uv<1' && \
python3 -m uv venv --quiet --allow-existing --python=3.12 .venv && python3 -m uv pip install --quiet -e"
# Ends a training that runs on after its connection was lost, which holds the TPU and the workdir; it saves first.
END_LEFTOVER="cd $FOLDER 2>/dev/null && pid=\$(cat training.pid 2>/dev/null) && grep -qs 'jaxdistill[.]main' /proc/\$pid/cmdline || exit 0; \
kill \$pid; for _ in \$(seq 120); do kill -0 \$pid 2>/dev/null || exit 0; sleep 1; done; kill -9 \$pid"
PAUSE_SECONDS=60 # before another try: the state of a TPU that is being preempted stays READY for a while

name="" zone="" project="" type="" version="" spot="" before="" out="" retries=0 workdir=""
arguments=()

read_options() {
  while [ $# -gt 0 ]; do
    case $1 in
      --name=*) name=${1#*=} ;;
      --zone=*) zone=${1#*=} ;;
      --project=*) project=${1#*=} ;;
      --type=*) type=${1#*=} ;;
      --version=*) version=${1#*=} ;;
      --before=*) before=${1#*=} ;;
      --out=*) out=${1#*=} ;;
      --retries=*) retries=${1#*=} ;;
      --spot) spot=--spot ;;
      --dry_run) DRY_RUN=1 ;;
      --help) usage && exit 0 ;;
      --) shift && arguments=("$@") && break ;;
      *) fail "unknown option $1; --help lists the options, and those of the training come after --." ;;
    esac
    shift
  done
  [ -n "$name" ] || fail "--name is missing: name the TPU to create or use."
  [ -n "$zone" ] || fail "--zone is missing, such as --zone=us-west4-a."
  [[ $retries =~ ^[0-9]+$ ]] || fail "--retries=$retries is not a number."
  local previous=""
  for argument in "${arguments[@]}"; do
    case $argument in --workdir=* | -workdir=*) workdir=${argument#*=} ;; esac
    case $previous in --workdir | -workdir) workdir=$argument ;; esac
    previous=$argument
  done
  [ -n "$workdir" ] || fail "the training has no --workdir; give its arguments after --, such as -- --config=configs/congen.py:minilm-l3 --workdir=runs/l3."
  [ -n "$type" ] || fail "--type is missing, such as --type=v5litepod-64."
  [ -n "$version" ] || version=$(runtime_of "$type")
  [ -n "$out" ] || out=results/$name
}

# The runtime image of Google's documentation for a type of accelerator.
runtime_of() {
  case $1 in
    v4-*) echo tpu-ubuntu2204-base ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) fail "--version is missing: the runtime image of --type=$1 is not known here." ;;
  esac
}

# tpu VERB WORDS...: a command of gcloud on this TPU.
tpu() {
  run gcloud compute tpus tpu-vm "$1" "${@:2}" --zone="$zone" ${project:+--project="$project"}
}

# on_workers WHICH COMMAND
on_workers() {
  tpu ssh "$name" --worker="$1" --command="$2"
}

# Empty where there is no such TPU.
state() {
  tpu describe "$name" '--format=value(state)' 2>/dev/null || true
}

create() {
  tpu create "$name" --accelerator-type="$type" --version="$version" ${spot:+"$spot"}
}

# Creates the TPU unless it exists and was not preempted.
provide() {
  if [ -n "$DRY_RUN" ]; then
    state
    create
    return
  fi
  local found
  found=$(state)
  case $found in
    READY) echo "$name exists and is used as it is." >&2 ;;
    "") create ;;
    STOPPED) tpu start "$name" ;;
    PREEMPTED | TERMINATED) tpu delete "$name" --quiet && create ;;
    *)
      echo "$name is $found, neither ready nor stopped; wait, or delete it: gcloud compute tpus tpu-vm delete $name --zone=$zone" >&2
      return 1
      ;;
  esac
}

install() {
  local package=${TMPDIR:-/tmp}/$name/$FOLDER.tar.gz extras=tpu
  case ${arguments[*]} in *gs://* | *s3://*) extras=tpu,storage ;; esac
  run mkdir -p "${package%/*}" &&
    run git archive --format=tar.gz --output="$package" HEAD &&
    tpu scp "$package" "$name:" --worker=all &&
    on_workers all "$INSTALL '.[$extras]'" || return
  [ -z "$before" ] || on_workers all "$before"
}

train() {
  on_workers all "cd $FOLDER && echo \$\$ >training.pid && exec .venv/bin/python -m jaxdistill.main $(quoted "${arguments[@]}")"
}

# Fetches all of the workdir but its checkpoints; one in a bucket stays there.
fetch() {
  if [[ $workdir == *://* ]]; then
    echo "the results are in $workdir" >&2
    return
  fi
  local folder
  folder=$(quoted "$workdir")
  [[ $workdir != "~"* ]] || folder=${folder#\\} # the program expands ~ itself, tar leaves it to the shell
  on_workers 0 "cd $FOLDER && tar czf \$HOME/results.tar.gz --exclude=checkpoints -C $folder ."
  run mkdir -p "$out"
  tpu scp "$name:results.tar.gz" "$out/" --worker=0
  run tar xzf "$out/results.tar.gz" -C "$out"
}

# One try; `step` is where it ends. Steps are joined by &&, because bash turns `set -e` off where the status is looked at.
try() {
  step="the creation" && provide || return
  step="the installation"
  [ -z "$is_again" ] || on_workers all "$END_LEFTOVER" || return
  install || return
  step="the training" && train
}

# may_pass STATUS: pauses, and says whether another try can succeed. A training that fails on a TPU that stays fails again.
may_pass() {
  [ "$step, $1" != "the training, 2" ] || return 1 # bad input
  sleep "$PAUSE_SECONDS"
  [ "$step" = "the training" ] || return 0
  case $1 in
    75 | 143 | 255) ;; # saved after a signal or a loss; ended by SIGTERM before or after its loop; ssh lost the connection
    *) [ "$(state)" != READY ] ;;
  esac
}

# Trains to the end, with --retries further tries.
launch() {
  needs gcloud "see https://cloud.google.com/sdk/docs/install."
  needs git "it packs the clone for the workers."
  local status step is_again=""
  while true; do
    status=0
    try || status=$?
    [ "$status" != 0 ] || break
    if [ "$retries" = 0 ] || ! may_pass "$status"; then
      fail "$step ended with status $status, see above; the same command continues it."
    fi
    echo "$step ended with status $status, see above; further tries: $retries" >&2
    retries=$((retries - 1)) is_again=1
  done
  fetch
}
