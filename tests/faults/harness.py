"""Runs one fault: prepares a folder, starts the program, and reports how it ended and what it left on the disk.

To add a case, write a function that prepares `room.folder` and returns what a program ended with, and list it in the
`CASES` of a file of this folder:

    def _text_is_a_folder(room):
        return room.train(data__text=room.folder)

    CASES = [Case("a folder as the text", _text_is_a_folder, says="is a folder")]
"""

import contextlib
import dataclasses
import fnmatch
import hashlib
import importlib
import io
import os
import pathlib
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxdistill import cli

import program

TIMEOUT_S = 300
"""A program that runs longer hangs."""
NOISE = ("tokenising", " steps [", "WARNING: All log messages before absl")
"""Lines of stderr that are no message: progress bars, and what libraries print before their logs are set up."""


class Ended(NamedTuple):
    """How a program ended."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What it printed as messages: lines of stderr, or of stdout where it succeeded."""
        text = self.out if self.status == 0 else self.err
        return [line for line in re.split(r"[\r\n]+", text) if line.strip() and not any(word in line for word in NOISE)]


@dataclasses.dataclass(frozen=True)
class Case:
    """One fault, and what must come of it."""

    given: str
    """The input, for the table."""
    do: "Callable[[Room], Ended | Sequence[Ended]]"
    """Prepares `room.folder`, runs the program, and returns how it ended: once for each process."""
    says: str = ""
    """Regular expression that the last line must contain."""
    status: int = cli.BAD_INPUT
    left: tuple[str, ...] = ()
    """Patterns of all paths in `room.folder` that the program may make or change, each of which it must; `-PATH`: removes."""
    quick: bool = False
    """Whether the tests run it, in their own process: for refusals that need neither a training nor a process."""


def ended(process: subprocess.Popen[str]) -> Ended:
    """Waits for a program; one that hangs is killed."""
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"\nhangs: killed after {TIMEOUT_S} s"
    return Ended(process.returncode, out, err)


class Row(NamedTuple):
    """Result of a case."""

    given: str
    said: str
    status: str
    left: str
    wrong: list[str]
    """In which ways it is not what the case expects; empty if it is."""


