"""Distillation from Python: the same path as the program, as a function that returns models and scores."""

import dataclasses
import hashlib
import json
import logging
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from jaxdistill.config import EXTENSIONS, Columns, Config, flat_stages, parse_stages, set_options
from jaxdistill.config.files import default_workdir, load_config
from jaxdistill.config.kinds import KINDS
from jaxdistill.config.read import stage_names
from jaxdistill.config.values import typed
from jaxdistill.config.write import in_every_stage
from jaxdistill.core import InputError, Objective
from jaxdistill.data.sources import split_specs
from jaxdistill.data.text import Text, columns_of, sources_of
from jaxdistill.inference import Embedder, load
from jaxdistill.reporting.model_card import public_argument
from jaxdistill.students.parts.student import Student
from jaxdistill.teachers.parts.teacher import Teacher
from jaxdistill.training.metrics import Callback
from jaxdistill.training.stages import run_stages
from jaxdistill.workdir.bucket import local_folder
from jaxdistill.workdir.folder import EXPORT, RESULTS, stage_folder

ARGUMENTS = {
    "teacher": "teacher.model",
    "text": "data.text",
    "columns": "data.columns",
    "layers": "student.layers",
    "steps": "run.steps",
    "epochs": "run.epochs",
    "batch_size": "data.batch_size",
    "learning_rate": "optimizer.learning_rate",
    "seed": "run.seed",
}
"""Maps arguments of `distill` to the options that they set."""
OF_ALL_STAGES = ("text", "columns", "seed")
"""Arguments that set an option in every stage; all others set it only in the first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a training."""

    workdir: pathlib.Path
    """Folder of the last stage, with checkpoints, metrics, plots and the report; the local copy if the workdir is in a bucket."""
    export_folder: pathlib.Path
    """The student as a sentence-transformers folder."""
    scores: Mapping[str, float]
    """The student's scores, in [-1, 1]."""
    teacher_scores: Mapping[str, float]
    """The teacher's scores; empty without a teacher model."""
    results: Mapping[str, Any]
    """Content of `results.json`: options, all scores, sizes, speeds, versions."""

    @property
    def model(self) -> Embedder:
        """The student, ready to encode."""
        return load(str(self.export_folder))


def distill(
    teacher: str | pathlib.Path | Teacher = "",
    text: Text = "",
    *,
    student: Student | None = None,
    workdir: str | pathlib.Path | None = None,
    config: str | pathlib.Path = "configs/l2.py:cosine",
    columns: str | Mapping[str, str] | Sequence[str] | None = None,
    layers: int | str | Sequence[int] | None = None,
    objective: Objective | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    dry_run: bool = False,
) -> Result | None:
    """Trains a student and exports it; calling it again with the same arguments resumes.

    >>> sentences = [f"{subject} {verb}." for subject in ("A cat", "Rain", "She") for verb in ("falls", "sleeps", "sings")] * 9
    >>> student = jaxdistill.students.Cut("teacher", layers="even:1")
    >>> result = jaxdistill.distill(TEACHER, sentences, student=student, steps=2, batch_size=8, options={"data.dedupe": False})
    >>> result.model.encode("A cat sleeps.").shape
    (16,)

    Args:
      teacher: folder, also at `s3://` or `gs://`, `package:NAME/PATH` or hub name; or a kind with its options, such as
        `jaxdistill.teachers.Stored("MODEL")`; empty: the config's.
      text: strings, tuples or mappings, also from a generator; a column or table of pandas, polars, pyarrow or `datasets`; or a
        source as in `data.text` (file, glob, `hf:NAME:SPLIT:COLUMN`). `None` and NaN are left out and counted.
      student: a kind with its options, from `jaxdistill.students` or your own; None: the config's.
      workdir: folder of the run, or its address in a bucket; None: `runs/CONFIG-PRESET-DIGEST`, where the digest covers the
        options that a resumed run may not change.
      config: config file and preset; its options apply unless overridden here.
      columns: the column of the sentences, or a mapping of views to columns, such as `{"text": "title", "second": "body"}`; for
        tuples, in their order.
      layers: number of the teacher's layers to keep, evenly spaced; or their indices; or a value of `student.layers`.
      objective: an objective with its options, such as `jaxdistill.objectives.ConGen(alpha=1.0)`; None: the config's.
      steps, epochs: number of updates, or of passes over the text (`run.steps`, `run.epochs`).
      batch_size, learning_rate, seed: `data.batch_size`, in sentences; `optimizer.learning_rate`; `run.seed`.
      options: further options by name, such as `{"evals.every": 100}`; for stages `{"best": "last", "stage2.run.steps": 9}`.
      callbacks: called in the first process as `callback(step, metrics)` when a line of `metrics.jsonl` is written: losses every
        `run.log_every` steps, scores at evaluations; each stage counts its own steps. Its exceptions end the training.
      dry_run: build everything, print sizes and estimated time, and return None before step 1.

    Raises:
      InputError: an option, a text or a file cannot be used, or is given twice; the message is one line.
      KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP, after the state is saved.
    """
    named = isinstance(teacher, str | pathlib.Path)
    objects = {"teacher": None if named else teacher, "student": student, "objective": objective}
    arguments = dict(teacher=str(teacher) if named else "", columns=tuple(columns_of(columns).items()), steps=steps)
    arguments |= dict(
        layers=_layers(layers), epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, seed=seed
    )
    stages = configured(str(config), text, arguments, objects, options or {})
    _show_log()
    workdir = _default_workdir(str(config), stages) if workdir is None else workdir
    return _trained(stages, workdir, callbacks=callbacks, dry_run=dry_run, command=_call(str(config), stages))


