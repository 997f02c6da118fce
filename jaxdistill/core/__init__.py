"""Types that all layers of the package share, and errors of one line.

In the signatures, a letter stands for the same axis everywhere, a word for a rarer axis, and `_` for an axis of any size.
`b` examples, `v` student views, `w` teacher views, `e` width of sentence vectors,
`q` queries, `k` keys that they are compared with (rows of the queue, tokens), `c` batches in the queue's ring,
`g` groups, `r` rows of a group, `l` token slots of a row, `t` tokens without regard to rows (`r * l`, or of many sentences),
`n` sentences, of a group (`b * v == g * n`) or of a list, `m` chosen tokens,
`s` layers, `d` width of the layers, `h` attention heads, `f` width of a head, `p` width after pooling,
`i` and `o` inputs and outputs of a dense layer.
"""

import dataclasses
import difflib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, Integer
from tokenizers import Tokenizer

Array = jax.Array | np.ndarray
MASK_TOKENS = ("[MASK]", "<mask>")

Params = Mapping[str, Array]
"""Parameters: maps paths such as `transformer/layers/0/attention/query/kernel` to arrays."""
STACKED = "transformer/stacked/"
"""Prefix of the paths of weights that hold several layers on a leading axis (`encoders/transformer.py`)."""

Split = Literal["train", "dev", "test"]
"""Part of a retrieval set's judgements: for training, for choosing, for reporting."""

Precision = Literal["auto", "float32", "bfloat16"]
"""Precision of matrix products; `auto` is bfloat16 if the hardware multiplies it natively, otherwise float32."""


class InputError(ValueError):
    """Unusable input. Its message is one line, which programs print before they exit with `status`."""

    status = 2

    def __init__(self, line: str):
        # Escapes line breaks and other control characters, which names in a user's files may contain.
        super().__init__("".join(char if char.isprintable() else repr(char)[1:-1] for char in line))


class Diverged(InputError):
    """A training has failed: its loss or a score is not finite, or its student cannot be evaluated."""


class TemporaryError(InputError):
    """The same command may succeed later, for example after a network failure."""

    status = 75  # EX_TEMPFAIL of sysexits.h


class InUseError(InputError):
    """Another process writes the same workdir, and continues undisturbed."""

    status = 73  # EX_CANTCREAT of sysexits.h


def refuse(rules: Sequence[tuple[object, str]]) -> None:
    """Raises `InputError` with the message of the first of the `(condition, message)` pairs whose condition is true."""
    for condition, message in rules:
        if condition:
            raise InputError(message)


def error_line(error: BaseException) -> str:
    """The first line of a library's error: its message, or its class's name if it has none; with a hint if text is not in UTF-8."""
    name = type(error).__name__
    message = str(error).strip() or name
    if isinstance(error, KeyError):  # its message is only the key
        message = f"{name}: {message}"
    elif isinstance(error, UnicodeDecodeError):
        message += "; text must be in UTF-8"
    return message.splitlines()[0]


def first_few(items: Sequence[str]) -> str:
    """The first four items of a list for an error message, and how many more there are."""
    more = f"; and {len(items) - 4} more" if len(items) > 4 else ""
    return "; ".join(items[:4]) + more


@contextmanager
def errors_of(what: str) -> Iterator[None]:
    """Puts `what`, such as an option or a file, before the message of an `InputError` raised in the `with` block."""
    try:
        yield
    except InputError as error:
        raise type(error)(f"{what}: {error}") from None


def did_you_mean(word: str, choices: Sequence[str]) -> str:
    """The hint ` Did you mean X?`, with the most similar choice; an empty string if none is close."""
    close = difflib.get_close_matches(word, choices, n=1)
    return f" Did you mean {close[0]}?" if close else ""


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Id of the tokenizer's unknown token; None if it has none (byte-level BPE)."""
    token = getattr(tokenizer.model, "unk_token", None)
    if token is not None:
        return tokenizer.token_to_id(token)
    return json.loads(tokenizer.to_str())["model"].get("unk_id")  # Unigram names no token, only its id


class Tokens(NamedTuple):
    """Tokenised sentences in groups of rows. In a packed batch, a row holds several sentences, one after another; in a padded batch,
    a group is a single row with one sentence. Each device holds whole groups, so it can pool their sentences by itself."""

    ids: Integer[Array, "g r l"]
    """Token ids; the padding token in empty slots."""
    owner: Integer[Array, "g r l"]
    """Index, among its group's `n` sentences, of a token's sentence; -1 for padding. Attention stays within one owner."""
    position: Integer[Array, "g r l"]
    """Index of a token in its sentence, from 0; 0 for padding."""
    first: Integer[Array, "g n"]
    """Slot of each sentence's first token, among its group's `r * l` slots."""
    types: Integer[Array, "g r l"] | None = None
    """Token types of pairs, for cross-encoders: 0 for the first sentence, 1 for the second. None: all 0."""
    parts: Integer[Array, "g divided parts"] | None = None
    """The last rows of a group may be divided into parts of equal length, whose borders no sentence crosses, so that attention
    can treat each part as a row of its own. Values are each part's first slot in its row. None: no row is divided."""


