"""Forms of an export for other runtimes."""

import signal

from jaxdistill.checkpoints.folder import save

from faults.harness import Case, Ended, Room, while_running
from tiny_models import tiny_model


def _export(room: Room, *options: str) -> Ended:
    return room.run("export", f"--model={room.export()}", f"--out={room.folder / 'out'}", *options)


def _unknown(room: Room) -> Ended:
    return _export(room, "--to=onxx")


def _pooling(room: Room) -> Ended:
    save(tiny_model(room.folder / "tokenizer", pooling="mean:last2:max"), room.folder / "layers")
    return room.run("export", f"--model={room.folder / 'layers'}", "--to=onnx", f"--out={room.folder / 'out'}")


def _router(room: Room) -> Ended:
    return _export(room, "--to=stablehlo", f"--document_model={room.folder / 'model'}")


def _foreign(room: Room) -> Ended:
    (room.folder / "out" / "stablehlo").mkdir(parents=True)
    (room.folder / "out" / "stablehlo" / "model.bin").write_text("mine")
    return _export(room, "--to=stablehlo")


def _killed(room: Room) -> Ended:
    """An export without forms is there before."""
    assert _export(room).status == 0
    room.before = None
    given = [f"--model={room.folder / 'model'}", f"--out={room.folder / 'out'}", "--to=stablehlo"]
    begun = lambda: any(room.folder.glob(".out.*/*/stablehlo/*"))  # noqa: E731 - said once
    return while_running(room, "export", given, begun, lambda process: process.send_signal(signal.SIGKILL))


def _again(room: Room) -> Ended:
    assert _killed(room).status == -signal.SIGKILL
    given = [f"--model={room.folder / 'model'}", f"--out={room.folder / 'out'}", "--to=stablehlo"]
    return room.again("export", *given)


CASES = [
    Case("`export --to=onxx`", _unknown, says="form 'onxx' is unknown. Did you mean", quick=True),
    Case(
        "`export --to=onnx` of a student with pooling `mean:last2:max`",
        _pooling,
        says="onnx cannot hold this model: .* pooling mean:last2:max",
        quick=True,
    ),
    Case("`export --to=stablehlo` with `--document_model`", _router, says="without --to: a router", quick=True),
    Case(
        "`export --to=stablehlo --out=out` where `out/stablehlo/model.bin` is the user's",
        _foreign,
        says="exists and is not an export of this program",
        quick=True,
    ),
    Case(
        "`export --to=stablehlo`, killed (SIGKILL) while it writes the form, where an export is",
        _killed,
        status=-signal.SIGKILL,
        left=(".out.*",),
    ),
    Case(
        "the same, and then the same command again",
        _again,
        says="reloaded and compared",
        status=0,
        left=("out/*", "-.out.*"),
    ),
]
