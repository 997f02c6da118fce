"""How many files of the package an option, a text and a checkpoint pass through.

A file counts if one of its functions is on the call stack: for an option, when the objective is made of it and when the loss reads
it; for a text, when its lines are read, tokenised, packed and placed on the devices; for a checkpoint, when it is read and when the
weights are written. Left out of a text's way are `main`, `stages`, `build` and `plan`, which pass on the names of its files, and what
`inference` reads, which are sentences to be scored.
"""

import pathlib
import sys

import pytest
import safetensors.numpy

import jaxdistill
from jaxdistill import export, main
from jaxdistill.core.cluster import mesh
from jaxdistill.data import packing, text, tokens
from jaxdistill.objectives.congen import ConGen
from jaxdistill.training.workdir.checkpoint import ocp

from program import tiny_arguments

PACKAGE = pathlib.Path(jaxdistill.__file__).parent
STARTS = {"main.py", "training/stages.py", "training/build.py", "training/plan.py"}


def watched(patched: pytest.MonkeyPatch, *functions) -> set[str]:
    """Collects the files on the stack whenever one of the functions, (owner, name), is called, its own included."""
    files: set[str] = set()

    def watching(function):
        def call(*arguments, **options):
            frame, paths = sys._getframe(1), [pathlib.Path(getattr(function, "__code__", call.__code__).co_filename)]
            while frame:
                paths.append(pathlib.Path(frame.f_code.co_filename))
                frame = frame.f_back
            names = {path.relative_to(PACKAGE).as_posix() for path in paths if path.is_relative_to(PACKAGE)}
            files.update(names if "models/inference.py" not in names else ())
            return function(*arguments, **options)

        return call

    for owner, name in functions:
        patched.setattr(owner, name, watching(getattr(owner, name)))
    return files


def test_options_texts_and_checkpoints_pass_through_few_files(tmp_path):
    with pytest.MonkeyPatch.context() as patched:
        option = watched(patched, (ConGen, "__init__"), (ConGen, "__call__"))
        steps = (text.Table, "blocks"), (tokens, "tokenised_words"), (packing, "filled"), (mesh, "place_batch")
        line = watched(patched, *steps)
        options = {"objective.alpha": 1, "run.steps": 1, "evals.best": "last"}
        main.main([*tiny_arguments(tmp_path, **options), f"--workdir={tmp_path / 'w'}"])
    assert 4 <= len(option) <= 6, sorted(option)
    assert 6 <= len(line - STARTS) <= 9, ", ".join(sorted(line))
    with pytest.MonkeyPatch.context() as patched:
        weights = watched(patched, (ocp.CheckpointManager, "restore"), (safetensors.numpy, "save_file"))
        export.main([f"--workdir={tmp_path / 'w'}", "--step=1", f"--out={tmp_path / 'out'}"])
    assert len(weights) <= 5, sorted(weights)
