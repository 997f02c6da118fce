"""The commands that are killed, and the files that must not differ afterwards."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import program

Command = tuple[str, list[str]]
"""A program and its arguments."""


@dataclasses.dataclass(frozen=True)
class Scene:
    """A command that is killed."""

    name: str
    command: Callable[[pathlib.Path, pathlib.Path], Command]
    """(shared folder, folder of the chain) -> what to run."""
    results: Sequence[str]
    """Patterns of the files, in the folder of the chain, that must not differ."""
    processes: int = 1


def training(shared: pathlib.Path, folder: pathlib.Path, **options: Any) -> Command:
    options = {"student__dropout": 0.1, "evals__every": 4, "run__steps": 16} | options
    arguments = program.tiny_arguments(shared, data__cache_folder=folder / "cache", **options)
    return "main", [*arguments, f"--workdir={folder / 'run'}"]


def _labels(shared: pathlib.Path, folder: pathlib.Path) -> Command:
    model, text = shared / "model", shared / "pairs.tsv"
    options = {
        "data.text": text, "data.cache_folder": folder / "cache", "data.batch_size": 16, "teacher.model": model,
        "student.model": model, "student.layers": "", "evals.pairs": "", "evals.best": "", "evals.every": 4,
        "run.steps": 8, "run.precision": "float32", "run.log_every": 1,
    }  # fmt: skip
    arguments = [f"--config.stage{n}.{name}={value}" for n in (1, 2) for name, value in options.items()]
    return "main", ["--config=configs/trans_encoder.py:tiny", *arguments, f"--workdir={folder / 'run'}"]


def _encode(shared: pathlib.Path, folder: pathlib.Path, *, form: str = "npy") -> Command:
    files = [f"--text={shared / 'long.txt'}", f"--output={folder}/vectors.{form}"]
    return "encode", [f"--model={shared / 'model'}", *files, "--no_show_progress_bar"]


def _sweep(shared: pathlib.Path, folder: pathlib.Path) -> Command:
    arguments = program.tiny_arguments(shared, data__cache_folder=folder / "cache", evals__every=4, run__steps=8)
    return "sweep", [*arguments, "--seeds=1,2", f"--workdir={folder / 'run'}"]


def _evaluate(shared: pathlib.Path, folder: pathlib.Path) -> Command:
    files = [f"--pairs={shared / 'graded.tsv'}", f"--out={folder / 'results.json'}"]
    return "evaluate", [f"--model={shared / 'model'}", "--tasks=pairs", *files]


def _export(shared: pathlib.Path, folder: pathlib.Path) -> Command:
    return "export", [f"--workdir={shared / 'run'}", "--step=16", f"--out={folder / 'out'}"]


_parquet = partial(_encode, form="parquet")
_stored = partial(training, teacher__kind="stored", run__steps=8)
TRAINED = (
    "run/export/model.safetensors",
    "run/metrics.jsonl",
    "run/checkpoints/*",
    "run/checkpoints/*/progress/metadata",
)
STORED = (*TRAINED, "cache/targets/*/*.npy")
LABELLED = ("run/stage*/export/model.safetensors", "run/stage*/metrics.jsonl", "cache/labels/*/*.npy")
SHORT = Scene("encode to `.npy`", _encode, ("vectors.npy",))
"""What the tests kill, once with each signal."""
SCENES = (
    SHORT,
    Scene("encode to `.parquet`", _parquet, ("vectors.parquet",)),
    Scene("encode to `.parquet` in two processes", _parquet, ("vectors.parquet",), processes=2),
    Scene("training", training, TRAINED),
    Scene("training in two processes", training, TRAINED, processes=2),
    Scene("training with stored targets", _stored, STORED),
    Scene("training with stored targets in two processes", _stored, STORED, processes=2),
    Scene("two stages with labels", _labels, LABELLED),
    Scene("sweep of two points", _sweep, ("run/*/export/model.safetensors", "run/*/metrics.jsonl")),
    Scene("evaluation", _evaluate, ("results.json",)),
    Scene("export", _export, ("out/model.safetensors", "out/1_Pooling/config.json")),
)