def configured(
    spec: str, text: Text, arguments: Mapping[str, Any], objects: Mapping[str, Any], options: Mapping[str, Any]
) -> list[Config]:
    """The stages of a config with the arguments of `distill`; writes text in memory to the cache.

    Args:
      arguments: values of `ARGUMENTS`; None and empty ones are not given.
      objects: a student, teacher and objective with their options; None: the config's.
    """
    arguments = {name: value for name, value in arguments.items() if value not in (None, "", ())}
    objects = {section: value for section, value in objects.items() if value is not None}
    has_text = not isinstance(text, str | pathlib.Path) or bool(str(text))
    _refuse_twice([*arguments, *["text"] * has_text], objects, options)
    config: Any = load_config(spec)
    first = config[stage_names(config)[0]] if stage_names(config) else config
    for section, value in objects.items():
        first[section] = _section_of(section, value)
    for name, value in arguments.items():
        stages = in_every_stage(config, ARGUMENTS[name])
        set_options(config, dict.fromkeys(stages if name in OF_ALL_STAGES else stages[:1], value))
    if "epochs" in arguments:
        first.run.steps = 0  # which would override epochs
    set_options(config, options)
    if has_text:
        source = _text_source(text, first)
        set_options(config, {name: source for name in in_every_stage(config, "data.text") if name not in options})
    return parse_stages(config)


def _refuse_twice(arguments: Sequence[str], objects: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raises `InputError` for what is given twice."""
    if not isinstance(options, Mapping):
        raise InputError(f'options={options!r:.60} must map names to values, such as {{"evals.every": 100}}.')
    if {"steps", "epochs"} <= {*arguments}:
        raise InputError("steps and epochs exclude each other; give only one.")
    if "layers" in arguments and "student" in objects:
        raise InputError(
            'layers and student exclude each other; give the layers to the student: Cut("teacher", layers="even:3").'
        )
    twice = {name: argument for argument in arguments for name in options if name in (argument, ARGUMENTS[argument])}
    twice |= {name: section for section in objects for name in options if name.startswith(f"{section}.")}
    for name, argument in twice.items():
        raise InputError(f"the argument {argument} and options[{name!r}] set the same; give one of them.")


def _section_of(section: str, value: Any) -> ConfigDict:
    """The options of an object, with its kind."""
    if isinstance(value, type) or not KINDS[section].is_kind(value):
        raise InputError(
            f"{section}={value!r:.60} is no {section} with its options; give one such as {KINDS[section].example}."
        )
    options = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return ConfigDict({**options, "kind": KINDS[section].name_of(value)})


def _trained(
    parsed: Sequence[Config], workdir: str | pathlib.Path, *, callbacks: Sequence[Callback], dry_run: bool, command: str
) -> Result | None:
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise InputError(f"callbacks={callbacks!r:.60} must be a list of functions, such as [print].")
    run_stages(parsed, workdir, dry_run=dry_run, command=command, callbacks=callbacks)
    return None if dry_run else result_of(local_folder(workdir), parsed)


def _default_workdir(config: str, parsed: Sequence[Config]) -> pathlib.Path:
    """`runs/CONFIG-PRESET-DIGEST`: the same for calls that resume each other, different for any other training."""
    options = flat_stages(parsed).items()
    fixed = {name: value for name, value in options if re.sub(r"^stage\d+\.", "", name) not in EXTENSIONS}
    digest = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:8]
    return pathlib.Path(f"{default_workdir(config)}-{digest}").absolute()


def _layers(layers: int | str | Sequence[int] | None) -> str | None:
    """Converts the argument to a value of `student.layers`."""
    if layers is None or isinstance(layers, str):
        return layers or None
    return f"even:{layers}" if isinstance(layers, int) else ",".join(map(str, layers))


def _text_source(text: Text, config: Any) -> str:
    """The value of `data.text` for a text; text in memory is written with the columns that other options read."""
    numbers = split_specs(config.teacher.get("names", ""))
    columns = columns_of(typed(config.data.columns, Columns, "data.columns"))
    return ",".join(sources_of(text, columns, numbers=numbers))


def result_of(workdir: pathlib.Path, stages: Sequence[Config]) -> Result:
    """The result of a finished training in a workdir: that is, of its last stage."""
    folder = stage_folder(workdir, len(stages)) if len(stages) > 1 else workdir
    results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    return Result(
        workdir=folder,
        export_folder=folder / EXPORT,
        scores=results["scores"]["student after"],
        teacher_scores=results["scores"].get("teacher", {}),
        results=results,
    )


def _call(config: str, parsed: Sequence[Config]) -> str:
    """The call for the model card: the config and the options that differ from it, without local folders."""
    base = flat_stages(parse_stages(load_config(config)))
    changed = {name: value for name, value in flat_stages(parsed).items() if base.get(name) != value}
    public = {
        name: public_argument(f"{name}={value}").partition("=")[2] if isinstance(value, str) else value
        for name, value in changed.items()
    }
    config = public_argument(f"--config={config}").partition("=")[2]
    return f"jaxdistill.distill(config={config!r}, options={public!r}, workdir=DIR)"


def _show_log() -> None:
    """Shows the run's log lines if the caller has not set up logging."""
    logger = logging.getLogger("jaxdistill")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
