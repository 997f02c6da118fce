"""The teacher of a run: its model, or the models that label, and the targets that they give."""

import logging
import pathlib
from collections.abc import Sequence
from functools import partial

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.config import Config
from jaxdistill.core import InputError, Objective
from jaxdistill.data import targets, tokenize
from jaxdistill.data.sources import split_specs
from jaxdistill.encoders import surgery
from jaxdistill.encoders.model import SentenceModel, labels_of, load_model
from jaxdistill.inference import Embedder
from jaxdistill.paths import cache_folder
from jaxdistill.training import labels
from jaxdistill.training.prompts import refuse_role_prompts, with_role_prompts
from jaxdistill.training.sharding import sharded_embedder
from jaxdistill.training.text import check_reads, tokenised_text
from jaxdistill.training.workdir import stage_export

log = logging.getLogger(__name__)


def load_teacher(config: Config, workdir: pathlib.Path) -> SentenceModel | None:
    """The teacher's model; None for given vectors, for labels, and without a teacher."""
    spec = config.teacher
    if not spec.model or spec.model.startswith("vectors:") or spec.targets == "labels":
        if spec.dims:
            raise InputError(f"teacher.dims={spec.dims} needs a teacher model that gives vectors; set it to 0.")
        if spec.targets != "labels":
            refuse_role_prompts(spec, "teacher", "needs a teacher model")
        return None
    source = stage_export(spec.model, workdir)
    model = load_model(source, pooling=spec.pooling, max_length=spec.max_length, prompt=spec.prompt, frozen=True)
    model = with_role_prompts(config, model, "teacher")
    if model.definition.reads_pairs or not spec.dims:
        return model
    try:
        return surgery.first_numbers(model, spec.dims)
    except InputError as error:
        raise InputError(f"teacher.{error}") from None


def load_labellers(config: Config, workdir: pathlib.Path) -> list[SentenceModel]:
    """The models that score the pairs; empty unless `teacher.targets` is `labels`, or if scores are given. Cross-encoders keep
    their form."""
    spec = config.teacher
    if spec.targets != "labels" or spec.model.startswith("vectors:"):
        return []
    names = [stage_export(name, workdir) for name in split_specs(spec.model)]
    for name in names:
        count = labels_of(name)
        if count > 1:
            raise InputError(
                f"teacher.model: {name} is a classifier with {count} labels, which does not say how alike two sentences are; "
                "name sentence encoders, or cross-encoders, which have one label."
            )
        if count and spec.pooling:
            raise InputError(
                f"teacher.pooling={spec.pooling!r} would make a sentence encoder of {name}, which is a cross-encoder; leave it "
                "empty (--config.teacher.pooling=) and it scores the pairs."
            )
    options = {"pooling": spec.pooling, "max_length": spec.max_length, "prompt": spec.prompt}
    return [with_role_prompts(config, load_model(name, **options), "teacher") for name in names]


def whitened(config: Config, array: Float[np.ndarray, "rows e"] | targets.Selected) -> targets.Stored:
    """The targets as `teacher.whiten` and `teacher.components` want them."""
    spec = config.teacher
    if spec.components > array.shape[1]:
        raise InputError(f"teacher.components={spec.components} is above the {array.shape[1]} numbers of the targets.")
    if not (spec.whiten or spec.components):
        return array
    return targets.Whitened(array, power=spec.whiten, components=spec.components)


def refuse_live(config: Config) -> None:
    """Raises `InputError` for options that only stored targets have."""
    if config.teacher.whiten or config.teacher.components:
        raise InputError("teacher.whiten and teacher.components need stored targets; set teacher.targets=store.")


