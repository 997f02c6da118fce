"""The targets of a run: the teacher's vectors of any sentences, and targets stored for the text."""

import logging
from collections.abc import Sequence

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.cluster import spread
from jaxdistill.config import Config
from jaxdistill.core import Objective, RoleEmbed
from jaxdistill.data import targets
from jaxdistill.data.model_text import tokenised_text
from jaxdistill.data.tokens import TokenStore
from jaxdistill.inference import Embedder
from jaxdistill.teachers.parts.teacher import TargetInputs, Teacher
from jaxdistill.training.setup.sharding import sharded_embedder

log = logging.getLogger(__name__)


class Targets:
    """The targets: live, stored, or the user's own."""

    def __init__(
        self,
        config: Config,
        objective: Objective,
        *,
        teachers: Sequence[SentenceModel],
        labellers: Sequence[SentenceModel],
        store: TokenStore,
        compute_dtype: DTypeLike,
        progress: bool,
        absent: bool = False,
    ):
        """`absent`: for a plan, which needs shapes alone. No model computes; zeros without memory stand in for its targets."""
        self.text, self.views = store, tuple(objective.teacher_views)
        self.scored = objective.scored
        """Columns whose pairs have labels: the first column with each of the others."""
        self.store: TokenStore | None = None
        """Tokens for a live teacher."""
        self.arrays: tuple[targets.Stored, ...] = ()
        """Stored targets, one array per teacher view; empty for a live teacher."""
        # Only this process's devices: each process makes its own part of stored targets without waiting for others.
        self.embedders = [sharded_embedder(teacher, config.run, compute_dtype=compute_dtype) for teacher in teachers]
        embed = joint_embed(self.embedders, config.teacher)
        self.embed: RoleEmbed | None = spread.over_processes(embed) if embed else None
        """Computes the targets of any sentences, divided among the processes; None without a teacher model."""
        self.width = 0
        """Width of the targets; 0 without a teacher or with labels."""
        if not self.views:
            return
        if objective.reads:
            self.width = sum(embedder.width for embedder in self.embedders)
            return
        self.width = config.teacher.width([embedder.width for embedder in self.embedders])
        if config.teacher.is_live:
            length, model = teachers[0].max_length, teachers[0]
            self.store = tokenised_text(
                config.data, model, self.views, max_length=length, chunking=store.chunking, progress=progress
            )
        elif absent and config.teacher.models:
            columns = len(objective.scored) - 1 if config.teacher.scores_pairs else self.width
            self.arrays = (np.broadcast_to(np.float32(0), (store.rows, columns)),) * len(self.views)
        else:
            inputs = TargetInputs(
                store,
                config.data,
                objective,
                self.embedders,
                labellers=labellers,
                compute_dtype=compute_dtype,
                progress=progress,
            )
            self.arrays = config.teacher.stored(inputs)

    @property
    def column(self) -> str:
        """The column of the text in the teacher's first view."""
        return self.views[0] if self.views and self.views[0] in self.text.columns else "text"

    def rows(self, rows: Integer[np.ndarray, " n"]) -> Float[np.ndarray, "n e"]:
        """The targets of some rows of the text, for the first teacher view."""
        if self.arrays:
            return np.asarray(self.arrays[0][rows], np.float32)
        assert self.embed is not None  # without a teacher model, `arrays` has its vectors
        log.info("teacher embeddings of %d sentences", len(rows))
        return self.embedded(self.embed, rows)

    def embedded(self, embed: RoleEmbed, rows: Integer[np.ndarray, " n"]) -> Float[np.ndarray, "n e"]:
        """The vectors that `embed` gives to the sentences of some rows."""
        texts = [self.text.text(self.column, row) for row in rows]
        return embed(texts, role=self.text.roles(self.column, rows))


def joint_embed(embedders: Sequence[Embedder], teacher: Teacher) -> RoleEmbed | None:
    """A function that gives the teachers' joined vectors, see `data.targets.joined`; a single teacher's stay unchanged."""
    if len(embedders) < 2:
        return embedders[0].encode if embedders else None

    def embed(sentences: Sequence[str], *, role: str | Sequence[str] = "") -> Float[np.ndarray, "n e"]:
        return teacher.joined([embedder.encode(sentences, role=role) for embedder in embedders])

    return embed
