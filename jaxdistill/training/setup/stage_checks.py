"""Checks stages without training: finds mistakes in later stages before the first one runs, and mistakes in a training
before a launcher pays for machines."""

import logging
import pathlib
from collections.abc import Iterator, Sequence

import jax

from jaxdistill.checkpoints.locate import locate
from jaxdistill.cluster import mesh as meshes
from jaxdistill.config import Config, of_stage
from jaxdistill.core import InputError, errors_of
from jaxdistill.data import hub
from jaxdistill.data.sources import content_digest, source_files, split_specs
from jaxdistill.data.text import tables
from jaxdistill.files import buckets, is_remote, parts
from jaxdistill.reading import text_portions
from jaxdistill.training.setup.build import checked_setup, prepared
from jaxdistill.training.setup.dev import HELD_OUT, check_dev, dev_set_is_here, read_dev_sets
from jaxdistill.workdir.folder import INPUTS, STAGE_NAME, TEXT_FILES, made_of, read_note, stage_folder

HERE, ELSEWHERE = "here", "elsewhere"
"""Where a launcher starts a training: on machines that see this one's files, or that only see buckets and hubs."""

log = logging.getLogger(__name__)


def check_launch(stages: Sequence[Config], workdir: str, where: str) -> None:
    """Raises `InputError` for options, text and models with which the training would fail at its start.

    Downloads nothing, and reads no text but what a new vocabulary needs; loads the models if all files are on this machine. Does
    not check addresses of buckets that cannot be reached from here.

    Args:
      where: `HERE` or `ELSEWHERE`.
    """
    if is_remote(workdir):
        buckets.checked_address(workdir)
    elif where == ELSEWHERE:
        raise _local("--workdir", workdir)
    mesh = meshes.make_mesh(devices=jax.devices()[:1])  # the training's own devices are not known here
    for number, stage in enumerate(stages, start=1):
        with of_stage(number, stages):
            _, _, objective = checked_setup(stage, mesh)
            of_stages = any(map(STAGE_NAME.fullmatch, (*stage.teacher.models, stage.student.model)))
            is_here = where == HERE and dev_set_is_here(stage) and not of_stages
            for option, spec in (*_texts(stage), *_models(stage)):
                on_hub = hub.is_hub(spec) or (option.endswith(".model") and _may_be_on_hub(spec))
                is_here = is_here and not (on_hub or is_remote(spec))
                if is_remote(spec):
                    _check_in_bucket(option, spec)
                elif where == ELSEWHERE and not (on_hub or spec.startswith("package:")):
                    raise _local(f"--config.{option}", spec)
                elif where == HERE and not on_hub:
                    _check_here(option, spec)
            if is_here:
                _, teachers, _, dev_sets = prepared(stage, pathlib.Path(workdir), objective)
                check_dev(stage, dev_sets, teachers, objective, held_out=HELD_OUT)


def check_stages(stages: Sequence[Config], finished: Sequence[bool], workdir: pathlib.Path) -> None:
    """Raises `InputError`, with the number of the stage, for options, files and models that cannot be used.

    The text of a finished stage must be unchanged, and no later stage may depend on the student of an unfinished one.
    """
    for number, (stage, done) in enumerate(zip(stages, finished, strict=True), start=1):
        with of_stage(number, stages):
            if done:
                refuse_changed_text(stage, stage_folder(workdir, number))
                continue
            checked_setup(stage)
            for portion in text_portions(stage.data):
                spec = split_specs(stage.data.text)[portion.source]
                next(tables(spec, portion.columns, cache=stage.data.cache_folder), None)
            read_dev_sets(stage)
            for option, spec in (*_texts(stage), *_models(stage)):
                _check_here(option, spec)
            _refuse_descendants(workdir, number)


def _texts(stage: Config) -> Iterator[tuple[str, str]]:
    """Options that name text, each with one of its sources."""
    given = {"data.text": stage.data.text, "data.exclude": stage.data.exclude, "evals.agreement": stage.evals.agreement}
    return ((option, spec) for option, specs in given.items() for spec in split_specs(specs))


def _models(stage: Config) -> Iterator[tuple[str, str]]:
    """Yields (option, model) for the models that must exist before the chain is trained."""
    named = [*(("teacher.model", name) for name in stage.teacher.models), ("student.model", stage.student.model)]
    return ((option, name) for option, name in named if name not in ("", "teacher") and not STAGE_NAME.fullmatch(name))


def _may_be_on_hub(model: str) -> bool:
    return not (model.startswith(("package:", ".", "/", "~")) or pathlib.Path(model).exists())


def _check_here(option: str, spec: str) -> None:
    """Raises `InputError` if a model or the files of a text cannot be had on this machine."""
    if option.endswith(".model"):
        locate(spec)
    elif not hub.is_hub(spec):
        with errors_of(option):
            source_files(spec)


def _check_in_bucket(option: str, address: str) -> None:
    buckets.checked_address(address)
    try:
        bucket = buckets.Bucket(address)
        if not (bucket.versions() if option.endswith(".model") else bucket.matching()):
            raise buckets.MissingObject(f"no object matches {address}; check the address, and quote the glob.")
    except buckets.MissingObject as error:
        raise InputError(f"{option}: {error}") from None
    except InputError as error:
        log.warning("%s is not checked: %s", option, error)


def _local(option: str, path: str) -> InputError:
    return InputError(
        f"{option}={path} is on this machine, but the training runs on others; give the address of a bucket, such as "
        f"{option}=gs://BUCKET/{pathlib.Path(path).name}."
    )


def refuse_changed_text(stage: Config, folder: pathlib.Path) -> None:
    """Raises `InputError` if the text of a stage has changed since the training in `folder` read it."""
    parts.use(stage.run.parts)  # the user's own readers are part of the digest
    noted = read_note(folder / INPUTS).get(TEXT_FILES)
    if noted and noted != content_digest(split_specs(stage.data.text)):
        raise InputError(
            f"data.text={stage.data.text} has changed since {folder} was trained; remove the folders of this and later stages "
            "to train them again, restore the text, or give another --workdir."
        )


def _refuse_descendants(workdir: pathlib.Path, number: int) -> None:
    name = stage_folder(workdir, number).name
    made = [later for later, of in made_of(workdir).items() if name in of and (workdir / later).exists()]
    if made:
        raise InputError(
            f"it would be trained again with other options, but {workdir / made[0]} depends on the student that this would replace; remove "
            f"{' and '.join(made)} to train all again, give the same options as before, or another --workdir."
        )
