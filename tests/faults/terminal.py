"""Terminals, command lines and model cards."""

import pathlib
import signal
import subprocess
import sys
import time

from jaxdistill.cli import INTERRUPTED

import program
from faults.harness import Case, Ended, Room, ended

SHORT = {"run__steps": 2, "evals__every": 2}


def _interrupted_imports(room: Room) -> Ended:
    """Ctrl-C while JAX is being imported."""
    process = room.start("main", *room.arguments(**SHORT))
    maps = pathlib.Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and "jaxlib" not in maps.read_text():
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    return ended(process)


def _interrupted_twice(room: Room) -> Ended:
    """Ctrl-C and at once again, while the first is saving."""
    metrics = room.folder / "run" / "metrics.jsonl"
    process = room.start("main", *room.arguments(run__steps=100_000, evals__every=50_000))
    while process.poll() is None and not (metrics.exists() and '"step": 3' in metrics.read_text()):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    return ended(process)


def _closed_stdout(room: Room) -> Ended:
    room.arguments()  # makes model and text
    room.look()
    command = [sys.executable, "-m", "jaxdistill.main", *room.arguments(**SHORT)]
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command],
        cwd=program.ROOT, env=program.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    return ended(process)


def _two_words(room: Room) -> Ended:
    """`--workdir W` in two words; the end of the output is the command in the model's card."""
    arguments = [word for argument in room.arguments(**SHORT) for word in argument.split("=", 1)]
    return _with_card(room, room.run("main", *arguments))


def _private(room: Room) -> Ended:
    """Every path of the command lies in a private folder."""
    return _with_card(room, room.train(**SHORT, data__text=room.text(), data__cache_folder=room.folder / "cache"))


def _with_card(room: Room, ended: Ended) -> Ended:
    card = (room.folder / "run" / "export" / "README.md").read_text(encoding="utf-8")
    leaks = [str(folder) for folder in (room.folder, room.shared) if str(folder) in card]
    command = next(line for line in card.splitlines() if "python -m jaxdistill.main" in line)
    return ended._replace(out=f"{ended.out}\n{f'leaks {leaks}' if leaks else command}")


def _nul(room: Room) -> Ended:
    return room.train(data__text="a\0b.txt")


def _unset(room: Room) -> Ended:
    """A set of STS whose folder does not exist."""
    return room.run("evaluate", f"--model={room.export()}", "--tasks=sts", f"--data={room.folder / 'none'}")


CASES = [
    Case("Ctrl-C while JAX is imported", _interrupted_imports, says="^interrupted$", status=INTERRUPTED),
    Case("Ctrl-C twice", _interrupted_twice, says="^interrupted$", status=INTERRUPTED, left=("run/*",)),
    Case("a closed stdout (`>&-`)", _closed_stdout, status=0, left=("run/*",)),
    Case("`--workdir W` in two words", _two_words, says="--workdir=DIR", status=0, left=("run/*",)),
    Case("private paths in the options", _private, says=r"--workdir=DIR", status=0, left=("run/*", "cache/*")),
    Case("a NUL in a path", _nul, says="NUL", quick=True),
    Case("sets in a folder that does not exist", _unset, says="none", quick=True),
]
