# shellcheck shell=bash
# Shared by tpu_vm.sh and tpu_pod.sh: creates the TPU or uses it as it is, installs, runs one command on all workers, and fetches results.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

FOLDER=jaxdistill # in the home folder of each worker
INSTALL="mkdir -p $FOLDER && tar xzf $FOLDER.tar.gz -C $FOLDER && cd $FOLDER && python3 -m pip install --quiet --user 'uv<1' && \
python3 -m uv venv --quiet --allow-existing --python=3.12 .venv && python3 -m uv pip install --quiet -r requirements-tpu.txt"
AGAIN=75 # exit status after which the same command continues

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
  for argument in "${arguments[@]}"; do
    case $argument in --workdir=*) workdir=${argument#*=} ;; esac
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
  case $(state) in
    READY) echo "$name exists and is used as it is." >&2 ;;
    "") create ;;
    STOPPED) tpu start "$name" ;;
    PREEMPTED | TERMINATED) tpu delete "$name" --quiet && create ;;
    *) fail "$name is neither ready nor stopped; wait, or delete it: gcloud compute tpus tpu-vm delete $name --zone=$zone" ;;
  esac
}

install() {
  local package=${TMPDIR:-/tmp}/$name/$FOLDER.tar.gz
  run mkdir -p "${package%/*}"
  run git archive --format=tar.gz --output="$package" HEAD
  tpu scp "$package" "$name:" --worker=all
  on_workers all "$INSTALL"
  case ${arguments[*]} in
    *gs://*) on_workers all "cd $FOLDER && python3 -m uv pip install --quiet gcsfs" ;;
  esac
  [ -z "$before" ] || on_workers all "$before"
}

train() {
  on_workers all "cd $FOLDER && .venv/bin/python -m jaxdistill.main $(quoted "${arguments[@]}")"
}

# Fetches all of the workdir but its checkpoints; one in a bucket stays there.
fetch() {
  if [[ $workdir == *://* ]]; then
    echo "the results are in $workdir" >&2
    return
  fi
  on_workers 0 "cd $FOLDER && tar czf \$HOME/results.tar.gz --exclude=checkpoints -C $(quoted "$workdir") ."
  run mkdir -p "$out"
  tpu scp "$name:results.tar.gz" "$out/" --worker=0
  run tar xzf "$out/results.tar.gz" -C "$out"
}

# Trains to the end. A TPU that is preempted meanwhile is created again, --retries times.
launch() {
  needs gcloud "see https://cloud.google.com/sdk/docs/install."
  needs git "it packs the clone for the workers."
  local status
  while true; do
    provide
    install
    status=0
    train || status=$?
    [ "$status" != 0 ] || break
    if [ "$retries" = 0 ] || { [ "$status" != $AGAIN ] && [ "$(state)" = READY ]; }; then
      fail "the training ended with status $status, see above; the same command continues it."
    fi
    retries=$((retries - 1))
  done
  fetch
}
