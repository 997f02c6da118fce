"""Checks stages without training: finds mistakes in later stages before the first one runs, and mistakes in a training
before a launcher pays for machines."""

import functools
import logging
import pathlib
from collections.abc import Callable, Iterator, Sequence

import jax
from jax.sharding import Mesh

from jaxdistill.checkpoints.locate import locate
from jaxdistill.cluster import mesh as meshes
from jaxdistill.config import Config
from jaxdistill.core import InputError
from jaxdistill.data import hub, sources
from jaxdistill.data.sources import split_specs
from jaxdistill.encoders.architecture import Pooling
from jaxdistill.files import buckets, is_remote, parts
from jaxdistill.reading import text_portions
from jaxdistill.training.setup.build import checked_setup
from jaxdistill.training.setup.dev import read_own_sets
from jaxdistill.workdir.folder import INPUTS, STAGE_NAME, TEXT_FILES, made_of, read_note, stage_folder

HERE, ELSEWHERE = "here", "elsewhere"
"""Where a launcher starts a training: on machines that see this one's files, or that only see buckets and hubs."""

log = logging.getLogger(__name__)


def check_launch(stages: Sequence[Config], workdir: str, where: str) -> None:
    """Raises `InputError` for options, text and models with which the training would fail at its start.

    Loads no model, reads no text, and downloads nothing. Does not check addresses of buckets that cannot be reached from here.

    Args:
      where: `HERE` or `ELSEWHERE`.
    """
    if is_remote(workdir):
        buckets.checked_address(workdir)
    elif where == ELSEWHERE:
        raise _local("--workdir", workdir)
    mesh = meshes.make_mesh(devices=jax.devices()[:1])  # the training's own devices are not known here
    for number, stage in enumerate(stages, start=1):
        try:
            _check_options(stage, mesh)
            for option in ("data.text", "data.exclude", "evals.agreement"):
                section, _, name = option.partition(".")
                for spec in split_specs(getattr(getattr(stage, section), name)):
                    _check_place(option, spec, where)
            for option, name in _models(stage):
                _check_place(option, name, where)
        except InputError as error:
            raise InputError(f"stage {number}: {error}" if len(stages) > 1 else str(error)) from None


def _check_place(option: str, spec: str, where: str) -> None:
    """Raises `InputError` if the text or a model is missing where the training will read it."""
    is_model = option.endswith(".model")
    if is_remote(spec):
        buckets.checked_address(spec)
        try:
            bucket = buckets.Bucket(spec)
            found = bucket.versions() if is_model else bucket.matching()
        except buckets.MissingObject as error:
            raise InputError(f"{option}: {error}") from None
        except InputError as error:
            log.warning("%s is not checked: %s", option, error)
            return
        if not found:
            raise InputError(f"{option}: no object matches {spec}; check the address, and quote the glob.")
    elif is_model and not (spec.startswith(("package:", ".", "/", "~")) or pathlib.Path(spec).exists()):
        return  # a name on the hub
    elif where == HERE and is_model:
        locate(spec)
    elif where == HERE:
        _check_source(option, spec)
    elif not (hub.is_hub(spec) or spec.startswith("package:")):
        raise _local(f"--config.{option}", spec)


def _local(option: str, path: str) -> InputError:
    return InputError(
        f"{option}={path} is on this machine, but the training runs on others; give the address of a bucket, such as "
        f"{option}=gs://BUCKET/{pathlib.Path(path).name}."
    )


def check_stages(stages: Sequence[Config], finished: Sequence[bool], workdir: pathlib.Path) -> None:
    """Raises `InputError`, with the number of the stage, for options, files and models that cannot be used.

    The text of a finished stage must be unchanged, and no later stage may depend on the student of an unfinished one.
    """
    digest = functools.cache(text_digest)  # stages share texts
    for number, (stage, done) in enumerate(zip(stages, finished, strict=True), start=1):
        try:
            if done:
                refuse_changed_text(stage, stage_folder(workdir, number), digest)
            else:
                _check(stage)
                _refuse_descendants(workdir, number)
        except InputError as error:
            raise InputError(f"stage {number}: {error}") from None


def _check_options(stage: Config, absent: Mesh | None = None) -> None:
    parts.use(stage.run.parts)
    checked_setup(stage, absent)
    stage.student.check(has_teacher=bool(stage.teacher.models) and not stage.teacher.scores_pairs)
    if stage.student.pooling:
        Pooling.parse(stage.student.pooling)
    specs = split_specs(stage.data.text)
    sources.check_given(specs)
    sources.check_weights(stage.data.weights, sources=len(specs))


def _models(stage: Config) -> Iterator[tuple[str, str]]:
    """Yields (option, model) for the models that must exist before the chain is trained."""
    for option, name in (
        *(("teacher.model", name) for name in stage.teacher.models),
        ("student.model", stage.student.model),
    ):
        if name not in ("", "teacher") and not STAGE_NAME.fullmatch(name):
            yield option, name


def _check(stage: Config) -> None:
    _check_options(stage)
    specs = split_specs(stage.data.text)
    for portion in text_portions(stage.data):
        next(sources.rows(specs[portion.source], portion.columns, stage.data.max_line_bytes), None)
    for option, given in (("data.exclude", stage.data.exclude), ("evals.agreement", stage.evals.agreement)):
        for spec in split_specs(given):
            _check_source(option, spec)
    read_own_sets(stage)
    for _, name in _models(stage):
        locate(name)


def _check_source(option: str, spec: str) -> None:
    if not hub.is_hub(spec):
        try:
            sources.source_files(spec)
        except InputError as error:
            raise InputError(f"{option}: {error}") from None


def text_digest(text: str, own_parts: str) -> str:
    """Digest of the content of `data.text`; the user's own readers (`run.parts`) are part of it."""
    parts.use(own_parts)
    return sources.content_digest(split_specs(text))


def refuse_changed_text(stage: Config, folder: pathlib.Path, digest: Callable[[str, str], str]) -> None:
    """Raises `InputError` if the text of a stage has changed since the training in `folder` read it.

    Args:
      digest: `text_digest`, or a cache of it.
    """
    noted = read_note(folder / INPUTS).get(TEXT_FILES)
    if noted and noted != digest(stage.data.text, stage.run.parts):
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
