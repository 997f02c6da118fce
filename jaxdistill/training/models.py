"""What a student is trained with: itself, untrained, the length that it reads, and the targets that it learns."""

import dataclasses
import logging
import pathlib
from collections.abc import Sequence

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.config.options import Config
from jaxdistill.core import Objective, RoleEmbed
from jaxdistill.core.cluster import processes
from jaxdistill.core.files import MARK, replacing
from jaxdistill.core.ops.dense import dtype_of
from jaxdistill.data import targets
from jaxdistill.data.chunks import bare
from jaxdistill.data.tokens import TokenStore
from jaxdistill.models.checkpoints.folder import check_exportable, save
from jaxdistill.models.checkpoints.model import SentenceModel, load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.models.model_text import SAMPLE, columns_of_views, evenly_sampled, prompted_rows, tokenised_text
from jaxdistill.models.student import StudentInputs
from jaxdistill.models.teacher import Labeller, ModelContext, TargetInputs, Teacher, check_roles
from jaxdistill.training.sharding import sharded_embedder
from jaxdistill.training.workdir.folder import INPUTS, LENGTH, STUDENT, read_note, stage_export

log = logging.getLogger(__name__)

WHOLE = 0.99
"""Fraction of rows that a chosen length must not truncate."""
STEP, MAX_LENGTH = 16, 512
"""A chosen length is a multiple of `STEP`, and at most `MAX_LENGTH`, because attention's work grows with its square."""
MAX_TRUNCATED = 0.05
"""Fraction of truncated sentences in a column above which a run warns."""
FITTING_SAMPLE = 4096
"""Sentences to which a student is fitted: ten times the numbers of a usual vector."""


def context_of(config: Config, workdir: pathlib.Path, *, draft: bool = False) -> ModelContext:
    """The context in which a run's models are made: data and run options, views, earlier stages."""
    return ModelContext(
        data=config.data,
        student_views=config.objective.student_views,
        seed=config.run.seed,
        precision=config.run.precision,
        located=lambda name: stage_export(name, workdir),
        draft=draft,
    )


def make_student(
    config: Config, teachers: Sequence[SentenceModel], workdir: pathlib.Path, *, draft: bool = False
) -> SentenceModel:
    """The untrained student, with the similarity by which its training compares vectors.

    Args:
      teachers: models whose vectors are the targets; `student.model=teacher` means the first one.
      draft: see `ModelContext.draft`.

    Raises:
      InputError: it cannot be made or exported.
    """
    inputs = StudentInputs(context_of(config, workdir, draft=draft), config.teacher, teachers)
    student = config.student.make(inputs)
    if not (config.teacher.scores_pairs or config.teacher.is_outside):
        check_roles(config.data, [student, *teachers])
    similarity = config.objective.similarity or (teachers[0] if teachers else student).definition.similarity
    # Targets of several teachers have unit length, transformed ones other lengths than the teacher's.
    if len(teachers) > 1 or config.teacher.transforms:
        similarity = "cosine"
    by_dot = [model.source for model in (*teachers, student) if model.definition.similarity == "dot"]
    if by_dot and similarity == "cosine":
        log.warning(
            "%s: its checkpoint compares by dot product, but this training by cosine, by which the student is evaluated and exported",
            by_dot[0],
        )
    student = dataclasses.replace(student, definition=dataclasses.replace(student.definition, similarity=similarity))
    check_exportable(config.student.evaluated(student).definition)
    return student


def write_student(student: SentenceModel, workdir: pathlib.Path) -> None:
    """Writes the untrained student to the workdir, from where resumed runs, exports and means of checkpoints read it."""
    if (workdir / STUDENT).is_dir():
        return
    facts = {"source": student.source, "default_prompt": student.checkpoint_prompt}
    facts |= {"card": [student.base_models, student.languages]}
    with replacing(workdir / STUDENT, facts) as folder:
        save(student, folder, keeps_form=True)


def read_student(config: Config, workdir: pathlib.Path) -> SentenceModel | None:
    """The untrained student in the workdir; None before the run has written it."""
    folder = workdir / STUDENT
    if not all(processes.gathered(folder.is_dir())):  # some may have no copy of the workdir
        return None
    facts = read_note(folder / MARK)
    student = load_model(str(folder), plugins=config.run.plugins)
    base_models, languages = facts["card"]
    return dataclasses.replace(
        student,
        source=facts["source"],
        checkpoint_prompt=facts["default_prompt"],
        base_models=tuple(base_models),
        languages=tuple(languages),
    )


