"""The types that the layers share. No behaviour lives here.

Axes of the signatures, one meaning for each letter; rarer ones have a name, and `_` differs between the arrays of a list:
`b` examples, `v` student views, `w` teacher views, `e` width of sentence vectors,
`q` queries, `k` keys that they are compared with (rows of the queue, tokens), `c` batches in the queue's ring,
`g` groups, `r` rows of a group, `l` token slots of a row, `t` tokens without regard to rows (`r * l`, or of many sentences),
`n` sentences, of a group (`b * v == g * n`) or of a list, `m` chosen tokens,
`s` layers, `d` width of the layers, `h` attention heads, `f` width of a head, `p` width after pooling,
`i` and `o` inputs and outputs of a dense layer.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, Integer

Array = jax.Array | np.ndarray
MASK_TOKENS = ("[MASK]", "<mask>")
"""Mask tokens of the tokenizers that are supported."""

Params = Mapping[str, Array]
"""Parameters, flat: path such as `transformer/layers/0/attention/query/kernel` to array."""


Split = Literal["train", "dev", "test"]
"""Part of a retrieval set's judgements: for training, for choosing, for reporting."""

Precision = Literal["auto", "float32", "bfloat16"]
"""Precision of matrix products; `auto` is bfloat16 where the hardware multiplies it natively, else float32."""


class InputError(ValueError):
    """Raised for unusable input; programs print its one line and exit with status 2.

    Line breaks and other control characters, which names in a user's files may contain, are escaped.
    """

    def __init__(self, line: str):
        super().__init__("".join(char if char.isprintable() else repr(char)[1:-1] for char in line))


class TemporaryError(InputError):
    """Raised where the same command may succeed later: a network fails. Programs exit with status 75."""


class InUseError(InputError):
    """Raised where another process writes the same workdir. Programs exit with status 73."""


class Tokens(NamedTuple):
    """Tokenised sentences, packed: each row holds several sentences in sequence.

    The layout is group-major so that a device that holds whole groups needs no other device to pool its sentences.
    A padded batch is the special case of `b` groups of one row with one sentence each (`r == n == 1`).
    """

    ids: Integer[Array, "g r l"]
    """Token ids; the padding token in empty slots."""
    owner: Integer[Array, "g r l"]
    """Which of its group's `n` sentences a token belongs to; -1 for padding. Attention stays inside one owner."""
    position: Integer[Array, "g r l"]
    """Index of a token in its sentence, from 0; 0 for padding."""
    first: Integer[Array, "g n"]
    """Slot of each sentence's first token, among its group's `r * l` slots."""
    types: Integer[Array, "g r l"] | None = None
    """Token types of pairs, for cross-encoders: 0 for the first sentence, 1 for the second. None: all 0."""
    parts: Integer[Array, "g divided parts"] | None = None
    """First slot of each part of the rows that are divided, a group's last ones. The parts of a row have one length, and no
    sentence crosses their borders: attention may treat each as a row. None: no row is divided."""


class Batch(NamedTuple):
    """Input of one training step. Examples are ordered group-major; the views of an example are adjacent."""

    student: Tokens
    """The student's views, `n = (b / g) * v` sentences per group."""
    teacher: Tokens | None
    """The teacher's views, `n = (b / g) * w`, in the teacher's own tokens; None with stored targets or no teacher."""
    targets: Float[Array, "b w e"] | None
    """Stored teacher embeddings; None with a live teacher."""


class TrainState(NamedTuple):
    """The state that a checkpoint holds."""

    step: Integer[Array, ""]
    params: dict[str, Params]
    """`student` and `objective` (learned scalars, heads that never leave training)."""
    optimizer: Any
    objective: Any
    """The objective's own state: the queue."""
    key: jax.Array
    """One random key, folded with the step; never advanced."""


class Encoded(NamedTuple):
    """Encoder outputs that an objective receives: always `sentences`; the others only if its `reads` names them."""

    sentences: Float[Array, "b v e"]
    """Sentence vectors after pooling and dense layers, not normalised."""
    owner: Integer[Array, "g r l"] | None = None
    """Which sentence a token slot belongs to, -1 for padding; present with any of the following."""
    embeddings: Float[Array, "g r l d"] | None = None
    """Output of the embedding block at each token slot, in the width of the layers."""
    hidden: Float[Array, "s g r l d"] | None = None
    """Outputs of all layers, first to last."""
    vocabulary: Float[Array, "words d"] | None = None
    """The table of word embeddings, in the width of the layers."""


