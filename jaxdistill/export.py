"""Exports a checkpoint of a run, or the mean of several, as a folder that sentence-transformers and transformers load.

  python -m jaxdistill.export --workdir=runs/l3 --step=600 --out=runs/l3-step600
  python -m jaxdistill.export --workdir=runs/l3 --step=500,550,600 --out=runs/l3-mean

A run itself exports its best checkpoint, or the mean of those that `evals.average` names. It keeps these checkpoints
and the latest ones (`run.keep`).
"""

import argparse
import dataclasses
import operator
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxdistill.calls import in_python_words, make_callable
from jaxdistill.cli import Parser, any_path, run
from jaxdistill.core import InputError
from jaxdistill.files import is_remote, local
from jaxdistill.files.folders import refuse_foreign
from jaxdistill.paths import delivered
from jaxdistill.reporting.model_card import Facts, averaged_steps, read_facts
from jaxdistill.training.export import export, weights_bytes
from jaxdistill.training.mirror import fetched_copy
from jaxdistill.training.outcome import restored_student


def checkpoint_facts(workdir: str | Path, steps: Sequence[int], name: str) -> Facts:
    """What the run's `card.json` says about the checkpoint of a step, or the mean of several; its scores, and what chose it,
    only if they are of that step."""
    facts = read_facts(workdir) or Facts(name=name)
    averaged = averaged_steps(steps)
    if (facts.steps, facts.averaged) != (max(steps), averaged):
        facts = dataclasses.replace(facts, scores={}, chosen_by="")
    return dataclasses.replace(facts, name=name, steps=max(steps), averaged=averaged)


@in_python_words()
def export_checkpoint(workdir: str | Path, *, step: int | Sequence[int], out: str | Path) -> Path:
    """Exports the student of a kept checkpoint, or the mean of several; returns the folder. `jaxdistill.export` is this
    function.

    Args:
      workdir: folder of the run, or its address in a bucket.
      step: of the checkpoint; several: their parameters are averaged. The error for any other step lists the kept ones.
      out: folder to write; an earlier export there is replaced, anything else refused with `InputError`.
    """
    workdir = fetched_copy(workdir)
    if not workdir.is_dir():
        raise InputError(f"{workdir} does not exist; --workdir is the folder of a run.")
    out = local(out, "out").resolve()
    refuse_foreign(out)  # checked first: restoring the checkpoint takes longer
    steps = _whole_numbers(step)
    model = restored_student(workdir, steps)
    return export(model, out, facts=checkpoint_facts(workdir, steps, out.name))


def _whole_numbers(step: int | Sequence[int]) -> list[int]:
    """The different steps, ascending; NumPy's integers are allowed."""
    try:
        found = sorted({operator.index(one) for one in (step if np.iterable(step) else [step])})
    except TypeError:
        found = []
    if not found:
        raise InputError(f"step={step!r} must be a whole number or several, such as 500 or [500, 600].")
    return found


def step_numbers(text: str) -> list[int]:
    """The steps of `--step=500,550,600`."""
    steps = text.split(",")
    if not all(step.strip().isdecimal() for step in steps):
        raise argparse.ArgumentTypeError(f"{text!r} must be one step or several, such as 500 or 500,550,600")
    return [int(step) for step in steps]


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.export`."""
    parser = Parser(prog="python -m jaxdistill.export", description=__doc__)
    parser.add_argument("--workdir", type=any_path, required=True, help="folder of the run")
    parser.add_argument(
        "--step",
        required=True,
        type=step_numbers,
        help="step of a kept checkpoint, or several separated by commas, whose mean is exported; any other step is an "
        "error that lists the kept ones",
    )
    parser.add_argument(
        "--out", type=any_path, required=True, help="folder to write; an earlier export there is replaced"
    )
    given = parser.parse_args(arguments)
    with delivered(given.out) as out:
        folder = export_checkpoint(given.workdir, step=given.step, out=out)
        size = weights_bytes(folder)
    print(f"{given.out if is_remote(given.out) else folder}: {size / 1e6:.1f} MB, reloaded and compared")


make_callable(__name__, export_checkpoint)

if __name__ == "__main__":
    run(main)
