"""Outputs that must not be lost, and workdirs of something else."""

from jaxdistill import config, main
from jaxdistill.training.workdir import claim_workdir

from faults.harness import Case, Ended, Room


def _output_is_input(room: Room) -> Ended:
    text = room.text()
    return room.run("encode", f"--model={room.export()}", f"--input={text}", f"--output={text}")


def _foreign_export(room: Room) -> Ended:
    run, arguments = room.folder / "run", room.arguments()
    claim_workdir(run, config.parse(main.parse_flags(arguments)[0]), write=True)
    (run / "export").mkdir()
    (run / "export" / "thesis.txt").write_text("mine")
    return room.run("main", *arguments)


def _export_beside_hidden_folders(room: Room) -> Ended:
    for name in (".out.unfinished", ".out.previous"):
        (room.folder / name).mkdir()
        (room.folder / name / "mine.txt").write_text("mine")
    model = room.export()
    return room.run(
        "quantize", f"--model={model}", f"--out={room.folder / 'out'}", "--text=package:jaxdistill/assets/heldout.txt"
    )


def _partial_is_the_users(room: Room) -> Ended:
    (room.folder / "v.npy.partial").write_text("mine")
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


CASES = [
    Case("`encode` with its input as the output", _output_is_input, says="must end in", quick=True),
    Case(
        "`encode` where `OUTPUT.partial` is a file of the user",
        _partial_is_the_users,
        says="without a sound note",
        quick=True,
    ),
    Case(
        "a workdir whose `export/` holds files of the user",
        _foreign_export,
        says="export exists and is not an export of this program",
        quick=True,
    ),
    Case(
        "`quantize --out=out` beside `.out.unfinished` and `.out.previous` of the user",
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
