"""Trains from Python as `jaxdistill.main` does from the command line, and returns the student and its scores."""

import dataclasses
import hashlib
import json
import logging
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from jaxdistill.config import default_workdir, flat, in_every_stage, load_config, parse_stages, set_options, typed
from jaxdistill.config.options import EXTENSIONS, Config
from jaxdistill.core import InputError, Objective
from jaxdistill.core.plugins import KINDS
from jaxdistill.core.runtime import log_to_stdout
from jaxdistill.data.options import Columns
from jaxdistill.data.text import Text, columns_of, sources_of, split_specs
from jaxdistill.evals.model_card import public_argument
from jaxdistill.models.inference import Embedder, load
from jaxdistill.models.student import Student
from jaxdistill.models.teacher import Teacher
from jaxdistill.training.metrics import Callback
from jaxdistill.training.stages import run_stages
from jaxdistill.training.workdir.folder import EXPORT, RESULTS, local_folder, read_note, stage_folders


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a training; of several stages, the last one's."""

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
      steps, epochs, batch_size, learning_rate, seed: options of these names; a step is an update, an epoch a pass over the text.
      options: further options by name, such as `{"evals.every": 100}`; for stages `{"best": "last", "stage2.run.steps": 9}`. They
        override other arguments.
      callbacks: called in the first process as `callback(step, metrics)` when a line of `metrics.jsonl` is written: losses every
        `run.log_every` steps, scores at evaluations; each stage counts its own steps. An exception in one ends the training.
      dry_run: build everything, print sizes and estimated time, and return None before step 1.

    Raises:
      InputError: an option, a text or a file cannot be used; the message is one line.
      KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP, after the state is saved.
    """
    config = str(config)
    if steps is not None and epochs is not None:
        raise InputError("steps and epochs exclude each other; give only one.")
    is_name = isinstance(teacher, str | pathlib.Path)
    if layers is not None and not isinstance(layers, str):
        layers = f"even:{layers}" if isinstance(layers, int) else ",".join(map(str, layers))
    arguments = {
        "teacher": None if is_name else teacher,
        "student": student,
        "objective": objective,
        "teacher.model": str(teacher) if is_name else "",
        "student.layers": layers,
        "run.epochs": epochs,
        "run.steps": steps if epochs is None else -1,  # or the config's number of steps would override `epochs`
        "data.batch_size": batch_size,
        "optimizer.learning_rate": learning_rate,
        "data.columns": tuple(columns_of(columns).items()),
        "run.seed": seed,
    }
    stages = configured(config, text, arguments, options or {})
    values = flat(*stages)
    if workdir is None:  # named by a digest of all options that a resumed run may not change
        fixed = {name: value for name, value in values.items() if re.sub(r"^stage\d+\.", "", name) not in EXTENSIONS}
        digest = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:8]
        workdir = pathlib.Path(f"{default_workdir(config)}-{digest}").absolute()
    if not logging.getLogger("jaxdistill").hasHandlers():  # the caller has not set up logging
        log_to_stdout("jaxdistill")
    run_stages(stages, workdir, dry_run=dry_run, command=card_command(config, values), callbacks=callbacks)
    if dry_run:
        return None
    folder = stage_folders(local_folder(workdir), len(stages))[-1]
    results = read_note(folder / RESULTS)
    return Result(
        workdir=folder, export_folder=folder / EXPORT, results=results,
        scores=results["scores"]["student after"], teacher_scores=results["scores"].get("teacher", {}),
    )  # fmt: skip


def card_command(config: str, options: Mapping[str, Any]) -> str:
    """The call for the model card, with the options that differ from the config's, without local folders."""

    def public(name: str, value: Any) -> Any:
        return public_argument(f"{name}={value}").removeprefix(f"{name}=") if isinstance(value, str) else value

    defaults = flat(*parse_stages(load_config(config)))
    changed = {name: public(name, value) for name, value in options.items() if defaults.get(name) != value}
    return f"jaxdistill.distill(config={public('--config', config)!r}, options={changed!r}, workdir=DIR)"


def configured(spec: str, text: Text, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> list[Config]:
    """The stages of the config `spec`, changed by `arguments` (`distill`'s, by option; None and empty ones change nothing), then by
    `options`. Columns, seed and text go to every stage, other arguments to the first. Text in memory goes to the cache."""
    config: Any = load_config(spec)
    first = config.get("stage1", config)  # a single training has no stages
    for name, value in arguments.items():
        if value is None or value in ("", ()):
            continue
        if name in KINDS:
            if isinstance(value, type) or not KINDS[name].is_kind(value):
                raise InputError(f"{name}={value!r:.60} is no {name} with its options; give one of jaxdistill.{name}s.")
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            first[name] = ConfigDict({**fields, "kind": KINDS[name].name_of(value)})
        elif name in ("data.columns", "run.seed"):
            set_options(config, dict.fromkeys(in_every_stage(config, name), value))
        else:
            set_options(config, {in_every_stage(config, name)[0]: value})
    set_options(config, options)
    is_empty = isinstance(text, str | pathlib.Path) and not str(text)  # a table has no truth value
    if not is_empty:
        columns = columns_of(typed(first.data.columns, Columns, "data.columns"))
        score_columns = split_specs(first.teacher.get("names", ""))  # which only the teacher `columns` has
        source = ",".join(sources_of(text, columns, numbers=score_columns))
        set_options(config, {name: source for name in in_every_stage(config, "data.text") if name not in options})
    return parse_stages(config)