class Batch(NamedTuple):
    """Input of one training step. Examples are ordered group-major; the views of an example are adjacent."""

    student: Tokens
    """The student's views, `n = (b / g) * v` sentences per group."""
    teacher: Tokens | None
    """The teacher's views, `n = (b / g) * w`, in the teacher's own tokens; None with stored targets or no teacher."""
    targets: Float[Array, "b w e"] | None
    """Stored targets; None with a live teacher."""
    keys: Integer[Array, "b v 2"] | None = None
    """See `Encoded`, likewise `active`."""
    active: Float[Array, "b k"] | None = None


class TrainState(NamedTuple):
    """The state that a checkpoint holds."""

    step: Integer[Array, ""]
    params: dict[str, Params]
    """Parameters of `student` and `objective` (learned scalars, and matrices that are not exported)."""
    optimizer: Any
    objective: Any
    """What the objective keeps between steps, such as a queue."""
    key: jax.Array
    """One random key, folded with the step; never advanced."""
    average: Params | None = None
    """The student's averaged parameters; None if the trained ones are evaluated and exported."""

    @property
    def evaluated_params(self) -> Params:
        """The student's parameters that are evaluated and exported."""
        return self.params["student"] if self.average is None else self.average


class Encoded(NamedTuple):
    """Encoder outputs that an objective receives; `embeddings`, `hidden` and `vocabulary` only if the objective's `reads` names them."""

    sentences: Float[Array, "b v e"]
    """Sentence vectors after pooling and dense layers, not normalised."""
    owner: Integer[Array, "g r l"] | None = None
    """Index of each token slot's sentence, -1 for padding; None if `reads` is empty."""
    embeddings: Float[Array, "g r l d"] | None = None
    """Output of the embedding block at each token slot, projected to the width of the layers."""
    hidden: Float[Array, "s g r l d"] | None = None
    """Outputs of all layers, first to last."""
    vocabulary: Float[Array, "words d"] | None = None
    """The table of word embeddings, projected to the width of the layers."""
    keys: Integer[Array, "b v 2"] | None = None
    """A 64-bit hash of the text behind each of the student's views, as two numbers, for an objective that `compares_texts`."""
    active: Float[Array, "b k"] | None = None
    """With several objectives: 1 for each that trains on the batch's source, else 0; rows are equal. None: all train."""


BATCH_AXES = ("slice", "data")
"""Axes of the mesh that split a batch (`core/cluster/mesh.py`)."""
LABELS = "labels"
"""The only teacher view of objectives whose targets are scores of sentence pairs: `[b, 1, k]` for the k pairs of a row."""
SECOND = "second"
"""Column of the text with the second sentence of a pair; the first is in `text`."""

ROLES = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""Maps roles to the names of their prompts in checkpoints, in the order in which sentence-transformers looks them up."""


class Sizes(NamedTuple):
    """Sizes from which an objective makes its parameters and state."""

    batch_size: int
    width: int
    """Width of the student's vectors; the teacher's is equal, unless the objective sets `any_width`."""
    hidden: int
    """Width of the student's layers."""
    layers: int
    teacher_hidden: int
    """Width of the teacher's layers; 0 without a teacher model, likewise `teacher_layers`."""
    teacher_layers: int
    precision: Any = np.float32
    """Dtype of matrix products, in which queues are stored."""