BATCH_AXES = ("slice", "data")
"""Axes of the mesh that split a batch, see `mesh`."""
LABELS = "labels"
"""Teacher view of objectives whose targets are scores of sentence pairs, `[b, 1, k]` for the k pairs of a row; they have no other."""
SECOND = "second"
"""The column of the text that holds the second sentence of a pair; the first is in `text`."""

ROLES = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""Roles of sentences to the names of their prompts in checkpoints, in the order in which sentence-transformers looks for
them."""

READS = ("embeddings", "hidden", "vocabulary")
"""Outputs that an objective may read besides sentence vectors. They require a live teacher with the student's
tokens."""


class Sizes(NamedTuple):
    """Sizes from which an objective makes its parameters and state."""

    batch_size: int
    width: int
    """Width of the student's vectors; the teacher's is equal, unless the objective sets `any_width`."""
    hidden: int
    """Width of the student's layers."""
    layers: int
    teacher_hidden: int
    """0 without a teacher model, likewise `teacher_layers`."""
    teacher_layers: int
    precision: Any = np.float32
    """Dtype of matrix products: that in which a queue is held."""


def alias(path: str) -> Any:
    """A property that reads another attribute, such as `objective.views`."""
    return property(attrgetter(path))


class Objective:
    """Base class of the training objectives: a frozen dataclass of its options, one file under `objectives/`, arrays in and
    arrays out. What an objective does not define has the default of this class."""

    student_views: Sequence[str]
    """Names of views that the student reads, for instance `("text", "delete_words")`; repeats are allowed. Has no default."""
    teacher_views: Sequence[str] = ()
    """Names of views that the teacher reads; empty without a teacher; `(LABELS,)` where it scores pairs."""
    reserve_rows: int = 0
    """Number of sentences held out of training, whose teacher embeddings seed the objective's state."""
    reads: Sequence[str] = ()
    """Which of `READS` it uses, of student and teacher. If any, the teacher reads the student's views."""
    unread: Mapping[str, str] = MappingProxyType({})
    """Options without effect under the current options, each with the reason."""
    couples_examples: bool = False
    """Whether an example's loss depends on the rest of its batch: gradients of parts are then cached, not added up."""
    any_width: bool = False
    """Whether the vectors of teacher and student may differ in width."""
    scored: Sequence[str] = ("text", SECOND)
    """Columns whose pairs a teacher scores: the first one's sentence with each of the others'."""
    logits: bool = False
    """Whether a cross-encoder's scores are taken before the sigmoid."""
    largest_label: float = float(np.inf)
    """Magnitude that the user's own scores may have."""

    def init(self, key: jax.Array, sizes: Sizes, seeds: Any) -> tuple[Params, Any]:
        """The objective's own parameters and its first state; by default none.

        Args:
          seeds: the teacher's embeddings of the reserved rows, `[k, e]`; None without any.
        """
        return {}, ()

    def __call__(
        self, params: Params, state: Any, student: Encoded, teacher: Encoded | None, *, mesh: jax.sharding.Mesh
    ) -> tuple[Float[Array, " b"], Any, Mapping[str, Float[Array, ""]]]:
        """Per-example loss, the next state, and scalars to log. No gradient goes into the teacher."""
        raise NotImplementedError


Embed = Callable[[Sequence[str]], Float[np.ndarray, "n e"]]
"""Maps sentences to vectors. Evaluation tasks use no more of a model than this, so they can score any model."""


@runtime_checkable
class RoleEmbed(Protocol):
    """An `Embed` that also reads sentences in their roles, one of `ROLES` for all or one for each."""

    def __call__(self, sentences: Sequence[str], *, role: str | Sequence[str] = "") -> Float[np.ndarray, "n e"]: ...


@runtime_checkable
class Scorer(Protocol):
    """A cross-encoder: scores pairs directly; it has no sentence vectors."""

    def score(self, first: Sequence[str], second: Sequence[str]) -> Float[np.ndarray, " n"]:
        """Similarity of the two sentences of each pair."""
        ...


@runtime_checkable
class Task(Protocol):
    """An evaluation: one file under `evals/`. Tasks on sentence pairs accept cross-encoders too."""

    def __call__(self, embed: Embed | Scorer) -> Mapping[str, float]:
        """Scores in [-1, 1] by name; other measures have the units stated in their names or the task's docstring."""
        ...
