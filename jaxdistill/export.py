"""Exports a checkpoint of a run, or the mean of several, as a folder that sentence-transformers and transformers load.

  python -m jaxdistill.export --workdir=runs/l3 --step=600 --out=runs/l3-step600
  python -m jaxdistill.export --workdir=runs/l3 --step=500,550,600 --out=runs/l3-mean
  python -m jaxdistill.export --model=runs/l3/export --to=onnx,openvino --out=runs/l3-everywhere
  python -m jaxdistill.export --model=runs/leaf/export --document_model=TEACHER --out=runs/leaf-router
  python -m jaxdistill.export --model=runs/l3/export --out=runs/l3/pushed --push_to_hub=me/student
  python -m jaxdistill.export --model=runs/l3/export --demo --demo_text=sentences.txt --out=runs/l3/page

A run itself exports its best checkpoint, or the mean of the checkpoints that `evals.average` names. It keeps these and the
latest ones (`run.keep`). `--to` adds forms for other runtimes and compares each with the model; the card gives the
differences (docs/deployment.md). With `--document_model`, the folder holds two models: the student for queries, and the other
for documents. With `--demo`, it holds a page that runs the student in the browser.
"""

import argparse
import dataclasses
import inspect
import operator
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from jaxdistill import exports
from jaxdistill.assets import HELDOUT
from jaxdistill.calls import in_python_words, make_callable
from jaxdistill.checkpoints.licences import check_licence
from jaxdistill.checkpoints.model import SentenceModel, load_model, model_name
from jaxdistill.cli import Parser, any_path, run
from jaxdistill.core import InputError, refuse
from jaxdistill.data.sources import split_specs
from jaxdistill.exports import demo as page
from jaxdistill.exports import hub
from jaxdistill.exports.measuring import sentences
from jaxdistill.files import is_remote, local
from jaxdistill.files.folders import refuse_foreign
from jaxdistill.inference import Embedder
from jaxdistill.paths import delivered, public_name
from jaxdistill.reporting.model_card import Checkpoint, Facts, averaged_steps, read_facts
from jaxdistill.training.export import export, export_demo, export_router, weights_bytes
from jaxdistill.training.results.outcome import restored_student
from jaxdistill.workdir.mirror import fetched_copy

CALIBRATED = 200
"""Number of sentences of `--calibration` that are read."""
ROUTER_ALONE = "--document_model goes with --model, and without --to: a router has no forms for other runtimes."
PAGE_ALONE = (
    "--demo goes without --to, --calibration, --document_model, --license and --push_to_hub: it writes a page alone."
)


def checkpoint_facts(workdir: str | Path, steps: Sequence[int], name: str) -> Facts:
    """The facts of the run's `card.json` for the checkpoint of a step, or the mean of several; scores and the choosing metric
    are left out if they belong to another step."""
    facts = read_facts(workdir) or Facts(name=name)
    averaged = averaged_steps(steps)
    checkpoint = facts.checkpoint
    if (checkpoint.steps, checkpoint.averaged) != (max(steps), averaged):
        checkpoint = Checkpoint(steps=max(steps), averaged=averaged, teacher_scores=checkpoint.teacher_scores)
    return dataclasses.replace(facts, name=name, checkpoint=checkpoint)