def platform(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> str:
    """The kind of the mesh's devices: `cpu`, `gpu` or `tpu`; empty for a mesh without devices."""
    device = mesh.abstract_mesh.abstract_device
    return device.platform if device else ""


def alias(path: str) -> Any:
    """A property that returns the attribute at a dotted path, such as `objective.views`."""
    return property(attrgetter(path))


def only(name: str) -> Any:
    """A property that returns the value of the attribute `name` as the only element of a tuple."""
    return property(lambda instance: (getattr(instance, name),))


LossAux = tuple[Float[Array, " b"], Any, Mapping[str, Float[Array, ""]]]
"""A loss and its auxiliary outputs: one loss per example, the objective's next state, and scalars to log by name."""


class Objective:
    """Base class of training objectives. Each is a frozen dataclass of its options, and a function from arrays to arrays."""

    student_views: Sequence[str]
    """Names of views that the student reads, such as `("text", "delete_words")`; repeats are allowed. Has no default."""
    teacher_views: Sequence[str] = ()
    """Names of views that the teacher reads; empty without a teacher; `(LABELS,)` if the targets are scores of pairs."""
    queue_size: int = 0
    """Number of earlier sentences used as negatives; a run limits it to a quarter of the text's rows. 0: no queue."""
    reserve_rows: int = 0
    """Number of sentences, at most a tenth of the text, whose teacher vectors initialise the state; they are not trained on."""
    reads: Sequence[str] = ()
    """Outputs that it uses besides sentence vectors: `embeddings`, `hidden` or `vocabulary` (see `Encoded`). If there
    are any, the teacher must be live and read the student's views in the student's tokens."""
    couples_examples: bool = False
    """Whether an example's loss depends on the rest of its batch; gradient accumulation then uses a gradient cache."""
    compares_texts: bool = False
    """Whether it reads `Encoded.keys`, to find equal texts in a batch."""
    any_width: bool = False
    """Whether the vectors of teacher and student may differ in width."""
    scored: Sequence[str] = ("text", SECOND)
    """Columns whose pairs a teacher scores: the first one with each of the others."""
    logits: bool = False
    """Whether a cross-encoder, as the teacher, labels with logits instead of their sigmoids."""
    similarity: str = "cosine"
    """Similarity for which it trains the student: `cosine` or `dot`; empty: the teacher's, as the lengths of its vectors are learned."""
    largest_label: float = float(np.inf)
    """Largest allowed magnitude of the user's own scores."""
    variant: str = ""
    """Addition to the objective's name in titles, such as `control term alone`, by the options; empty: none."""

    def init(self, key: jax.Array, sizes: Sizes, seeds: Any) -> tuple[Params, Any]:
        """Makes the objective's parameters and initial state; both are empty by default.
        `seeds` are the teacher's vectors `[k, e]` of `reserve_rows` sentences, or None if it reserves none."""
        return {}, ()

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: Encoded | None) -> LossAux:
        """Per-example loss, the next state, and scalars to log. No gradient flows into the teacher. A loss that must know the
        devices finds their mesh by `jax.sharding.get_abstract_mesh()`."""
        raise NotImplementedError


Embed = Callable[[Sequence[str]], Float[np.ndarray, "n e"]]
"""Maps sentences to vectors. Evaluation tasks use only this function of a model, so they can score any model."""


@runtime_checkable
class RoleEmbed(Protocol):
    """An `Embed` with an argument `role`: one of `ROLES` for all sentences, or one for each."""

    def __call__(self, sentences: Sequence[str], *, role: str | Sequence[str] = "") -> Float[np.ndarray, "n e"]: ...


@runtime_checkable
class Scorer(Protocol):
    """A cross-encoder: scores pairs directly; it has no sentence vectors."""

    def score(self, first: Sequence[str], second: Sequence[str]) -> Float[np.ndarray, " n"]:
        """Similarity of the two sentences of each pair."""
        ...


class PairScorer(NamedTuple):
    """A `Scorer` made of two functions."""

    score: Callable[..., Float[np.ndarray, " n"]]
    embed: Callable[[Sequence[str]], Any]
    """Called when an evaluation asks for vectors; raises `InputError`."""

    def __call__(self, sentences: Sequence[str]):
        return self.embed(sentences)


Task = Callable[[Embed | Scorer], Mapping[str, float]]
"""An evaluation: maps a model to scores in [-1, 1] by name. Only tasks on sentence pairs accept cross-encoders."""

MAX_INT32 = 2**31 - 1  # steps and sizes are 32-bit integers on the devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Range:
    """Bounds of an option: `above` and `below` exclude the bound itself. Without `most`, numbers must fit into 32 bits."""

    least: float | None = None
    above: float = -math.inf
    most: float | None = None
    below: float = math.inf

    def checked(self, value: Any, name: str) -> Any:
        """Returns the value of the option `name`; raises `InputError` if a number, or the length of a tuple, is out of range."""
        number = len(value) if isinstance(value, tuple) else value
        limit = MAX_INT32 if isinstance(number, int) else int(np.finfo(np.float32).max)
        least = -limit if self.least is None else self.least
        most = limit if self.most is None else self.most
        if least <= number <= most and self.above < number < self.below:  # false for NaN and infinities
            return value
        # The error mentions the limit of 32 bits only if the number exceeds it.
        shown_most = most if limit < number < math.inf else self.most
        bounds = {"at least": self.least, "above": self.above, "at most": shown_most, "below": self.below}
        subject = f"has {number} parts; their number " if isinstance(value, tuple) else ""
        words = [f"{word} {bound:,}" for word, bound in bounds.items() if bound not in (None, -math.inf, math.inf)]
        raise InputError(f"{name}={value} {subject}must be {' and '.join(words) or 'a finite number of 32 bits'}.")


Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
Fraction = Annotated[float, Range(least=0, most=1)]
Rate = Annotated[float, Range(least=0, below=1)]
Count = Annotated[int, Range(least=1)]
TwoOrThree = Annotated[tuple[str, ...], Range(least=2, most=3)]
"""The views of an anchor, its positive and, optionally, a hard negative."""
CountOrNone = Annotated[int, Range(least=0)]
"""A count, where 0 switches a feature off or defers to another option."""
