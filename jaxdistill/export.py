"""Exports a checkpoint of a run, or the mean of several, as a folder that sentence-transformers and transformers load.

  python -m jaxdistill.export --workdir=runs/l3 --step=600 --out=runs/l3-step600
  python -m jaxdistill.export --workdir=runs/l3 --step=500,550,600 --out=runs/l3-mean
  python -m jaxdistill.export --model=runs/l3/export --to=onnx --out=runs/l3-onnx

A run itself exports its best checkpoint, or the mean of the checkpoints that `evals.average` names. It keeps these and the
latest ones (`run.keep`). `--to=onnx` adds files for ONNX Runtime and compares each with the model; the card gives the
differences (docs/deployment.md).
"""

import argparse
import dataclasses
import inspect
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from jaxdistill.calls import in_python_words, make_callable
from jaxdistill.checkpoints import onnx
from jaxdistill.checkpoints.model import SentenceModel, load_model, model_name
from jaxdistill.cli import Parser, any_path, run
from jaxdistill.core import InputError
from jaxdistill.files import is_remote, local
from jaxdistill.files.folders import refuse_foreign
from jaxdistill.inference import Embedder
from jaxdistill.paths import delivered
from jaxdistill.reporting.model_card import Facts, averaged_steps, read_facts
from jaxdistill.training.export import Form, export, weights_bytes
from jaxdistill.training.setup.student import read_student
from jaxdistill.workdir.bucket import Workdir, fetched
from jaxdistill.workdir.checkpoint import Checkpoints, mean_params
from jaxdistill.workdir.folder import EXPORT, STUDENT, read_config


def checkpoint_facts(workdir: str | Path, steps: Sequence[int], name: str) -> Facts:
    """The facts of the run's `card.json` for the checkpoint of a step, or the mean of several; scores and the choosing metric
    are left out if they belong to another step."""
    facts = read_facts(workdir) or Facts(name=name)
    averaged = averaged_steps(steps)
    if (facts.steps, facts.averaged) != (max(steps), averaged):
        facts = dataclasses.replace(facts, steps=max(steps), averaged=averaged, chosen_by="", scores={})
    return dataclasses.replace(facts, name=name)


@in_python_words()
def export_checkpoint(
    workdir: str | Path | None = None,
    *,
    step: int | Sequence[int] | None = None,
    model: str | Path | Embedder | SentenceModel | None = None,
    out: str | Path,
    to: Form = "",
) -> Path:
    """Exports a kept checkpoint, the mean of several, or another model; returns the folder. `jaxdistill.export` is this function.

    Args:
      workdir: folder of the run, or its address in a bucket.
      step: step of a kept checkpoint, or several whose parameters are averaged. The error for any other step lists the kept ones.
      model: instead of both, a folder, `package:NAME/PATH`, a hub name, or a model that `jaxdistill.load` or `distill` gave.
      out: folder to write; an earlier export there is replaced, anything else is refused with `InputError`.
      to: `onnx`: add files for ONNX Runtime, see docs/deployment.md.

    Raises:
      InputError: arguments contradict each other, or a form cannot hold the model or differs from it; nothing is then written.
    """
    if {workdir is None, step is None} != {model is not None}:
        raise InputError("give --workdir and --step of a run, or --model alone.")
    if to not in get_args(Form):
        raise InputError(f"--to={to!r:.40} is unknown; it takes onnx.")
    if to:
        onnx.check()
    out = local(out, "out").resolve()
    refuse_foreign(out)  # checked first: restoring the checkpoint takes longer
    if workdir is None or step is None:
        model = model.model if isinstance(model, Embedder) else model
        return export(model if isinstance(model, SentenceModel) else load_model(model_name(model)), out, to=to)
    place, steps = fetched(workdir), _whole_numbers(step)
    facts = checkpoint_facts(place.folder, steps, out.name)
    return export(restored_student(place, steps), out, facts=facts, to=to)


def restored_student(place: Workdir, steps: Sequence[int]) -> SentenceModel:
    """The student of a run's kept checkpoint, or the mean of several; needs neither teacher nor text. Raises `InputError`, with
    the kept steps, if one is missing."""
    workdir = place.folder
    config = read_config(workdir)
    if config is None:
        raise InputError(f"{workdir} is not the workdir of a training: it has no config.json.")
    if (workdir / EXPORT).is_dir() and not place.checkpoints.is_dir():
        raise InputError(
            f"{workdir} has no checkpoints: a sweep removes them when a point is finished. Its best student is "
            f"{workdir / EXPORT}; to keep all steps, train the point with jaxdistill.main in another --workdir."
        )
    student = read_student(config, workdir)
    if student is None:
        raise InputError(
            f"{workdir / STUDENT} does not exist; train with this version of the program in another --workdir."
        )
    checkpoints = Checkpoints(place, read_only=True)
    params = mean_params(checkpoints.restore_alone(step).params["student"] for step in steps)
    return config.student.exported(config.student.evaluated(student.with_params(params)))


def _whole_numbers(step: int | Sequence[int]) -> list[int]:
    """The distinct steps, ascending; NumPy's integers are allowed."""
    try:
        steps = sorted({operator.index(one) for one in (step if np.iterable(step) else [step])})
    except TypeError:
        steps = []
    if not steps:
        raise InputError(f"step={step!r} must be a whole number or several, such as 500 or [500, 600].")
    return steps


def step_numbers(text: str) -> list[int]:
    """The steps of `--step=500,550,600`."""
    steps = text.split(",")
    if not all(step.strip().isdecimal() for step in steps):
        raise argparse.ArgumentTypeError(f"{text!r} must be one step or several, such as 500 or 500,550,600")
    return [int(step) for step in steps]


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.export`."""
    parser = Parser(prog="python -m jaxdistill.export", description=__doc__)
    add = parser.add_argument
    add("--workdir", type=any_path, help="folder of the run")
    step = "step of a kept checkpoint, or several with commas, whose mean is exported; any other: an error that lists the kept ones"
    add("--step", type=step_numbers, help=step)
    add("--model", help="instead of a run's checkpoint: a folder, package:NAME/PATH or a hub name")
    add("--to", default="", help="onnx: add files for ONNX Runtime")
    add("--out", type=any_path, required=True, help="folder to write; an earlier export there is replaced")
    given = parser.parse_args(arguments)
    with delivered(given.out) as out:
        folder = inspect.unwrap(export_checkpoint)(**{**vars(given), "out": out})
    print(
        f"{given.out if is_remote(given.out) else folder}: {weights_bytes(folder) / 1e6:.1f} MB, reloaded and compared"
    )


make_callable(__name__, export_checkpoint)

if __name__ == "__main__":
    run(main)
