"""Exports a checkpoint of a run, or the mean of several, as a folder that sentence-transformers and transformers load.

  python -m jaxdistill.export --workdir=runs/l3 --step=600 --out=runs/l3-step600
  python -m jaxdistill.export --workdir=runs/l3 --step=500,550,600 --out=runs/l3-mean
  python -m jaxdistill.export --model=runs/l3/export --to=onnx --out=runs/l3-onnx

A run itself exports its best checkpoint, or the mean of the checkpoints that `evals.average` names. It keeps these and the
latest ones (`run.keep`). `--to=onnx` adds files for ONNX Runtime and compares each with the model; the card gives the
differences (docs/deployment.md).
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from jaxdistill.core import InputError
from jaxdistill.core.cli import BY_NAME, Listed, listed, make_callable, parse, run
from jaxdistill.core.files import foreign_errors, local, refuse_foreign
from jaxdistill.evals.model_card import Facts, averaged_steps, read_facts
from jaxdistill.models.checkpoints.model import SentenceModel, load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.training.build import read_student
from jaxdistill.training.export import Form, weights_bytes
from jaxdistill.training.export import export as write_export
from jaxdistill.training.workdir.checkpoint import Checkpoints, mean_params
from jaxdistill.training.workdir.folder import CHECKPOINTS, CONFIG, STUDENT, Workdir, fetched, read_config


def export(
    workdir: str | Path | None = None,
    *,
    step: Listed = (),
    model: Annotated[str | Path | Embedder | SentenceModel | None, BY_NAME] = None,
    out: str | Path,
    to: Form = "",
) -> Path:
    """Exports a kept checkpoint of a run, the mean of several, or another model; returns the folder of the export.

    Args:
      workdir: Folder of the run, or its address in a bucket.
      step: Step of a kept checkpoint, or several whose mean is exported. The error for any other step lists the kept ones.
      model: Instead of workdir and step: a folder, package:NAME/PATH or a hub name; from Python also a model in memory.
      out: Folder to write; an earlier export there is replaced, anything else is refused.
      to: Also write files for ONNX Runtime.

    Raises:
      InputError: arguments contradict each other, a checkpoint is missing, or a file cannot hold the model or differs.
    """
    with foreign_errors(f"{step=} must be a whole number, or several such as 500,600"):
        steps = sorted(set(map(int, listed(step))))
    is_run = workdir and steps and model is None
    is_model = model is not None and not workdir and not steps
    if not (is_run or is_model):
        raise InputError("give workdir and step of a run, or model alone.")
    out = local(out, "out").resolve()
    refuse_foreign(out)  # checked first: restoring the checkpoint takes longer
    if not workdir:
        if isinstance(model, Embedder):
            model = model.model
        return write_export(model if isinstance(model, SentenceModel) else load_model(str(model)), out, to=to)
    run = fetched(workdir)
    student = restored_student(run, steps)
    facts = dataclasses.replace(read_facts(run.folder) or Facts(name=""), name=out.name)
    averaged = averaged_steps(steps)
    if (facts.steps, facts.averaged) != (max(steps), averaged):  # the run's scores are of other checkpoints than these
        facts = dataclasses.replace(facts, steps=max(steps), averaged=averaged, chosen_by="", scores={})
    return write_export(student, out, facts=facts, to=to)


def restored_student(run: Workdir, steps: Sequence[int]) -> SentenceModel:
    """A run's student as it is exported, with the parameters of a kept checkpoint, or with the mean of several.
    Needs neither teacher nor text. Raises `InputError`, which lists the kept steps, if a checkpoint is missing."""
    config = read_config(run.folder)
    student = read_student(config, run.folder) if config else None
    if config is None or student is None or not run.checkpoints.is_dir():
        needs = f"{CONFIG}, {STUDENT} and {CHECKPOINTS}"
        raise InputError(f"{run.folder} is not a workdir with checkpoints (a sweep removes them); it needs {needs}.")
    checkpoints = Checkpoints(run, read_only=True)
    params = mean_params(checkpoints.restore_alone(step).evaluated_params for step in steps)
    # `evaluated` drops a head that the student does not keep; `exported` sets the prompt that the folder names.
    return config.student.exported(config.student.evaluated(student.with_params(params)))


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.export`."""
    options, _ = parse(export, arguments)
    folder = export(**options)
    print(f"{folder}: {weights_bytes(folder) / 1e6:.1f} MB, reloaded and compared")


make_callable(__name__, export)

if __name__ == "__main__":
    run(main)