class Room:
    """A new folder for one case, beside the tiny model and text that all cases share."""

    def __init__(self, folder: pathlib.Path, shared: pathlib.Path, *, in_process: bool):
        self.folder, self.shared, self._in_process = folder, shared, in_process
        self.before: dict[str, str] | None = None
        """Content of the folder when the program was started first."""

    def arguments(self, **overrides: object) -> list[str]:
        """Of `main`: a run of a few seconds in `room.folder / "run"`; `overrides` such as `run__steps=20`."""
        return [*program.tiny_arguments(self.shared, **overrides), f"--workdir={self.folder / 'run'}"]

    def train(self, **overrides: object) -> Ended:
        """Trains with these options."""
        return self.run("main", *self.arguments(**overrides))

    def export(self) -> pathlib.Path:
        """The folder of a model in the room, to be damaged."""
        return self._copy("model")

    def text(self) -> pathlib.Path:
        """A text file in the room, to be damaged."""
        return self._copy("text.txt")

    def run(self, module: str, *arguments: object, variables: Mapping[str, str] | None = None) -> Ended:
        """`python -m jaxdistill.MODULE ARGUMENTS`; `variables` of the environment mean a process of its own."""
        if self._in_process and not variables:
            return self._called(module, [str(argument) for argument in arguments])
        return ended(self.start(module, *arguments, variables=variables))

    def again(self, module: str, *arguments: object) -> Ended:
        """As `run`, after a run that belongs to the preparation: changes count from here."""
        self.before = None
        return self.run(module, *arguments)

    def start(
        self, module: str, *arguments: object, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """The same in the background."""
        self.look()
        return program.start(module, [str(argument) for argument in arguments], variables=variables)

    def changes(self) -> list[str]:
        """Paths that were made or changed since the program was started, and `-PATH` for those that are gone."""
        before, after = self.before or {}, _contents(self.folder)
        changed = [path for path, content in after.items() if before.get(path) != content]
        return [*changed, *(f"-{path}" for path in before if path not in after)]

    def _called(self, module: str, arguments: Sequence[str]) -> Ended:
        self.look()
        main = importlib.import_module(f"jaxdistill.{module}").main
        out, err, status = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.run(main, arguments)
            except SystemExit as stopped:
                status = int(stopped.code or 0)
        return Ended(status, out.getvalue(), err.getvalue())

    def look(self) -> None:
        if self.before is None:
            self.before = _contents(self.folder)

    def _copy(self, name: str) -> pathlib.Path:
        program.tiny_arguments(self.shared)  # makes model and text
        subprocess.run(["cp", "-r", str(self.shared / name), str(self.folder / name)], check=True)
        return self.folder / name


def while_running(
    room: Room, module: str, arguments: list[str], begun: Callable[[], object], do: Callable[[subprocess.Popen], object]
) -> Ended:
    """Starts a program and does something once it has begun."""
    process = room.start(module, *arguments)
    while process.poll() is None and not begun():
        time.sleep(0.005)
    do(process)
    return ended(process)


def observe(case: Case, folder: pathlib.Path, shared: pathlib.Path, *, in_process: bool = False) -> Row:
    """Runs a case in a new `folder` and compares what comes of it with what the case expects."""
    folder.mkdir(parents=True)
    room = Room(folder, shared, in_process=in_process)
    found = case.do(room)
    found = [found] if isinstance(found, Ended) else list(found)
    changes = room.changes()
    wrong = [fault for each in found for fault in _wrong(case, each)] + _wrong_left(case, changes)
    said = dict.fromkeys(each.lines[-1] if each.lines else "" for each in found)
    return Row(
        given=case.given,
        said=" / ".join(_shortened(line, room) for line in said),
        status=" / ".join(dict.fromkeys(str(_of_shell(each.status)) for each in found)),
        left=_summary(changes),
        wrong=wrong,
    )


def _of_shell(status: int) -> int:
    """The status with which a shell reports the end by a signal, which Python reports as its negative number."""
    return status if status >= 0 else 128 - status


def _wrong(case: Case, ended: Ended) -> list[str]:
    wrong = []
    if ended.status != case.status:
        wrong.append(f"status {ended.status}, not {case.status}: {(ended.err or ended.out)[-500:]}")
    if "Traceback" in ended.out + ended.err:
        wrong.append(f"a traceback: {(ended.err or ended.out)[-500:]}")
    last = ended.lines[-1] if ended.lines else ""
    if case.says and not re.search(case.says, last):
        wrong.append(f"says {last!r}, not {case.says!r}")
    if case.status == cli.BAD_INPUT and not (len(ended.lines) == 1 and last.startswith("error: ")):
        wrong.append(f"not one line: {ended.lines}")
    return wrong


def _wrong_left(case: Case, changes: Sequence[str]) -> list[str]:
    unexpected = [path for path in changes if not any(fnmatch.fnmatch(path, pattern) for pattern in case.left)]
    missing = [pattern for pattern in case.left if not fnmatch.filter(changes, pattern)]
    return [f"left {', '.join(unexpected)}"] * bool(unexpected) + [f"not left: {', '.join(missing)}"] * bool(missing)


def _contents(folder: pathlib.Path) -> dict[str, str]:
    """Path to digest of every file, and to where every link leads; folders only where they are empty."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in [*files, *(name for name in folders if (pathlib.Path(root) / name).is_symlink())]:
            path = pathlib.Path(root) / name
            found[str(path.relative_to(folder))] = _content(path)
        if not files and not folders and root != str(folder):
            found[str(pathlib.Path(root).relative_to(folder)) + "/"] = ""
    return found


def _content(path: pathlib.Path) -> str:
    if path.is_symlink():
        return os.readlink(path)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "special"


def _summary(changes: Sequence[str]) -> str:
    """At most a few names: the top folders with what lies directly in them."""
    shown = dict.fromkeys("/".join(path.split("/")[:2]) + "/" * (path.count("/") > 1) for path in sorted(changes))
    shown = dict.fromkeys(re.sub(r"[^.]{8}(?=\.jaxdistill-working)", "*", name) for name in shown)
    return ", ".join(f"`{name}`" for name in shown) or "nothing"


def _shortened(line: str, room: Room) -> str:
    """A line without the names of this machine."""
    for folder, name in ((room.folder, "DIR"), (room.shared, "SHARED"), (program.ROOT, "REPOSITORY")):
        line = line.replace(str(folder), name)
    return re.sub(r"pid \d+ on \S+?(?=[,)])", "pid N on HOST", line).strip()