@in_python_words()
def export_checkpoint(
    workdir: str | Path | None = None,
    *,
    step: int | Sequence[int] | None = None,
    model: str | Path | Embedder | SentenceModel | None = None,
    document_model: str | Path | Embedder | SentenceModel = "",
    out: str | Path,
    to: str | Sequence[str] = (),
    calibration: str = "",
    demo: bool = False,
    demo_text: str = "",
    transformers_js: str | Path = "",
    license: str = "",
    push_to_hub: str = "",
    public: bool = False,
) -> Path:
    """Exports a kept checkpoint, the mean of several, or another model; returns the folder. `jaxdistill.export` is this function.

    Args:
      workdir: folder of the run, or its address in a bucket.
      step: step of a kept checkpoint, or several whose parameters are averaged. The error for any other step lists the kept ones.
      model: instead of both, a folder, `package:NAME/PATH`, a hub name, or a model that `jaxdistill.load` or `distill` gave.
      document_model: the model that made the index; the folder is then a `Router`, in which `model` reads the queries.
      out: folder to write; an earlier export there is replaced, anything else is refused with `InputError`.
      to: forms for other runtimes, see docs/deployment.md: `onnx`, `openvino`, `litert`, `stablehlo`, `gguf`.
      calibration: text whose first 200 sentences give the ranges of ONNX in 8 bits; empty: no `model_int8.onnx` is written.
      demo: write a page instead that finds the nearest of some sentences in the browser, as one types.
      demo_text: these sentences, at most 10,000; empty: 2,000 of the quickstart.
      transformers_js: folder of the npm package that the page runs on; empty: below `node_modules` in the current folder.
      license: licence of the student for its card, such as `apache-2.0`, or `other:NAME:LINK` for one that the Hugging Face hub
        does not list; empty: the one of what it was made from. A warning asks for it where it is unknown.
      push_to_hub: `OWNER/NAME` of a repository on the Hugging Face hub to push the folder to; a new one is private unless `public`.

    Raises:
      InputError: arguments contradict each other, or a form cannot hold the model or differs from it; nothing is then written.
    """
    forms = split_specs(to) if isinstance(to, str) else [str(form) for form in (to if np.iterable(to) else [to])]
    refuse([
        ({workdir is None, step is None} != {model is not None}, "give --workdir and --step of a run, or --model alone."),
        (document_model and (model is None or forms), ROUTER_ALONE),
        (demo and (forms or document_model or calibration or license or push_to_hub), PAGE_ALONE),
        ((demo_text or transformers_js) and not demo, "--demo_text and --transformers_js apply to a page; give --demo too."),
        (calibration and "onnx" not in forms, "--calibration applies to 8-bit ONNX; give --to=onnx too."),
        (public and not push_to_hub, "--public applies to a repository; give --push_to_hub=OWNER/NAME too."),
    ])  # fmt: skip
    check_licence(license, "--license")
    if push_to_hub:
        hub.check(push_to_hub)
    exports.check(forms)
    out = local(out, "out").resolve()
    if demo:
        return _page(out, partial(_student, workdir, step, model, Path(workdir or "").name), demo_text, transformers_js)
    refuse_foreign(out)  # checked first: restoring the checkpoint takes longer
    if document_model:
        folder = export_router(_loaded(model), _loaded(document_model), out, spec=push_to_hub, licence=license)
    else:
        texts = sentences(calibration, CALIBRATED) if calibration else []
        student, facts = _student(workdir, step, model, out.name)
        folder = export(student, out, facts=facts, to=forms, calibration=texts, spec=push_to_hub, licence=license)
    return hub.pushed(folder, push_to_hub, public=public) if push_to_hub else folder


def _page(out: Path, student: Callable[[], tuple[SentenceModel, Facts | None]], text: str, runtime: str | Path) -> Path:
    """Writes the page of `--demo`; reads the student once all else is there."""
    page.refuse_other(out)
    files, texts = page.runtime_files(runtime), sentences(text or HELDOUT, page.MOST)
    model, facts = student()
    name = facts.name if facts else public_name(model.source)
    return export_demo(model, out, name=name, sentences=texts, runtime=files)


def _student(
    workdir: str | Path | None,
    step: int | Sequence[int] | None,
    model: str | Path | Embedder | SentenceModel | None,
    name: str,
) -> tuple[SentenceModel, Facts | None]:
    """The given model, or the student of a run's checkpoint, with its facts."""
    if workdir is None or step is None:
        return _loaded(model), None
    workdir = fetched_copy(workdir)
    if not workdir.is_dir():
        raise InputError(f"{workdir} does not exist; --workdir is the folder of a run.")
    steps = _whole_numbers(step)
    facts = checkpoint_facts(workdir, steps, name)
    return restored_student(workdir, steps), facts


def _loaded(model: str | Path | Embedder | SentenceModel | None) -> SentenceModel:
    model = model.model if isinstance(model, Embedder) else model
    return model if isinstance(model, SentenceModel) else load_model(model_name(model))


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
    document_model = "encodes documents; --out then holds it and --model, as a Router"
    add("--document_model", default="", help=document_model)
    add("--to", default="", help=f"forms for other runtimes: {', '.join(exports.FORMS)}")
    add("--calibration", default="", help="text for the activation ranges of onnx/model_int8.onnx")
    add("--license", default="", help="licence for the card, such as apache-2.0; empty: the licence of its models")
    add("--demo", action="store_true", help="write a page that finds sentences in the browser instead")
    add("--demo_text", default="", help=f"its sentences, at most {page.MOST:,}; empty: the quickstart's")
    npm = f"folder of the npm package {page.PACKAGE}; empty: ./node_modules/{page.PACKAGE}"
    add("--transformers_js", default="", help=npm)
    push_to_hub = "OWNER/NAME on the Hugging Face hub to push the folder to, private if it is new"
    add("--push_to_hub", default="", help=push_to_hub)
    add("--public", action="store_true", help="make a new repository public")
    add("--out", type=any_path, required=True, help="folder to write; an earlier export there is replaced")
    given = parser.parse_args(arguments)
    with delivered(given.out) as out:
        folder = inspect.unwrap(export_checkpoint)(**{**vars(given), "out": out})
        size = page.size_bytes(folder) if given.demo else weights_bytes(folder)
    place = given.out if is_remote(given.out) else folder
    print(f"{place}: {size / 1e6:.1f} MB, {'compared in ONNX Runtime' if given.demo else 'reloaded and compared'}")
    if given.demo and not is_remote(given.out):
        print(f"run: python -m http.server --directory {shlex.quote(str(place))}    # then open http://localhost:8000")


make_callable(__name__, export_checkpoint)

if __name__ == "__main__":
    run(main)
