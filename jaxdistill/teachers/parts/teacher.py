"""The base classes of teachers' options: of all, with defaults for what a kind does not do, and of those that are a file."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.core import Objective, Precision
from jaxdistill.data import targets
from jaxdistill.data.options import Data
from jaxdistill.data.tokens import TokenStore
from jaxdistill.inference import Embedder


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelContext:
    """Everything besides its own options that a training's model is made from."""

    data: Data
    """The text, and how to read it."""
    student_views: Sequence[str]
    seed: int = 0
    precision: Precision = "auto"
    located: Callable[[str], str] = str
    """Maps the name of a model to its location: an earlier stage is a folder."""
    draft: bool = False
    """Only shapes matter, so no model reads the text: evenly spaced layers, units pruned by their weights and a table of
    zeros stand in for what a student takes from it."""


class TargetInputs(NamedTuple):
    """What stored targets are made from."""

    text: TokenStore
    data: Data
    objective: Objective
    embedders: Sequence[Embedder]
    """Embedders of the models whose vectors are the targets."""
    labellers: Sequence[SentenceModel]
    compute_dtype: DTypeLike
    progress: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teacher:
    """The options of a teacher. A kind overrides what it does differently; everything but `kind` has a default."""

    kind: str
    """The kind of teacher: a file of `jaxdistill/teachers`, or your own class as `my_file.py:MyTeacher`."""

    scores_pairs = False
    """Whether the targets are scores of sentence pairs, and not vectors."""
    of_rows = False
    """Whether targets belong to whole rows of the text's files, so that long rows cannot be split."""
    is_live = False
    """Whether the teacher runs inside the training step."""
    transforms = False
    """Whether targets are whitened or reduced, and so differ from the models' vectors."""
    normalize = True
    """Whether vectors are compared at unit length, see `VectorModel.normalize`."""
    given_by = "model=MODEL"
    """The option that names what gives the targets."""
    dropout = False
    """Whether a live teacher has dropout."""

    @property
    def is_given(self) -> bool:
        """Whether there are any targets."""
        return True

    @property
    def models(self) -> Sequence[str]:
        """Names of its models, as the options give them."""
        return ()

    @property
    def vector_models(self) -> Sequence[str]:
        """Names of the models whose vectors are the targets."""
        return () if self.scores_pairs else self.models

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """Maps an option to its files, which must be the same in all processes."""
        return {}

    @property
    def shown(self) -> Sequence[str]:
        """The teacher's description in a model card if no model gives the vectors."""
        return self.models

    def check(self) -> None:
        """Raises `InputError` for options that exclude each other."""

    def load(self, context: ModelContext) -> tuple[SentenceModel, ...]:
        """The models whose vectors are the targets."""
        return ()

    def labellers(self, context: ModelContext) -> list[SentenceModel]:
        """The models that score the pairs of the text."""
        return []

    def width(self, widths: Sequence[int]) -> int:
        """Width of the targets; 0 if they are not vectors.

        Args:
          widths: the width of each loaded model's vectors.
        """
        return sum(widths)

    def shares(self) -> tuple[float, ...]:
        """The weight of each model; their sum is 1."""
        return (1.0,)

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        """One array per teacher view, with one row per row of the text; empty if targets are not stored."""
        return ()

    def joined(self, vectors: Sequence[Float[np.ndarray, "n _"]]) -> Float[np.ndarray, "n e"]:
        """Concatenates the models' vectors, weighted by `shares`; a single model's vectors stay unchanged."""
        return vectors[0] if len(vectors) == 1 else targets.joined(vectors, self.shares())


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnFile(Teacher):
    """Your own targets in a file."""

    file: str = ""
    """A `.npy` file, also at `s3://` or `gs://`, with one row per row of `data.text`: its vector, or one score for each of its
    pairs."""

    of_rows = True
    given_by = "file=FILE.npy"

    @property
    def is_given(self) -> bool:
        return bool(self.file)

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        return {"teacher.file": [self.file]}

    @property
    def shown(self) -> Sequence[str]:
        return [self.file]