def training_length(
    config: Config, student: SentenceModel, teachers: Sequence[SentenceModel], workdir: pathlib.Path
) -> int:
    """Maximum tokens per sentence: `data.max_length` or `data.chunk_tokens` if set; otherwise the length that the run in the
    workdir began with, or a new one that suits the text. At most what all that read the student's tokens can read.

    Args:
      teachers: models whose vectors are the targets.
    """
    readers = [student, *(teachers if config.objective.reads else ())]
    longest = min(model.definition.architecture.longest for model in readers)
    length = config.data.max_length or config.data.chunk_tokens
    length = length or int(processes.gathered(read_note(workdir / INPUTS).get(LENGTH, 0))[0])
    if not length:
        most = min(MAX_LENGTH, longest, max((teacher.max_length for teacher in teachers), default=MAX_LENGTH))
        rows = evenly_sampled(prompted_rows(config.data, config.objective.student_views, student), SAMPLE)
        whole = dataclasses.replace(student, tokenizer=bare(student.tokenizer))  # which does not truncate
        if student.definition.reads_pairs:
            counts = [len(one) for one in whole.encodings([(row[0], row[1]) for row in rows if len(row) == 2])]
        else:
            encodings = iter(whole.encodings([text for row in rows for text in row]))
            counts = [max(len(next(encodings)) for _ in row) for row in rows if row]
        quantile = int(np.quantile(counts, WHOLE, method="higher")) if counts else 1
        fitting = -(-quantile // STEP) * STEP
        length = processes.gathered(min(fitting, most))[0]
        limit = f"; a choice is at most {most} here" if fitting > most else ""
        message = "data.max_length: %d, because %.0f %% of the rows have at most %d tokens%s"
        log.info(message, length, 100 * WHOLE, fitting, limit)
    return min(length, longest)


def truncation_warnings(objective: Objective, student: SentenceModel, store: TokenStore) -> list[str]:
    """A line for each column of the student's text with many truncated sentences."""
    longest, lines = student.definition.architecture.longest, []
    for column in columns_of_views(store, objective.student_views):
        if (share := store.truncated(column)) > MAX_TRUNCATED:
            remedy = f"set --config.data.max_length (at most {longest}) to read more of them"
            if longest <= store.max_length:
                remedy = f"the student reads no more; --config.data.chunk_tokens={longest} splits long texts instead"
            lines.append(
                f"warning: data.max_length={store.max_length} truncates {share:.0%} of the sentences of column {column}; {remedy}"
            )
    return lines


class Targets:
    """The targets: live, stored, or the user's own.

    Args:
      absent: for a plan, which needs shapes alone. No model computes; zeros without memory stand in for its targets.
    """

    def __init__(
        self,
        config: Config,
        objective: Objective,
        *,
        teachers: Sequence[SentenceModel],
        labellers: Sequence[Labeller],
        store: TokenStore,
        compute_dtype: DTypeLike,
        progress: bool,
        absent: bool = False,
    ):
        self.text, self.views, teacher = store, tuple(objective.teacher_views), config.teacher
        self.scored = objective.scored
        """Columns whose pairs have labels: the first column with each of the others."""
        self.store: TokenStore | None = None
        """Tokens for a live teacher."""
        self.arrays: tuple[targets.Stored, ...] = ()
        """Stored targets, one array per teacher view; empty for a live teacher."""
        # Only this process's devices: each process makes its own part of stored targets without waiting for others.
        embedders = [sharded_embedder(model, config.run, compute_dtype=compute_dtype) for model in teachers]
        embed = joint_embed(embedders, teacher)
        self.embed: RoleEmbed | None = processes.over_processes(embed) if embed else None
        """Computes the targets of any sentences, divided among the processes; None without a teacher model."""
        self.width = 0
        """Width of the targets; 0 without a teacher or with labels."""
        if not self.views:
            return
        self.width = teacher.width([embedder.width for embedder in embedders])
        if objective.reads:  # the teacher reads the student's tokens
            return
        if teacher.is_live:
            options = {"max_length": teachers[0].max_length, "chunking": store.chunking, "progress": progress}
            self.store = tokenised_text(config.data, teachers[0], self.views, **options)
        elif absent and (teacher.models or teacher.is_outside):
            columns = len(objective.scored) - 1 if teacher.scores_pairs else self.width
            self.arrays = (np.broadcast_to(np.float32(0), (store.rows, columns)),) * len(self.views)
        else:
            inputs = TargetInputs(
                store, config.data, objective, embedders, labellers=labellers, compute_dtype=compute_dtype, progress=progress
            )  # fmt: skip
            self.arrays = teacher.stored(inputs)

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

    def fitted(self, config: Config, student: SentenceModel, trained: Integer[np.ndarray, " n"]) -> SentenceModel:
        """The untrained student, fitted to the targets of evenly spaced rows among those that it will be trained on."""

        def examples(model: SentenceModel) -> tuple[np.ndarray, np.ndarray]:
            rows = trained[np.unique(np.linspace(0, len(trained) - 1, FITTING_SAMPLE, dtype=np.int64))]
            embedder = Embedder(model.as_pooled(), compute_dtype=dtype_of(config.run.precision))
            return self.embedded(embedder.encode, rows), self.rows(rows)

        return config.student.fitted(student, examples) if self.width else student


def joint_embed(embedders: Sequence[Embedder], teacher: Teacher) -> RoleEmbed | None:
    """A function that gives the teachers' joined vectors, see `data.targets.joined`; a single teacher's stay unchanged."""
    if len(embedders) < 2:
        return embedders[0].encode if embedders else None

    def embed(sentences: Sequence[str], *, role: str | Sequence[str] = "") -> Float[np.ndarray, "n e"]:
        return teacher.joined([embedder.encode(sentences, role=role) for embedder in embedders])

    return embed
