"""Checks of a chain of trainings that need no training: what is wrong with a later stage appears before the first one runs."""

import functools
import pathlib
from collections.abc import Callable, Sequence

from jaxdistill.config import Config
from jaxdistill.core import InputError
from jaxdistill.data import hub, sources
from jaxdistill.data.sources import split_specs
from jaxdistill.encoders.architecture import Pooling
from jaxdistill.encoders.locate import locate
from jaxdistill.training.build import checked_setup
from jaxdistill.training.dev import read_own_sets
from jaxdistill.training.several import each_teacher, names_models
from jaxdistill.training.student import refuse_contradictions
from jaxdistill.training.text import text_portions
from jaxdistill.training.workdir import INPUTS, STAGE_NAME, TEXT_FILES, made_of, read_note, stage_folder


def check_stages(stages: Sequence[Config], finished: Sequence[bool], workdir: pathlib.Path) -> None:
    """Raises `InputError`, with the number of the stage, for options, files and models that cannot be used.

    A finished stage must have been trained on the text that is there now, and one that is not finished must not have
    students of its own students.
    """
    digest = functools.cache(lambda text: sources.content_digest(split_specs(text)))  # stages share texts
    for number, (stage, done) in enumerate(zip(stages, finished, strict=True), start=1):
        try:
            if done:
                refuse_changed_text(stage, stage_folder(workdir, number), digest)
            else:
                _check(stage)
                _refuse_descendants(workdir, number)
        except InputError as error:
            raise InputError(f"stage {number}: {error}") from None


def _check(stage: Config) -> None:
    checked_setup(stage)
    gives_vectors = bool(stage.teacher.model) and names_models(stage.teacher) and stage.teacher.targets != "labels"
    refuse_contradictions(stage.student, has_teacher=gives_vectors)
    if stage.student.pooling:
        Pooling.parse(stage.student.pooling)
    specs = split_specs(stage.data.text)
    sources.check_weights(stage.data.weights, sources=len(specs))
    for portion in text_portions(stage.data):
        next(sources.rows(specs[portion.source], portion.columns, stage.data.max_line_bytes), None)
    for option, given in (("data.exclude", stage.data.exclude), ("evals.agreement", stage.evals.agreement)):
        for spec in split_specs(given):
            _check_source(option, spec)
    read_own_sets(stage)
    teachers = [teacher.model for teacher in each_teacher(stage.teacher)] if names_models(stage.teacher) else []
    for name in (*teachers, stage.student.model):
        if name not in ("", "teacher") and not STAGE_NAME.fullmatch(name):
            locate(name)


def _check_source(option: str, spec: str) -> None:
    if not hub.is_hub(spec):
        try:
            sources.source_files(spec)
        except InputError as error:
            raise InputError(f"{option}: {error}") from None


def refuse_changed_text(stage: Config, folder: pathlib.Path, digest: Callable[[str], str]) -> None:
    """Raises `InputError` if the text of a stage is not that which the training in `folder` read.

    Args:
      digest: of the content of `data.text`.
    """
    noted = read_note(folder / INPUTS).get(TEXT_FILES)
    if noted and noted != digest(stage.data.text):
        raise InputError(
            f"data.text={stage.data.text} has changed since {folder} was trained; remove that folder and those of later stages "
            "to train them anew, restore the text, or give another --workdir."
        )


def _refuse_descendants(workdir: pathlib.Path, number: int) -> None:
    name = stage_folder(workdir, number).name
    made = [later for later, of in made_of(workdir).items() if name in of and (workdir / later).exists()]
    if made:
        raise InputError(
            f"it would be trained again, with other options, and {workdir / made[0]} was made of its present student; remove "
            f"{' and '.join(made)} to train all anew, give the same options as before, or another --workdir."
        )