class Targets:
    """The teacher's embeddings: live, stored, or the user's own vectors.

    With `computed=False`, stored targets and labels are zeros that take no time and no memory, for their shapes.
    """

    def __init__(
        self,
        config: Config,
        objective: Objective,
        *,
        teacher: SentenceModel | None,
        labellers: Sequence[SentenceModel],
        store: tokenize.TokenStore,
        compute_dtype: DTypeLike,
        progress: bool,
        computed: bool = True,
    ):
        self.text, self.teacher, self.views = store, teacher, tuple(objective.teacher_views)
        self.store: tokenize.TokenStore | None = None
        """Tokens for a live teacher."""
        self.arrays: tuple[targets.Stored, ...] = ()
        """One array of targets for each teacher view, where they are stored."""
        # On the devices of this process: processes that share a cache folder take turns behind its lock.
        self.embedder = sharded_embedder(teacher, config.run, compute_dtype=compute_dtype) if teacher else None
        self.width = 0
        """Width of the targets; 0 without a teacher or with labels."""
        if not self.views:
            return
        for model in labellers:
            check_reads(config.data, model, self.views, store)
        if labellers and not computed:
            self.arrays = (_zeros(store.rows, 1),)
            return
        if labellers:
            folder = cache_folder(config.data.cache_folder) / "labels"
            made = labels.labels(labellers, store, folder, compute_dtype=compute_dtype, progress=progress)
            self.arrays = (made,)
            return
        if config.teacher.targets == "labels":
            self.arrays = (own_scores(config.teacher.model, store),)
            return
        if teacher is not None:
            self.width = teacher.definition.embedding_width
        if objective.reads:
            return
        if teacher is None or self.embedder is None:
            array = targets.checked_own_vectors(config.teacher.model, store.input_rows)
            self.arrays = (whitened(config, targets.Selected(array, store.input_row)),) * len(self.views)
            self.width = self.arrays[0].shape[1]
        elif config.teacher.targets == "store":
            check_reads(config.data, teacher, self.views, store)
            self.arrays = tuple(
                whitened(config, self._stored(self.embedder, config, view, compute_dtype, progress))
                if computed
                else _zeros(store.rows, config.teacher.components or self.width)
                for view in self.views
            )
            self.width = self.arrays[0].shape[1]
        else:
            refuse_live(config)
            length = teacher.max_length
            self.store = tokenised_text(
                config.data, teacher, self.views, max_length=length, chunking=store.chunking, progress=progress
            )

    def _stored(
        self, embedder: Embedder, config: Config, view: str, compute_dtype: DTypeLike, progress: bool
    ) -> Float[np.ndarray, "rows e"]:
        if view not in self.text.columns:
            raise InputError(
                f"teacher.targets='store' needs a teacher view that is a column of the text ({', '.join(self.text.columns)}); "
                f"{view!r} differs at every step: use teacher.targets='live'."
            )
        name = f"{embedder.model.digest()} {self.text.content_digest} {view} {np.dtype(compute_dtype).name}"
        return targets.cached_vectors(
            cache_folder(config.data.cache_folder) / "targets",
            name,
            partial(embedder.encode, prompt=""),
            self.text.texts(view, embedder.model.role_prompts),
            embedder.width,
            what="teacher targets",
            progress=progress,
        )

    def rows(self, rows: Integer[np.ndarray, " n"]) -> Float[np.ndarray, "n e"]:
        """The teacher's embeddings of some rows of the text, for the first teacher view."""
        if self.arrays:
            return np.asarray(self.arrays[0][rows], np.float32)
        view = self.views[0] if self.views and self.views[0] in self.text.columns else "text"
        assert self.embedder is not None  # without a teacher model, `arrays` has its vectors
        log.info("teacher embeddings of %d reserved sentences", len(rows))
        texts = [self.text.text(view, row) for row in rows]
        return self.embedder.encode(texts, role=self.text.roles(view, rows))


def _zeros(rows: int, width: int) -> Float[np.ndarray, "rows e"]:
    """Zeros that take no memory."""
    return np.broadcast_to(np.float32(0), (rows, width))


def own_scores(spec: str, store: tokenize.TokenStore) -> targets.Selected:
    """The user's own score of each pair; raises `InputError` for a file of vectors."""
    array = targets.checked_own_vectors(spec, store.input_rows)
    if array.shape[1] != 1:
        raise InputError(
            f"teacher.model={spec} has {array.shape[1]} numbers a row; with teacher.targets=labels it holds one score per pair, "
            "in an array of shape [rows, 1]."
        )
    return targets.Selected(array, store.input_row)
