"""Looks for the text and the models of a training before it starts: a launcher's machines cost money, a chain's stages hours."""

import logging
import pathlib
from collections.abc import Sequence

import jax

from jaxdistill.config import of_stage
from jaxdistill.config.options import Config
from jaxdistill.core import InputError, errors_of, plugins
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.core.files import buckets, is_remote
from jaxdistill.data.text import content_digest, is_hub, source_files, split_specs, tables
from jaxdistill.models.checkpoints.model import locate
from jaxdistill.models.model_text import text_portions
from jaxdistill.training.build import checked_setup
from jaxdistill.training.dev import read_dev_sets
from jaxdistill.training.workdir.folder import (
    INPUTS,
    STAGE_NAME,
    STUDENTS,
    TEXT_FILES,
    address_of,
    read_note,
    stage_folder,
)

log = logging.getLogger(__name__)


def check_launch(stages: Sequence[Config], workdir: str, where: str) -> None:
    """Raises `InputError` for options, text and models with which the training would fail at its start; reads and loads none.

    Args:
      where: `here`, if the training will see this machine's files, or `elsewhere`, if it sees only buckets and hubs.
    """
    if is_remote(workdir):
        address_of(workdir)
    elif where == "elsewhere":
        raise _local("--workdir", workdir)
    mesh = meshes.make_mesh(devices=jax.devices()[:1])  # the training's own devices are not known here
    for number, stage in enumerate(stages, start=1):
        with of_stage(number, stages):
            checked_setup(stage, mesh)
            check_inputs(stage, where)


def check_stages(stages: Sequence[Config], finished: Sequence[bool], workdir: pathlib.Path) -> None:
    """Raises `InputError` for options, text, models and dev sets of unfinished stages that cannot be used.

    The text of a finished stage must be unchanged, and no later stage may depend on the student of an unfinished one.
    """
    for number, (stage, done) in enumerate(zip(stages, finished, strict=True), start=1):
        with of_stage(number, stages):
            folder, specs = stage_folder(workdir, number), split_specs(stage.data.text)
            if done:
                plugins.use(stage.run.plugins)  # the user's own readers are part of the digest
                before = read_note(folder / INPUTS).get(TEXT_FILES)
                if before and before != content_digest(specs):
                    raise InputError(
                        f"data.text={stage.data.text} has changed since {folder} was trained; remove the folders of this and later stages "
                        "to train them again, restore the text, or give another --workdir."
                    )
                continue
            checked_setup(stage)
            check_inputs(stage)
            # A column or a dev set that is missing would end a later stage hours after the start.
            for portion in text_portions(stage.data):
                next(tables(specs[portion.source], portion.columns, cache=stage.data.cache_folder), None)
            read_dev_sets(stage)
            students = read_note(workdir / STUDENTS)
            if made := [name for name in students if folder.name in students[name] and (workdir / name).exists()]:
                raise InputError(
                    f"it would be trained again with other options, but {workdir / made[0]} depends on the student that this would replace; "
                    f"remove {' and '.join(made)} to train all again, give the same options as before, or another --workdir."
                )


def check_inputs(stage: Config, where: str = "here") -> None:
    """Raises `InputError` for a text or a model that does not exist; those on the hub are not looked for."""
    texts = {"data.text": stage.data.text, "data.exclude": stage.data.exclude, "evals.agreement": stage.evals.agreement}
    named = [(option, spec) for option, specs in texts.items() for spec in split_specs(specs)]
    named += [*(("teacher.model", name) for name in stage.teacher.models), ("student.model", stage.student.model)]
    for option, spec in named:
        is_model = option.endswith(".model")
        if is_model and (spec in ("", "teacher") or STAGE_NAME.fullmatch(spec)):
            continue
        is_local = spec.startswith((".", "/", "~")) or pathlib.Path(spec).exists()
        if is_remote(spec):
            try:
                found = buckets.objects(spec)
            except InputError as error:
                log.warning("%s is not checked: %s", option, error)
                continue
            if not found:
                raise InputError(f"{option}: no object matches {spec}; check the address, and quote the glob.")
        elif is_hub(spec) or (is_model and not is_local and not spec.startswith("package:")):
            continue
        elif where == "elsewhere" and not spec.startswith("package:"):
            raise _local(f"--config.{option}", spec)
        elif is_model:
            locate(spec)
        else:
            with errors_of(option):
                source_files(spec)


def _local(option: str, path: str) -> InputError:
    return InputError(
        f"{option}={path} is on this machine, but the training runs on others; give the address of a bucket, such as "
        f"{option}=gs://BUCKET/{pathlib.Path(path).name}."
    )
