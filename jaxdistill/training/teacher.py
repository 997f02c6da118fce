"""The teachers of a run: the models of the targets, or those that label, and the targets that they give."""

import dataclasses
import logging
import pathlib
from collections.abc import Sequence
from functools import partial

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.config import Config, Teacher
from jaxdistill.core import SECOND, InputError, Objective, RoleEmbed
from jaxdistill.data import spread, targets, tokenize
from jaxdistill.data.sources import TEXT
from jaxdistill.encoders import surgery
from jaxdistill.encoders.model import SentenceModel, labels_of, load_model
from jaxdistill.inference import Embedder
from jaxdistill.paths import cache_folder
from jaxdistill.training import labels
from jaxdistill.training.prompts import refuse_role_prompts, with_role_prompts
from jaxdistill.training.several import each_teacher, names_models, shares_of
from jaxdistill.training.sharding import sharded_embedder
from jaxdistill.training.text import check_reads, tokenised_text
from jaxdistill.training.workdir import stage_export

log = logging.getLogger(__name__)


def load_teachers(config: Config, workdir: pathlib.Path) -> tuple[SentenceModel, ...]:
    """The models whose vectors are the targets; none for given vectors, for labels, and without a teacher."""
    if config.teacher.targets == "labels":
        load_teacher(config, workdir)  # refuses what labels exclude
        return ()
    specs = each_teacher(config.teacher)
    loaded = [load_teacher(dataclasses.replace(config, teacher=spec), workdir) for spec in specs]
    return tuple(teacher for teacher in loaded if teacher is not None)


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
    model = with_role_prompts(config, model if spec.normalize else model.as_pooled(), "teacher")
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
    if spec.targets != "labels" or not names_models(spec):
        return []
    specs = [dataclasses.replace(one, model=stage_export(one.model, workdir)) for one in each_teacher(spec)]
    for one in specs:
        name = one.model
        count = labels_of(name)
        if count > 1:
            raise InputError(
                f"teacher.model: {name} is a classifier with {count} labels, which does not say how alike two sentences are; "
                "name sentence encoders, or cross-encoders, which have one label."
            )
        if count and one.pooling:
            raise InputError(
                f"teacher.pooling={one.pooling!r} would make a sentence encoder of {name}, which is a cross-encoder; leave it "
                "empty (--config.teacher.pooling=) and it scores the pairs."
            )
    return [
        with_role_prompts(
            dataclasses.replace(config, teacher=one),
            load_model(one.model, pooling=one.pooling, max_length=one.max_length, prompt=one.prompt),
            "teacher",
        )
        for one in specs
    ]


def whitened(config: Config, array: targets.Parts | targets.Selected | targets.Joined) -> targets.Stored:
    """The targets as `teacher.whiten` and `teacher.components` want them."""
    spec = config.teacher
    check_components(config, array.shape[1])
    if not (spec.whiten or spec.components):
        return array
    return targets.Whitened(array, power=spec.whiten, components=spec.components)


def check_components(config: Config, width: int) -> None:
    """Raises `InputError` for more principal components than the targets have numbers."""
    components = config.teacher.components
    if components > width:
        raise InputError(
            f"teacher.components={components} is above the {width} numbers of the targets; set --config.teacher.components to "
            f"at most {width}."
        )


def refuse_live(config: Config) -> None:
    """Raises `InputError` for options that only stored targets have."""
    if config.teacher.whiten or config.teacher.components:
        raise InputError("teacher.whiten and teacher.components need stored targets; set teacher.targets=store.")


