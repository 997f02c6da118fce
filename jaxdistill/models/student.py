"""Base classes for the options of students: of any student, and of students with a head or with prompts."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from jaxdistill.core import Count, CountOrNone, InputError, refuse
from jaxdistill.data.text import split_specs
from jaxdistill.models import surgery
from jaxdistill.models.checkpoints.model import SentenceModel, check_size, load_model
from jaxdistill.models.teacher import ModelContext, Prompting, Teacher
from jaxdistill.models.trim import trimmed_to_text

RIDGE = 0.01  # penalty on the squared kernel, relative to the mean variance of the student's dimensions

Examples = Callable[[SentenceModel], tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n e"]]]
"""Maps a model to two arrays: its vectors of some training sentences, as they are before its Normalize module, and their targets."""

log = logging.getLogger(__name__)


class StudentInputs(NamedTuple):
    """What a student is made from, besides its options."""

    context: ModelContext
    teacher: Teacher  # the options of the teacher
    teachers: Sequence[SentenceModel]  # whose vectors are the targets; `student.model=teacher` means the first one

    def key(self, part: str) -> jax.Array:
        """The random key for initial values of the `body`, the `head` or the embedding `tables`."""
        # The constant makes them independent of the training's key, which has the same seed.
        keys = jax.random.split(jax.random.key(self.context.seed ^ 0x57D), 3)
        return keys[("body", "head", "tables").index(part)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Student:
    """The options of a student. A kind overrides what it does differently; everything but `kind` and `make` has a default."""

    kind: str
    """The kind of student: one of `jaxdistill/models/students`, or your own class as `my_file.py:MyStudent`."""
    model: str = dataclasses.field(default="", kw_only=False)
    """Folder, also at `s3://` or `gs://`, `package:NAME/PATH` or hub name. `teacher`: starts from the teacher's
    weights. `previous` or `stage2`, in a later stage: the best student of an earlier stage."""
    pooling: str = ""
    """Pooling of token states, such as `mean` or `cls`; empty: the checkpoint's, or the teacher's if `model` is
    `teacher`. Required if the checkpoint states none."""
    max_length: CountOrNone = 0
    """Maximum tokens per sentence that the student reads after training, in evaluations and as exported, up to its
    number of positions. 0: as many as in training; a static student reads all."""
    trim: str = ""
    """Reduces the tokenizer of `model` to the tokens of this text (sources as in `data.text`; all of `data.columns` are read), their single
    characters and special tokens. This text is tokenised as before, other text into more tokens. Empty: the whole tokenizer."""

    reads_pairs = False
    """Whether it is a cross-encoder, which has no vectors and no prompts."""
    export_prompt = False
    """Whether the export's default prompt is the one used in training."""
    dims = ()
    """Nested widths."""

    def make(self, inputs: StudentInputs) -> SentenceModel:
        """The untrained student, with its head."""
        raise NotImplementedError

    def fitted(self, student: SentenceModel, examples: Examples) -> SentenceModel:
        """The untrained student, fitted to the targets of `examples` if the options ask for it."""
        return student

    def loaded(self, inputs: StudentInputs) -> SentenceModel:
        """The model that the student starts from, with the options' pooling, prompts and trimmed tokenizer. It lacks its Normalize module
        if `teacher.normalize` is False. Raises `InputError` if no model is named."""
        context = inputs.context
        if not self.model or (self.model == "teacher" and not inputs.teachers):
            raise InputError(f"student.model={self.model!r} names no model; give a checkpoint, or set teacher.model.")
        if self.model != "teacher":
            model = load_model(context.located(self.model), pooling=self.pooling)
        else:
            model = surgery.with_pooling(inputs.teachers[0], self.pooling) if self.pooling else inputs.teachers[0]
        if not getattr(inputs.teacher, "normalize", True):  # an option of kinds with vectors alone
            model = model.as_pooled()
        if isinstance(self, Prompting):
            model = self.prompted(context.data, model, "student")
        specs = split_specs(self.trim)
        return trimmed_to_text(specs, context.data, model) if specs else model

    def check(self, teacher: Teacher) -> None:
        """Raises `InputError` for options that exclude each other, or do not go with the teacher's."""

    def in_training(self, student: SentenceModel) -> SentenceModel:
        """The student with its dropout rates for training."""
        return student

    def evaluated(self, student: SentenceModel) -> SentenceModel:
        """The trained student as it is evaluated: with or without its head, and with the prompt of the training."""
        return student

    def exported(self, student: SentenceModel) -> SentenceModel:
        """The evaluated student as it is exported: with the checkpoint's default prompt, unless `export_prompt` is set."""
        prompt = student.default_prompt if self.export_prompt else student.checkpoint_prompt
        return dataclasses.replace(student, default_prompt=prompt)

    def with_length(self, student: SentenceModel, trained: int) -> SentenceModel:
        """The student with its maximum length after training; `trained` is the maximum in training."""
        architecture = student.definition.architecture
        default = student.max_length if architecture.is_static else trained  # a static student reads text of any length
        return student.with_length(min(self.max_length or default, architecture.longest))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Headed(Student):
    """A student with sentence vectors, optionally mapped to the teacher's width by a head."""

    head: Literal["none", "tanh", "linear"] = "none"
    """`none`, or a dense layer to the teacher's width: `tanh` (ConGen) or `linear`."""
    head_init: Literal["uniform", "normal", "identity", "fitted"] = "uniform"
    """Initial values of the head. `uniform`: PyTorch's default (ConGen). `normal`: standard deviation 0.02 (SimCSE).
    `identity`: for a student that starts aligned with the teacher. `fitted`: least squares from the student's vectors to
    the targets of up to 4,096 sentences of the text, for a linear head on another model than the teacher."""
    keep_head: bool = True
    """Evaluate and export the student with its head, as ConGen does. False: without it."""
    dims: tuple[Count, ...] = ()
    """Nested widths to train besides the full width, such as (64, 128, 256) (Matryoshka)."""
    dims_targets: Literal["truncated", "projected"] = "projected"
    """Target of a nested width. `truncated`: the teacher's vectors cut to that width. `projected`: the teacher's full
    vectors, reached through one matrix per width that is not exported."""

    def with_head(self, inputs: StudentInputs, model: SentenceModel) -> SentenceModel:
        """The model with its untrained head. The head is as wide as the targets; without targets, as the model's vectors (SimCSE)."""
        if self.head != "none":
            init = "uniform" if self.head_init == "fitted" else self.head_init  # `fitted` replaces it later
            targets = inputs.teacher.width([teacher.definition.embedding_width for teacher in inputs.teachers])
            width = targets or model.definition.embedding_width
            activation = "tanh" if self.head == "tanh" else "identity"
            model = surgery.add_head(model, width, key=inputs.key("head"), activation=activation, init=init)
        for width in self.dims:
            check_size("student.dims", width, model.definition.embedding_width, "the width of the student's vectors")
        return model

    def check(self, teacher: Teacher) -> None:
        vector_models = 0 if teacher.scores_pairs else len(teacher.models)
        fits_head = self.head_init == "fitted" and self.head != "none"
        refuse([
            (self.dims and self.head != "none" and not self.keep_head,
             f"student.dims={self.dims} trains the head's vectors, but student.keep_head=False drops it; keep it, or set student.dims='()'."),
            (self.dims and vector_models > 1 and self.dims_targets == "truncated",
             "student.dims: the first dimensions of several teachers' vectors are the first teacher's; set "
             "--config.student.dims_targets=projected."),
            (fits_head and (self.head != "linear" or not vector_models),
             "student.head_init=fitted maps to a teacher's vectors by a linear head; set --config.student.head=linear and name "
             "--config.teacher.model, or set --config.student.head_init=uniform."),
        ])  # fmt: skip

    def fitted(self, student: SentenceModel, examples: Examples) -> SentenceModel:
        if self.head == "none" or self.head_init != "fitted":
            return student
        vectors, target_vectors = examples(surgery.drop_head(student))
        last = len(student.definition.dense) - 1  # the head follows the model's own dense layers
        head = {f"dense/{last}/{leaf}": array for leaf, array in affine_map(vectors, target_vectors).items()}
        return student.with_params(student.params | head)

    def evaluated(self, student: SentenceModel) -> SentenceModel:
        return student if self.keep_head or self.head == "none" else surgery.drop_head(student)


