"""Processes, signals, locks and file systems."""

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial

from jaxdistill.cli import BAD_INPUT, IN_USE

import program
from faults.harness import TIMEOUT_S, Case, Ended, Room
from program import ABORTED

END_SECONDS = 30
"""After this time, no process of a run may still wait for another one."""


def _no_coordinator(room: Room) -> Ended:
    return room.run("main", *room.arguments(), variables={"JAX_COORDINATOR_ADDRESS": "nonsense"})


def _remote_workdir(room: Room) -> Ended:
    return room.run("main", *room.arguments()[:-1], "--workdir=ftp://host/run")


def _slurm_without_its_nodes(room: Room) -> Ended:
    return room.run("main", *room.arguments(), variables={"SLURM_STEP_NUM_TASKS": "4"})


def _started(room: Room, *arguments: Sequence[str], count: int = 2, variables: Sequence[dict] = ({}, {})) -> list:
    """The processes of a run, each with its own arguments and variables."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    joined = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count)}
    return [
        room.start("main", *given, variables=joined | {"JAX_PROCESS_ID": str(number)} | own)
        for number, (given, own) in enumerate(zip(arguments, variables, strict=False))
    ]


def _ended(processes: Sequence[subprocess.Popen[str]]) -> list[Ended]:
    """How each ended; once one has, the others have `END_SECONDS`."""
    deadline = time.monotonic() + TIMEOUT_S
    while all(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.1)
    found = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += f"\nhangs for {END_SECONDS} s after another process has ended"
        found.append(Ended(process.returncode, out, err))
    return found


def _other_options(room: Room) -> list[Ended]:
    return _ended(_started(room, room.arguments(), room.arguments(optimizer__learning_rate=0.01)))


def _other_text(room: Room) -> list[Ended]:
    """The file is replaced between the starts; simulated by a copy of the same name in another home."""
    homes = [room.folder / name for name in ("home1", "home2")]
    for number, home in enumerate(homes):
        home.mkdir()
        text = (room.text() if not number else homes[0] / "text.txt").read_text()
        (home / "text.txt").write_text(text + "one more line\n" * number)
    (room.folder / "text.txt").unlink()
    arguments = room.arguments(data__text="~/text.txt")
    return _ended(_started(room, arguments, arguments, variables=[{"HOME": str(home)} for home in homes]))


def _no_text(room: Room) -> list[Ended]:
    homes = [room.folder / name for name in ("home1", "home2")]
    for home in homes:
        home.mkdir()
    room.text().rename(homes[0] / "text.txt")
    arguments = room.arguments(data__text="~/text.txt")
    first, second = _ended(_started(room, arguments, arguments, variables=[{"HOME": str(home)} for home in homes]))
    return [second, *([first] if first.status != ABORTED else [])]


def _other_code(room: Room) -> list[Ended]:
    copy = room.folder / "code" / "jaxdistill"
    shutil.copytree(program.ROOT / "jaxdistill", copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(program.ROOT / "configs", copy.parent / "configs", ignore=shutil.ignore_patterns("__pycache__"))
    with open(copy / "core.py", "a", encoding="utf-8") as file:
        file.write("# changed\n")
    other = {"PYTHONPATH": str(copy.parent), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return _ended(_started(room, room.arguments(), room.arguments(), variables=({}, other)))


def _never_comes(room: Room) -> list[Ended]:
    return list(map(_as_jax_says, _ended(_started(room, room.arguments(), room.arguments(), count=3))))


def _as_jax_says(ended: Ended) -> Ended:
    """The sentence that does not depend on how the other one died, without the stack trace."""
    said = re.search(r"Terminating process .*?\.", ended.err)
    return ended._replace(err=said[0] if said else ended.err)


def _dies(room: Room, *, first: bool) -> list[Ended]:
    both = _started(room, room.arguments(), room.arguments())
    for line in both[0].stdout or ():
        if line.startswith("training:"):
            break
    both[0 if first else 1].kill()
    return [_as_jax_says(_ended(both)[1 if first else 0])]


def _in_use(room: Room) -> Ended:
    holds = room.start("main", *room.arguments(run__steps=100_000))
    for line in holds.stdout or ():
        if line.startswith("step 5:"):
            break
    try:
        return room.train(run__steps=100_000)
    finally:
        holds.kill()
        holds.communicate()


def _encode_to(room: Room, output: str) -> Ended:
    return room.run("encode", f"--model={room.export()}", f"--input={room.text()}", f"--output={output}")


RUN = ("run/*",)
PAIRS: list[tuple[str, Callable[[Room], list[Ended]], str]] = [
    (
        "two processes, another `optimizer.learning_rate`",
        _other_options,
        "optimizer.learning_rate is 0.0005 in the first",
    ),
    ("two processes, another text", _other_text, "content of data.text is '.*' in the first, '.*' in the other"),
    ("two processes, one without the text", _no_text, "text.txt does not exist"),
    ("two processes, another version of the code", _other_code, "jaxdistill is '.*' in the first, '.*' in the other"),
    ("three processes, of which one never comes", _never_comes, "JAX distributed service detected fatal errors"),
    ("two processes, the first is killed", partial(_dies, first=True), "JAX distributed service detected fatal errors"),
    (
        "two processes, the second is killed",
        partial(_dies, first=False),
        "JAX distributed service detected fatal errors",
    ),
]
CASES = [
    Case("`JAX_COORDINATOR_ADDRESS=nonsense`", _no_coordinator, says="JAX_COORDINATOR_ADDRESS=FIRST_HOST:PORT"),
    Case("four tasks of SLURM that JAX cannot find", _slurm_without_its_nodes, says="JAX cannot join the processes"),
    Case(
        "a workdir in which another run trains", _in_use, says=r"in use by another run \(pid", status=IN_USE, left=RUN
    ),
    Case("`--workdir=ftp://host/run`", _remote_workdir, says="use s3:// or gs://", quick=True),
    Case("`encode --output=/proc/x.npy`", partial(_encode_to, output="/proc/x.npy"), says="/proc/x.npy", quick=True),
    Case(
        "`encode --output=s3://KEY:SECRET@bucket/x.npy`",
        partial(_encode_to, output="s3://KEY:SECRET@b/x.npy"),
        says="key or a signature",
        quick=True,
    ),
    *(Case(given, do, says=says, status=ABORTED if "JAX" in says else BAD_INPUT) for given, do, says in PAIRS),
]
