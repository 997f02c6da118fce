"""Outputs that must not be lost, and workdirs of something else."""

import pathlib
import signal
from collections.abc import Callable

from jaxdistill import config, main
from jaxdistill.cli import AGAIN, INTERRUPTED
from jaxdistill.workdir.folder import claim_workdir

from faults.harness import TIMEOUT_S, Case, Ended, Room, while_running
from tiny_text import made_up


def _output_is_input(room: Room) -> Ended:
    text = room.text()
    return room.run("encode", f"--model={room.export()}", f"--input={text}", f"--output={text}")


def _foreign_export(room: Room) -> Ended:
    run, arguments = room.folder / "run", room.arguments()
    claim_workdir(run, config.parse_config(main.parse_flags(arguments).config), write=True)
    (run / "export").mkdir()
    (run / "export" / "thesis.txt").write_text("mine")
    return room.run("main", *arguments)


def _export_beside_hidden_folders(room: Room) -> Ended:
    for name in (".out.unfinished", ".out.previous"):
        (room.folder / name).mkdir()
        (room.folder / name / "mine.txt").write_text("mine")
    model = room.export()
    return room.run("export", f"--model={model}", f"--out={room.folder / 'out'}")


def _partial_is_the_users(room: Room) -> Ended:
    (room.folder / ".v.npy.parts").mkdir()
    (room.folder / ".v.npy.parts" / "mine.txt").write_text("mine")
    return room.run("encode", f"--model={room.export()}", f"--input={room.text()}", f"--output={room.folder / 'v.npy'}")


def _workdir_is_a_file(room: Room) -> Ended:
    (room.folder / "run").write_text("mine")
    return room.train()


def _workdir_with_config(content: str):
    def train(room: Room) -> Ended:
        (room.folder / "run").mkdir()
        (room.folder / "run" / "config.json").write_text(content)
        return room.train()

    return train


def _finished_twice(room: Room) -> Ended:
    assert room.run("main", *room.arguments(run__steps=2, evals__every=2)).status == 0
    (room.folder / "run" / "export" / "notes.txt").write_text("mine")
    return room.again("main", *room.arguments(run__steps=2, evals__every=2))


def _metrics_emptied(room: Room) -> Ended:
    assert room.run("main", *room.arguments(run__steps=2, evals__every=2)).status == 0
    (room.folder / "run" / "metrics.jsonl").write_text("")
    return room.again("main", *room.arguments(run__steps=4, evals__every=2))


def _ascii_terminal(room: Room) -> Ended:
    return room.run("main", *room.arguments(run__steps=2, evals__every=2), variables={"PYTHONIOENCODING": "ascii"})


def _c_locale(room: Room) -> Ended:
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    return room.run("main", *room.arguments(run__steps=2, evals__every=2), variables=variables)


def _encoded_text(change: Callable[[pathlib.Path], object]):
    """`encode` of a text that is changed once the first rows are written."""

    def encode(room: Room) -> Ended:
        text, unfinished = room.folder / "long.txt", room.folder / ".v.npy.parts"
        text.write_text("\n".join(made_up(60_000, words=3)) + "\n")
        model, output = room.export(), room.folder / "v.npy"
        arguments = [f"--model={model}", f"--input={text}", f"--output={output}", "--quiet"]
        return while_running(room, "encode", arguments, lambda: any(unfinished.glob("part-*")), lambda _: change(text))

    return encode


def _shrink(text: pathlib.Path) -> None:
    text.write_text("one row\n")


def _grow(text: pathlib.Path) -> None:
    with text.open("a") as file:
        file.write("more\n" * 1000)


def _tokenised_text(room: Room) -> Ended:
    text, cache = room.folder / "long.txt", room.folder / "cache"
    text.write_text("\n".join(made_up(100_000, words=6)) + "\n")
    arguments = room.arguments(data__text=text, data__cache_folder=cache)
    return while_running(room, "main", arguments, lambda: list(cache.glob("tokens/*/part-*")), lambda _: _shrink(text))


def _signalled(number: signal.Signals):
    """A training that gets a signal after its first steps."""

    def train(room: Room) -> Ended:
        metrics = room.folder / "run" / "metrics.jsonl"
        arguments = room.arguments(run__steps=100_000, evals__every=50_000)
        begun = lambda: metrics.exists() and '"step": 3' in metrics.read_text()  # noqa: E731 - said once
        return while_running(room, "main", arguments, begun, lambda process: process.send_signal(number))

    return train


def _closed_pipe(room: Room) -> Ended:
    process = room.start("main", *room.arguments(run__steps=2, evals__every=2))
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    return Ended(process.wait(TIMEOUT_S), "", err)


def _diverges(room: Room) -> Ended:
    return room.train(optimizer__learning_rate=1000)


CASES = [
    Case(
        "`encode` of a text that shrinks meanwhile",
        _encoded_text(_shrink),
        says="changed while it was read",
        left=("long.txt", ".v.npy.parts/*"),
    ),
    Case(
        "`encode` of a text that grows meanwhile",
        _encoded_text(_grow),
        says="changed while it was read",
        left=("long.txt", ".v.npy.parts/*"),
    ),
    Case(
        "a text that changes while it is tokenised",
        _tokenised_text,
        says="changed while it was read",
        left=("long.txt", "cache/*"),
    ),
    Case("a training whose reader closes the pipe (`| head -1`)", _closed_pipe, status=0, left=("run/*",)),
    *(
        Case(
            f"a training that gets {number.name}",
            _signalled(number),
            says="interrupted",
            status=INTERRUPTED if number == signal.SIGINT else AGAIN,
            left=("run/*",),
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ),
    Case(
        "`optimizer.learning_rate=1000`",
        _diverges,
        says="training diverged.*is good.*lower optimizer.learning_rate",
        left=("run/*",),
    ),
    Case("`encode` with its input, a `.txt`, as the output", _output_is_input, says="must end in", quick=True),
    Case(
        "`encode` where the hidden folder for parts is the user's",
        _partial_is_the_users,
        says="holds files that are not parts of this program",
        quick=True,
    ),
    Case(
        "a workdir whose `export/` holds files of the user",
        _foreign_export,
        says="export exists and is not an export of this program",
        quick=True,
    ),
    Case(
        "`export --out=out` beside `.out.unfinished` and `.out.previous` of the user",
        _export_beside_hidden_folders,
        status=0,
        left=("out/*",),
    ),
    Case(
        "a finished training again, with a file of the user in `export/`",
        _finished_twice,
        says="report:",
        status=0,
        left=("run/*",),
    ),
    Case("a workdir that is a file", _workdir_is_a_file, says="is not a directory", quick=True),
    Case("a workdir with `config.json` = `[]`", _workdir_with_config("[]"), says="config.json", quick=True),
    Case(
        "a workdir with a `config.json` that is cut off",
        _workdir_with_config('{"data": {'),
        says="is damaged",
        quick=True,
    ),
    Case(
        "an emptied `metrics.jsonl`, then more steps",
        _metrics_emptied,
        says="report:",
        status=0,
        left=("run/*", "-run/*"),
    ),
    Case("`PYTHONIOENCODING=ascii`", _ascii_terminal, says="report:", status=0, left=("run/*",)),
    Case("the C locale without UTF-8 mode", _c_locale, says="report:", status=0, left=("run/*",)),
]