def affine_map(vectors: Float[np.ndarray, "n d"], targets: Float[np.ndarray, "n e"]) -> dict[str, np.ndarray]:
    """`kernel` and `bias` of the ridge regression that maps a student's pooled vectors to their targets."""
    # float64: a Gram matrix squares the condition number.
    centre = vectors.mean(axis=0, dtype=np.float64)
    centred = vectors - centre
    gram = centred.T @ centred
    penalty = RIDGE * np.trace(gram) / len(gram) or 1.0  # if all rows are equal, the trace is 0
    products = centred.T @ (targets - targets.mean(axis=0, dtype=np.float64))
    kernel = np.linalg.solve(gram + penalty * np.eye(len(gram)), products)
    bias = targets.mean(axis=0) - centre @ kernel
    affine = {"kernel": kernel.astype(np.float32), "bias": bias.astype(np.float32)}
    mapped = vectors @ affine["kernel"] + affine["bias"]
    cosines = np.sum(mapped * targets, axis=1) / np.linalg.norm(mapped, axis=1) / np.linalg.norm(targets, axis=1)
    log.info("student: fitted to %s targets; mean cosine to the teacher %.3f", f"{len(vectors):,}", cosines.mean())
    return affine


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompted(Prompting, Student):
    """A student whose sentences can have prompts."""

    export_prompt: bool = False
    """Make `prompt` the export's default, which sentence-transformers also prepends to queries and documents. False: the checkpoint's."""
