"""Distillation from Python: the same path as the program, as a function that returns models and scores."""

import dataclasses
import hashlib
import json
import logging
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxdistill import memory
from jaxdistill.cli import did_you_mean
from jaxdistill.config import Config, flat, parse_config
from jaxdistill.core import InputError
from jaxdistill.files import write_atomic
from jaxdistill.inference import Embedder, load
from jaxdistill.paths import cache_folder
from jaxdistill.reporting.model_card import public_argument
from jaxdistill.training.config_file import read_config_file
from jaxdistill.training.mirror import local_folder
from jaxdistill.training.stages import in_order, run_stages
from jaxdistill.training.unread import warn_of_unread
from jaxdistill.training.workdir import EXPORT, RESULTS, stage_folder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a training."""

    workdir: pathlib.Path
    """Folder of the last stage: checkpoints, metrics, plots and the report; for a workdir in a bucket, the local copy."""
    export_folder: pathlib.Path
    """The student as a sentence-transformers folder."""
    scores: Mapping[str, float]
    """The student's scores, in [-1, 1]."""
    teacher_scores: Mapping[str, float]
    """The teacher's; empty without a teacher model."""
    results: Mapping[str, Any]
    """Content of `results.json`: options, all scores, sizes, speeds, versions."""

    @property
    def model(self) -> Embedder:
        """The student, ready to encode."""
        return load(str(self.export_folder))


def distill(
    *,
    text: str | pathlib.Path | Sequence[str] = "",
    workdir: str | pathlib.Path,
    teacher: str | pathlib.Path = "",
    layers: int | str = "",
    config: str | pathlib.Path = "configs/l2.py:cosine",
    options: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> Result | None:
    """Trains a student and exports it; calling it again with the same arguments resumes.

    The process keeps the memory that a step frees for the next one, and returns it while memory is scarce
    (`memory.keep_freed`), as the program does: steps on CPUs are faster.

    Args:
      text: sentences, or sources as `data.text` takes them (files, globs, `hf:NAME:SPLIT:COLUMN`).
      workdir: folder of the run, or its address in a bucket.
      teacher: folder, also at `s3://` or `gs://`, `package:NAME/PATH` or hub name; empty: the config's.
      layers: how many of the teacher's layers the student keeps, evenly spaced, or as `student.layers` takes them.
      config: config file and preset; its options apply unless overridden here.
      options: any other options by their dotted names, such as `{"run.steps": 500, "then.run.seed": 1}`.
      dry_run: build everything, print sizes and estimated time, and return None before step 1.

    Raises:
      InputError: an option or a file cannot be used; the message is one line.
      KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP, after the state is saved.
    """
    given = {
        "data.text": _sources(text),
        "teacher.model": str(teacher or ""),
        "student.layers": f"even:{layers}" if isinstance(layers, int) else layers,
    }
    given = {name: value for name, value in given.items() if value} | dict(options or {})
    config = str(config)
    parsed = parse_config(with_options(read_config_file(config), given))
    folder = local_folder(workdir)
    _show_log()
    memory.keep_freed()
    warn_of_unread(parsed, given)
    run_stages(parsed, workdir, dry_run=dry_run, command=_call(config, parsed))
    return None if dry_run else result_of(folder, parsed)


def with_options(raw: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Nested options with some replaced by their dotted names; raises `InputError` for a name that does not exist."""
    changed = json.loads(json.dumps(raw))
    for name, value in given.items():
        *sections, option = name.split(".")
        place = changed
        for section in sections:
            place = place.get(section, {}) if isinstance(place, dict) else {}
        if not sections or option not in place:
            known = list(_names(changed))
            raise InputError(f"option {name!r} is unknown.{did_you_mean(name, known)}")
        place[option] = value
    return changed


def result_of(workdir: pathlib.Path, config: Config) -> Result:
    """The result of a finished training in a workdir, of its last stage where there are several."""
    stages = in_order(config)
    folder = stage_folder(workdir, len(stages)) if len(stages) > 1 else workdir
    results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    return Result(
        workdir=folder,
        export_folder=folder / EXPORT,
        scores=results["scores"]["student after"],
        teacher_scores=results["scores"].get("teacher", {}),
        results=results,
    )


def _sources(text: str | pathlib.Path | Sequence[str]) -> str:
    """`data.text` of the sources or sentences; sentences become a file of the cache, named by their digest."""
    if isinstance(text, str | pathlib.Path):
        return str(text)
    if not isinstance(text, Iterable):
        raise InputError(f"text is {text!r:.40}; give sentences, or the path of a file.")
    text = list(text)
    if not text:
        raise InputError("text is an empty list; give sentences, or the path of a file.")
    if not all(isinstance(sentence, str) for sentence in text):
        raise InputError("text holds something that is not a string; give sentences, or the path of a file.")
    lines = "".join(json.dumps({"text": sentence}) + "\n" for sentence in text)
    path = cache_folder() / "texts" / f"{hashlib.sha256(lines.encode()).hexdigest()[:16]}.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lines)
    return str(path)


def _names(options: Mapping[str, Any]) -> list[str]:
    """Dotted names of nested options."""
    inner = [(key, value) for key, value in options.items() if isinstance(value, Mapping)]
    return [key for key, value in options.items() if not isinstance(value, Mapping)] + [
        f"{key}.{name}" for key, value in inner for name in _names(value)
    ]


def _call(config: str, parsed: Config) -> str:
    """The call for the model card, without local folders: the config and the options that differ from its own."""
    base = flat(parse_config(read_config_file(config)))
    changed = {name: value for name, value in flat(parsed).items() if base.get(name) != value}
    public = {
        name: public_argument(f"{name}={value}").partition("=")[2] if isinstance(value, str) else value
        for name, value in changed.items()
    }
    config = public_argument(f"--config={config}").partition("=")[2]
    return f"jaxdistill.distill(config={config!r}, options={public!r}, workdir=DIR)"


def _show_log() -> None:
    """Shows the run's own log lines, where the caller has not set up logging."""
    logger = logging.getLogger("jaxdistill")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
