"""Distillation from Python: the same path as the program, as a function that returns models and scores."""

import dataclasses
import hashlib
import json
import logging
import pathlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxdistill import objectives
from jaxdistill.calls import by_name, in_python_words
from jaxdistill.config import EXTENSIONS, Config, flat_stages, parse_stages
from jaxdistill.config.kinds import STUDENTS, TEACHERS, Kinds
from jaxdistill.config.values import Columns, typed
from jaxdistill.core import InputError, Objective
from jaxdistill.data.in_memory import Text, columns_of, sources_of
from jaxdistill.data.sources import split_specs
from jaxdistill.inference import Embedder, load
from jaxdistill.options.config_file import default_workdir, read_config_file
from jaxdistill.options.overrides import with_options
from jaxdistill.reporting.model_card import public_argument
from jaxdistill.students.parts.student import Student
from jaxdistill.teachers.parts.teacher import Teacher
from jaxdistill.training.hooks.metrics import Callback
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
OF_ALL_STAGES = ("data.text", "data.columns", "run.seed")
"""Options that arguments set in every stage; arguments set all others only in the first."""
VALUES: Mapping[str, tuple[Kinds, str]] = {
    "teacher": (TEACHERS, 'jaxdistill.teachers.Stored("MODEL")'),
    "student": (STUDENTS, 'jaxdistill.students.Cut("teacher", layers="even:3")'),
    "objective": (objectives.OBJECTIVES, "jaxdistill.objectives.ConGen(alpha=1.0)"),
}
"""Arguments of `distill` that may be a kind with its options: the package of its kinds, and an example."""


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


@in_python_words(renamed={option: argument for argument, option in ARGUMENTS.items()})
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
      options: further options by name, such as `{"evals.every": 100}`; for stages `{"all.run.seed": 1, "stage2.run.steps": 9}`.
      callbacks: called in the first process as `callback(step, metrics)` when a line of `metrics.jsonl` is written: losses every
        `run.log_every` steps, scores at evaluations; each stage counts its own steps. Its exceptions end the training.
      dry_run: build everything, print sizes and estimated time, and return None before step 1.

    Raises:
      InputError: an option, a text or a file cannot be used, or is given twice; the message is one line.
      KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP, after the state is saved.
    """
    values = _values(teacher=teacher, student=student, objective=objective)
    named = "" if "teacher" in values else str(teacher or "")
    short = dict(teacher=named, columns=tuple(columns_of(columns).items()), steps=steps)
    short |= dict(layers=_layers(layers), epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, seed=seed)
    chosen = options_of({name: value for name, value in short.items() if value not in (None, "", ())}, values)
    parsed = whole_config(str(config), text, chosen, by_name(options))
    workdir = _default_workdir(str(config), parsed) if workdir is None else workdir
    return _trained(parsed, workdir, callbacks=callbacks, dry_run=dry_run, command=_call(str(config), parsed))


def _values(**given: Any) -> dict[str, Any]:
    """The given arguments of `VALUES` that are a kind with its options; leaves out a teacher given by its model's name."""
    named = {"teacher"} if isinstance(given["teacher"], str | pathlib.Path) else set()
    return {name: value for name, value in given.items() if value is not None and name not in named}


def options_of(short: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The options, by dotted name, that the arguments of `distill` set.

    Args:
      short: given arguments of `ARGUMENTS`.
      values: given arguments of `VALUES` that are a kind with its options.
    """
    if "steps" in short and "epochs" in short:
        raise InputError(f"steps={short['steps']} and epochs={short['epochs']} exclude each other; give only one.")
    if "layers" in short and "student" in values:
        raise InputError(
            'layers and student exclude each other; give the layers to the student: Cut("teacher", layers="even:3").'
        )
    chosen = {ARGUMENTS[name]: value for name, value in short.items()}
    for section, value in values.items():
        chosen |= _of_value(section, value)
    return chosen | ({"run.steps": 0} if "epochs" in short else {})  # a config's steps would override epochs


def _of_value(section: str, value: Any) -> dict[str, Any]:
    """All options of a kind by dotted name; the kind itself comes first."""
    kinds, example = VALUES[section]
    if isinstance(value, type) or not dataclasses.is_dataclass(value) or not hasattr(value, kinds.member):
        raise InputError(f"{section}={value!r:.60} is no {section} with its options; give one such as {example}.")
    options = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    options.pop("kind", None)  # the class determines it
    named = {"kind": kinds.name_of(type(value)), **options}
    return {f"{section}.{name}": option for name, option in named.items()}


def whole_config(config: str, text: Text, chosen: Mapping[str, Any], options: Mapping[str, Any]) -> list[Config]:
    """The config's stages with these options; writes text in memory to the cache.

    Args:
      chosen: options set by arguments.
      options: further options.
    """
    has_text = not isinstance(text, str | pathlib.Path) or bool(str(text))
    refuse_twice([*chosen, *["data.text"] * has_text], options)
    base = read_config_file(config)
    given = {in_stages(name, base): value for name, value in chosen.items()} | dict(options)
    raw = with_options(base, given)
    if has_text:
        raw = with_options(raw, {in_stages("data.text", base): _text_source(text, raw[0])} | _texts_of_stages(options))
    parsed = parse_stages(raw)
    _show_log()
    return parsed


def in_stages(option: str, stages: Sequence[Mapping[str, Any]]) -> str:
    """The dotted name of the option that an argument sets: in every stage for `OF_ALL_STAGES`, otherwise in the first."""
    if len(stages) == 1:
        return option
    return f"all.{option}" if option in OF_ALL_STAGES else f"stage1.{option}"


def _texts_of_stages(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that give a single stage its own text, which overrides the text of all stages."""
    return {name: value for name, value in options.items() if re.fullmatch(r"stage\d+\.data\.text", name)}


def _trained(
    parsed: Sequence[Config], workdir: str | pathlib.Path, *, callbacks: Sequence[Callback], dry_run: bool, command: str
) -> Result | None:
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise InputError(f"callbacks={callbacks!r:.60} must be a list of functions, such as [print].")
    run_stages(parsed, workdir, dry_run=dry_run, command=command, callbacks=callbacks)
    return None if dry_run else result_of(local_folder(workdir), parsed)


def refuse_twice(given: Iterable[str], options: Mapping[str, Any]) -> None:
    """Raises `InputError` if an argument and `options` name the same option."""
    argument_of = {option: argument for argument, option in ARGUMENTS.items()}
    for name in given:
        if name in options:
            argument = argument_of.get(name, name.partition(".")[0])
            raise InputError(f"the argument {argument} and options[{name!r}] are the same option; give one of them.")


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


def _text_source(text: Text, raw: Mapping[str, Any]) -> str:
    """The value of `data.text` for a text; text in memory is written with the columns that other options read."""
    numbers = split_specs(raw["teacher"].get("names", ""))
    columns = columns_of(typed(raw["data"]["columns"], Columns, "data.columns"))
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
    base = flat_stages(parse_stages(read_config_file(config)))
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
