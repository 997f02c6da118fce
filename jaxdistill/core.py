"""The types that the layers share. No behaviour lives here.

Axis letters of the signatures:
`b` examples, `v` student views, `w` teacher views, `e` width of sentence vectors, `k` rows of the queue,
`g` groups, `r` rows of a group, `l` token slots of a row, `n` sentences of a group (`b * v == g * n`),
`s` layers, `d` width of the layers, `h` attention heads, `f` width of a head, `t` words of the vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, Int

Array = jax.Array | np.ndarray
MASK_TOKENS = ("[MASK]", "<mask>")
"""What tokenizers call the token that stands for a hidden one."""

Params = dict[str, Array]
"""Parameters, flat: path such as `transformer/layers/0/attention/query/kernel` to array."""


class InputError(ValueError):
    """Something that the user gave cannot be used: programs print its one line and exit with status 2."""


class Tokens(NamedTuple):
    """Tokenised sentences, packed: a row holds several sentences one behind the other.

    The layout is group-major so that a device that holds whole groups needs no other device to pool its sentences.
    A padded batch is the special case of `b` groups of one row with one sentence each (`r == n == 1`).
    """

    ids: Int[Array, "g r l"]
    """Token ids; the padding token where there is no sentence."""
    owner: Int[Array, "g r l"]
    """Which of its group's `n` sentences a token belongs to; -1 for padding. Attention stays inside one owner."""
    position: Int[Array, "g r l"]
    """Place of a token in its sentence, from 0; 0 for padding."""
    first: Int[Array, "g n"]
    """Where each sentence begins: an index into its group's `r * l` slots."""
    types: Int[Array, "g r l"] | None = None
    """Which sentence of a pair a token belongs to, 0 or 1, where a sequence is a pair (cross-encoders); None: all 0."""


class Batch(NamedTuple):
    """What one training step reads. Examples are ordered group-major, the views of an example lie together."""

    student: Tokens
    """The student's views, `n = (b / g) * v` sentences a group."""
    teacher: Tokens | None
    """The teacher's views, `n = (b / g) * w`, in the teacher's own tokens; None with stored targets or no teacher."""
    targets: Float[Array, "b w e"] | None
    """Stored teacher embeddings; None with a live teacher."""


class TrainState(NamedTuple):
    """Everything that a checkpoint holds."""

    step: Int[Array, ""]
    params: dict[str, Params]
    """`student` and `objective` (learned scalars, heads that never leave training)."""
    optimizer: Any
    objective: Any
    """The objective's own state: the queue."""
    key: jax.Array
    """One random key, folded with the step; never advanced."""


class Encoded(NamedTuple):
    """What an objective sees of an encoder: always `sentences`, and of the rest what its `reads` names."""

    sentences: Float[Array, "b v e"]
    """Vectors behind pooling and dense layers, not normalised."""
    owner: Int[Array, "g r l"] | None = None
    """Which sentence a token slot belongs to, -1 for padding; there with any of the following."""
    embeddings: Float[Array, "g r l d"] | None = None
    """Output of the embedding block at each token slot, in the width of the layers."""
    hidden: Float[Array, "s g r l d"] | None = None
    """Outputs of all layers, first to last."""
    vocabulary: Float[Array, "t d"] | None = None
    """The table of word embeddings, in the width of the layers."""


LABELS = "labels"
"""The one teacher view of an objective whose targets are scores of pairs of sentences, `[b, 1, 1]`."""
SECOND = "second"
"""The column of the text that holds the second sentence of a pair; the first is in `text`."""

READS = ("embeddings", "hidden", "vocabulary")
"""What an objective may read beside sentence vectors. It needs a live teacher that shares the student's tokens."""


class Sizes(NamedTuple):
    """What an objective may need to know to make its parameters and state."""

    batch_size: int
    width: int
    """Of sentence vectors, student's and teacher's alike."""
    hidden: int
    """Width of the student's layers."""
    layers: int
    teacher_hidden: int
    """0 without a teacher model, likewise `teacher_layers`."""
    teacher_layers: int


class Objective(Protocol):
    """A training objective: a frozen dataclass of its options, one file under `objectives/`, arrays in and arrays out."""

    student_views: Sequence[str]
    """Names of views that the student reads, for instance `("text", "delete_words")`; repeats are allowed."""
    teacher_views: Sequence[str]
    """Names of views that the teacher reads; empty without a teacher; `(LABELS,)` where it scores pairs."""
    reserve_rows: int
    """Sentences kept out of training, whose teacher embeddings seed the objective's state."""
    reads: Sequence[str]
    """Which of `READS` it looks at, in student and teacher; then the teacher reads the student's views."""
    unread: Mapping[str, str]
    """Options that have no effect under the other options, each with the reason."""
    couples_examples: bool
    """Whether an example's loss depends on the others of its batch; gradients of parts of a batch then do not add up."""

    def init(self, key: jax.Array, sizes: Sizes, seeds: Float[Array, "k e"] | None) -> tuple[Params, Any]:
        """The objective's own parameters and its first state."""
        ...

    def __call__(
        self, params: Params, state: Any, student: Encoded, teacher: Encoded | None, *, mesh: jax.sharding.Mesh
    ) -> tuple[Float[Array, " b"], Any, dict[str, Float[Array, ""]]]:
        """Per-example loss, the next state, and scalars to log. No gradient goes into the teacher."""
        ...


Embed = Callable[[Sequence[str]], Float[np.ndarray, "n e"]]
"""Sentences to vectors. Evaluation tasks know nothing else of a model, so that any model can be scored."""


@runtime_checkable
class Scorer(Protocol):
    """A cross-encoder in use: scores pairs of sentences, of which it has no vectors."""

    def score(self, first: Sequence[str], second: Sequence[str]) -> Float[np.ndarray, " n"]:
        """How alike the sentences of each pair are."""
        ...


class Task(Protocol):
    """An evaluation: one file under `evals/`. Those of pairs of sentences take cross-encoders too."""

    def __call__(self, embed: Embed | Scorer) -> Mapping[str, float]:
        """Named scores in [-1, 1], and measures in the units that their names or the task's docstring say."""
        ...
