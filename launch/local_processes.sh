#!/usr/bin/env bash
# Starts N processes of one run on this machine, to try what several hosts do. They end together; the exit status is the highest, without 134,
# with which JAX ends processes after another one has ended.
#
#   launch/local_processes.sh [--gpus] [--port=PORT] [--dry_run] N COMMAND...
#   launch/local_processes.sh 2 python -m jaxdistill.main --config=configs/congen.py:tiny --workdir=runs/two
#
#   --gpus       each process uses the GPU of its number
#   --port=PORT  of process 0; default: a free one
#   --dry_run    print the commands and stop
#
# Ctrl-C, SIGTERM and SIGHUP go to all of them, once each: they save and end.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
gpus="" port=""
while [ $# -gt 0 ]; do
  case $1 in
    --gpus) gpus=1 ;;
    --port=*) port=${1#*=} ;;
    --dry_run) DRY_RUN=1 ;;
    --help) usage && exit 0 ;;
    --*) fail "unknown option $1; --help lists the options." ;;
    *) break ;;
  esac
  shift
done
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || fail "the number of processes is missing: launch/local_processes.sh N COMMAND..."
count=$1
shift
[ $# -gt 0 ] || fail "the command is missing: launch/local_processes.sh $count COMMAND..."
[ -n "$port" ] || port=$(python3 -c 'import socket; free = socket.create_server(("127.0.0.1", 0)); print(free.getsockname()[1])')

pids=() signalled=""
# shellcheck disable=SC2329 # the traps call it
pass_on() {
  signalled=1
  for pid in ${pids[@]+"${pids[@]}"}; do kill -s "$1" "$pid" 2>/dev/null || true; done
}
trap 'pass_on INT' INT
trap 'pass_on TERM' TERM
trap 'pass_on HUP' HUP
set -m # each process in a group of its own: the terminal's Ctrl-C reaches this script alone, which passes it on
for ((index = 0; index < count; index++)); do
  joined=(JAX_COORDINATOR_ADDRESS="127.0.0.1:$port" JAX_NUM_PROCESSES="$count" JAX_PROCESS_ID="$index")
  [ -z "$gpus" ] || joined+=(CUDA_VISIBLE_DEVICES="$index")
  if [ -n "$DRY_RUN" ]; then
    quoted env "${joined[@]}" "$@"
  else
    env "${joined[@]}" "$@" </dev/null &
    pids+=($!)
  fi
done

worst=0
for pid in ${pids[@]+"${pids[@]}"}; do
  signalled=1
  while [ -n "$signalled" ]; do # a signal ends `wait` too
    signalled="" status=0
    wait "$pid" || status=$?
  done
  if [ "$status" = 134 ]; then lost=134; else [ "$status" -le "$worst" ] || worst=$status; fi
done
[ "$worst" -gt 0 ] || worst=${lost:-0}
exit "$worst"