class Targets:
    """The teachers' embeddings: live, stored, or the user's own vectors.

    With `computed=False`, stored targets and labels are zeros that take no time and no memory, for their shapes.
    """

    def __init__(
        self,
        config: Config,
        objective: Objective,
        *,
        teachers: Sequence[SentenceModel],
        labellers: Sequence[SentenceModel],
        store: tokenize.TokenStore,
        compute_dtype: DTypeLike,
        progress: bool,
        computed: bool = True,
    ):
        self.text, self.views = store, tuple(objective.teacher_views)
        self.scored: Sequence[str] = getattr(objective, "scored", (TEXT, SECOND))
        """Columns of which labels score pairs: the first one's sentence with each of the others'."""
        self.logits: bool = getattr(objective, "logits", False)
        """Whether cross-encoders label with their logits."""
        self._largest: float = getattr(objective, "largest_label", np.inf)  # magnitude of the user's own labels
        self.store: tokenize.TokenStore | None = None
        """Tokens for a live teacher."""
        self.arrays: tuple[targets.Stored, ...] = ()
        """One array of targets for each teacher view, where they are stored."""
        # On the devices of this process: each makes its own part of stored targets, and waits for no other there.
        self.embedders = [sharded_embedder(teacher, config.run, compute_dtype=compute_dtype) for teacher in teachers]
        embed = joint_embed(self.embedders, config.teacher)
        self.embed: RoleEmbed | None = spread.over_processes(embed) if embed else None
        """Gives the targets of any sentences, of which each process computes a part; None without a teacher model."""
        self.width = 0
        """Width of the targets; 0 without a teacher or with labels."""
        if not self.views:
            return
        if config.teacher.targets == "labels":
            of_pairs = self._labels(config, labellers, compute_dtype, progress, computed=computed)
            self.arrays = (of_pairs,)
            return
        self.width = sum(embedder.width for embedder in self.embedders)
        if objective.reads:
            return
        if not teachers:
            array = targets.checked_own_vectors(config.teacher.model, store.input_rows, store.input_row)
            self.arrays = (whitened(config, targets.Selected(array, store.input_row)),) * len(self.views)
            self.width = self.arrays[0].shape[1]
        elif config.teacher.targets == "store":
            check_components(config, self.width)  # before hours of targets
            for teacher in teachers:
                check_reads(config.data, teacher, self.views, store)
            self.arrays = tuple(
                whitened(config, self._stored(config, view, compute_dtype, progress))
                if computed
                else _zeros(store.rows, config.teacher.components or self.width)
                for view in self.views
            )
            self.width = self.arrays[0].shape[1]
        else:
            refuse_live(config)
            length = teachers[0].max_length
            self.store = tokenised_text(
                config.data, teachers[0], self.views, max_length=length, chunking=store.chunking, progress=progress
            )

    def _labels(
        self,
        config: Config,
        labellers: Sequence[SentenceModel],
        compute_dtype: DTypeLike,
        progress: bool,
        *,
        computed: bool,
    ) -> Float[np.ndarray, "rows k"] | targets.Selected:
        if not labellers:
            count = len(self.scored) - 1
            return labels.own_scores(config.teacher.model, config.data, self.text, count=count, largest=self._largest)
        for model in labellers:
            check_reads(config.data, model, self.scored, self.text)
        if not computed:
            return _zeros(self.text.rows, len(self.scored) - 1)
        folder = cache_folder(config.data.cache_folder) / "labels"
        return labels.labels(
            labellers, self.text, folder, columns=self.scored, logits=self.logits, compute_dtype=compute_dtype,
            progress=progress,
        )  # fmt: skip

    def _stored(
        self, config: Config, view: str, compute_dtype: DTypeLike, progress: bool
    ) -> targets.Parts | targets.Joined:
        if view not in self.text.columns:
            raise InputError(
                f"teacher.targets='store' needs a teacher view that is a column of the text ({', '.join(self.text.columns)}); "
                f"{view!r} differs at every step: use teacher.targets='live'."
            )
        of_view = f"{self.text.content_digest} {view} {np.dtype(compute_dtype).name}"
        arrays = [self._of_teacher(embedder, config, view, of_view, progress) for embedder in self.embedders]
        return arrays[0] if len(arrays) == 1 else targets.Joined(arrays, shares_of(config.teacher))

    def _of_teacher(self, embedder: Embedder, config: Config, view: str, of_view: str, progress: bool) -> targets.Parts:
        return targets.cached_vectors(
            cache_folder(config.data.cache_folder) / "targets",
            f"{embedder.model.digest()} {of_view}",
            partial(embedder.encode, prompt=""),
            self.text.texts(view, embedder.model.role_prompts),
            embedder.width,
            what=f"targets of {embedder.model.source}",
            progress=progress,
        )

    @property
    def column(self) -> str:
        """The column of the text that the teacher reads, for the first of its views."""
        return self.views[0] if self.views and self.views[0] in self.text.columns else "text"

    def rows(self, rows: Integer[np.ndarray, " n"]) -> Float[np.ndarray, "n e"]:
        """The teacher's embeddings of some rows of the text, for the first teacher view."""
        if self.arrays:
            return np.asarray(self.arrays[0][rows], np.float32)
        view = self.column
        assert self.embed is not None  # without a teacher model, `arrays` has its vectors
        log.info("teacher embeddings of %d reserved sentences", len(rows))
        texts = [self.text.text(view, row) for row in rows]
        return self.embed(texts, role=self.text.roles(view, rows))


def _zeros(rows: int, width: int) -> Float[np.ndarray, "rows e"]:
    """Zeros that take no memory."""
    return np.broadcast_to(np.float32(0), (rows, width))


def joint_embed(embedders: Sequence[Embedder], spec: Teacher) -> RoleEmbed | None:
    """The vectors of all teachers in one, see `data.targets.joined`; those of a single teacher as they are."""
    if len(embedders) < 2:
        return embedders[0].encode if embedders else None
    shares = shares_of(spec)

    def embed(sentences: Sequence[str], *, role: str | Sequence[str] = "") -> Float[np.ndarray, "n e"]:
        return targets.joined([embedder.encode(sentences, role=role) for embedder in embedders], shares)

    return embed
