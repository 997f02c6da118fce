"""The commands that are killed, and the files that must not differ afterwards."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import program

Commands = list[tuple[str, list[str]]]
"""Programs with their arguments, to be run one after the other."""


@dataclasses.dataclass(frozen=True)
class Scene:
    """A command that is killed."""

    name: str
    chains: int
    arguments: Callable[[pathlib.Path, pathlib.Path], Commands]
    """(shared folder, folder of the chain) -> what to run; the last is killed, the others prepare."""
    results: Sequence[str]
    """Patterns of the files, in the folder of the chain, that must not differ."""
    processes: int = 1


def _training(shared: pathlib.Path, folder: pathlib.Path, **options: Any) -> Commands:
    given = program.tiny_arguments(
        shared,
        **{"student__dropout": 0.1, "data__cache_folder": folder / "cache", "evals__every": 4, "run__steps": 16}
        | options,
    )
    return [("main", [*given, f"--workdir={folder / 'run'}"])]


def _stored(shared: pathlib.Path, folder: pathlib.Path) -> Commands:
    return _training(shared, folder, teacher__kind="stored", run__steps=8)


def _labels(shared: pathlib.Path, folder: pathlib.Path) -> Commands:
    model, text = shared / "model", shared / "pairs.tsv"
    options = {
        "data.text": text, "data.cache_folder": folder / "cache", "data.batch_size": 16, "teacher.model": model,
        "student.model": model, "student.layers": "", "evals.pairs": "", "evals.best": "", "evals.every": 4,
        "run.steps": 8, "run.precision": "float32", "run.log_every": 1,
    }  # fmt: skip
    given = [f"--config.stage{n}.{name}={value}" for n in (1, 2) for name, value in options.items()]
    return [("main", ["--config=configs/trans_encoder.py:tiny", *given, f"--workdir={folder / 'run'}"])]


def _encode(shared: pathlib.Path, folder: pathlib.Path, *, name: str) -> Commands:
    output = f"{folder}/{name}"
    return [
        (
            "encode",
            [
                f"--model={shared / 'model'}",
                f"--text={shared / 'long.txt'}",
                f"--output={output}",
                "--no_show_progress_bar",
            ],
        )
    ]


def _sweep(shared: pathlib.Path, folder: pathlib.Path) -> Commands:
    given = program.tiny_arguments(shared, data__cache_folder=folder / "cache", evals__every=4, run__steps=8)
    return [("sweep", [*given, "--seeds=1,2", f"--workdir={folder / 'run'}"])]


def _evaluate(shared: pathlib.Path, folder: pathlib.Path) -> Commands:
    files = [f"--pairs={shared / 'graded.tsv'}", f"--out={folder / 'results.json'}"]
    return [("evaluate", [f"--model={shared / 'model'}", "--tasks=pairs", *files])]


def _export(shared: pathlib.Path, folder: pathlib.Path) -> Commands:
    done = shared / "trained"
    first = [] if done.exists() else [("main", _training(shared, shared)[0][1][:-1] + [f"--workdir={done}"])]
    return [*first, ("export", [f"--workdir={done}", "--step=16", f"--out={folder / 'out'}"])]


TRAINED = (
    "run/export/model.safetensors",
    "run/metrics.jsonl",
    "run/checkpoints/*",
    "run/checkpoints/*/progress/metadata",
)
SCENES = (
    Scene("training", 18, _training, TRAINED),
    Scene("training with stored targets", 10, _stored, (*TRAINED, "cache/targets/*/*.npy")),
    Scene(
        "two stages with labels",
        5,
        _labels,
        ("run/stage*/export/model.safetensors", "run/stage*/metrics.jsonl", "cache/labels/*/*.npy"),
    ),
    Scene("encode to `.npy`", 24, lambda shared, folder: _encode(shared, folder, name="vectors.npy"), ("vectors.npy",)),
    Scene(
        "encode to `.parquet`",
        14,
        lambda shared, folder: _encode(shared, folder, name="vectors.parquet"),
        ("vectors.parquet",),
    ),
    Scene(
        "encode to `.parquet` in two processes",
        6,
        lambda shared, folder: _encode(shared, folder, name="vectors.parquet"),
        ("vectors.parquet",),
        processes=2,
    ),
    Scene("sweep of two points", 4, _sweep, ("run/*/export/model.safetensors", "run/*/metrics.jsonl")),
    Scene("evaluation", 18, _evaluate, ("results.json",)),
    Scene("export", 16, _export, ("out/model.safetensors", "out/1_Pooling/config.json")),
    Scene("training in two processes", 8, _training, TRAINED, processes=2),
    Scene(
        "training with stored targets in two processes",
        8,
        _stored,
        (*TRAINED, "cache/targets/*/*.npy"),
        processes=2,
    ),
)
SHORT = next(scene for scene in SCENES if scene.name == "encode to `.npy`")
"""What the tests kill, once with each signal."""
