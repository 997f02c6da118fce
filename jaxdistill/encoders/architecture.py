"""What is a sentence encoder made of? Plain, hashable descriptions, so that they can be static under `jax.jit`."""

import dataclasses

from jaxdistill.core import InputError

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "tanh", "sigmoid", "identity")
"""Names of elementwise functions; `gelu` is the exact one with erf."""
SHORTEST = 3
"""Fewest tokens that sentences may be cut to: one between the special ones."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """The body of an encoder: a post-LayerNorm transformer as BERT defined it, with its families' variations."""

    family: str
    """Hugging Face's `model_type`; names the file under `families/` that reads and writes its checkpoints."""
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    max_positions: int
    """Rows of the position table; a sentence may have `max_positions - position_offset` tokens."""
    token_types: int = 0
    """Rows of the token type table; 0: no such table. A sentence is of type 0, the second one of a pair of type 1."""
    embedding_size: int = 0
    """Width of the embedding tables where they are projected to `hidden_size` (ELECTRA); 0: `hidden_size`."""
    activation: str = "gelu"
    layer_norm_eps: float = 1e-12
    position_offset: int = 0
    """Row of the position table for the first token (RoBERTa and MPNet: 2)."""
    relative_buckets: int = 0
    """Buckets of MPNet's relative position bias; 0: none."""
    pooler: bool = False
    """Whether the parameters hold BERT's pooler, Dense + tanh on the first token."""
    pad_id: int = 0
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    drophead: float = dataclasses.field(default=0.0, repr=False)
    """Rate at which a sentence goes without a head of attention in training. NOTE: not in `repr`, which digests of
    models and of stored targets are made of: no vector outside of training depends on it."""

    def __post_init__(self):
        if not self.embedding_size:
            object.__setattr__(self, "embedding_size", self.hidden_size)
        if self.hidden_size % self.heads:
            raise InputError(
                f"hidden_size={self.hidden_size} is not divisible by heads={self.heads}; change one of them."
            )
        if self.layers < 1:
            raise InputError(f"layers={self.layers} leaves no layer; an encoder needs at least one.")
        if self.activation not in ACTIVATIONS:
            raise InputError(f"activation {self.activation!r} is not known; use one of {', '.join(ACTIVATIONS)}.")

    @property
    def longest(self) -> int:
        """Most tokens that a sentence may have."""
        return self.max_positions - self.position_offset


TOKEN_POOLINGS = ("cls", "pooler", "mean", "max")
LAYER_CHOICES = ("last", "second_to_last", "first_last", "last2", "last4", "all")
COMBINATIONS = ("mean", "max", "concat")
POOLING_HELP = (
    "cls, pooler, mean, max; or over layers, tokens:layers or tokens:layers:combination, such as mean:last4 or"
    f" mean:last4:concat (layers: {', '.join(LAYER_CHOICES)}; combinations: {', '.join(COMBINATIONS)})"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooling:
    """How token vectors become one sentence vector: layers are combined first, token by token, then tokens."""

    tokens: str
    """`cls`: the first token; `pooler`: BERT's Dense + tanh on it; `mean` and `max` over all tokens."""
    layers: str = "last"
    """Outputs of which layers; `first` is that of the embeddings, which `all` includes."""
    combine: str = "mean"

    def __post_init__(self):
        for name, value, allowed in (
            ("tokens", self.tokens, TOKEN_POOLINGS),
            ("layers", self.layers, LAYER_CHOICES),
            ("combination", self.combine, COMBINATIONS),
        ):
            if value not in allowed:
                raise InputError(f"pooling {name} {value!r} is not known; choose from {POOLING_HELP}.")
        if self.tokens == "pooler" and self.layers != "last":
            raise InputError(
                f"pooling pooler:{self.layers} does not exist: a pooler reads the last layer; use pooler or cls."
            )

    @classmethod
    def parse(cls, text: str) -> "Pooling":
        """Reads `tokens[:layers[:combination]]`, for instance `mean`, `cls` or `mean:last4:max`."""
        parts = text.split(":")
        if len(parts) > 3:
            raise InputError(f"pooling {text!r} has too many parts; choose from {POOLING_HELP}.")
        return cls(**dict(zip(("tokens", "layers", "combine"), parts, strict=False)))

    def __str__(self) -> str:
        if self.layers in ("last", "second_to_last"):
            return self.tokens if self.layers == "last" else f"{self.tokens}:{self.layers}"
        return f"{self.tokens}:{self.layers}:{self.combine}"

    @property
    def averages_layers(self) -> bool:
        """Whether it is a mean of several layers."""
        return self.layers not in ("last", "second_to_last") and self.combine == "mean"

    def indices(self, layers: int) -> tuple[int, ...]:
        """Which of the `layers + 1` hidden states are read; 0 is the embeddings' output."""
        states = range(layers + 1)
        chosen = {
            "last": states[-1:],
            "second_to_last": states[-2:-1],
            "first_last": (0, layers),
            "last2": states[-2:],
            "last4": states[-4:],
            "all": states,
        }[self.layers]
        if self.layers == "last4" and layers < 3:
            raise InputError(f"pooling {self} needs at least 3 layers, the encoder has {layers}; use last2 or all.")
        return tuple(chosen)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense:
    """A dense layer on the pooled sentence."""

    in_features: int
    out_features: int
    bias: bool = True
    activation: str = "tanh"
    drops: bool = dataclasses.field(default=False, repr=False)
    """Whether numbers of what it reads are dropped in training, at the rate of the hidden states (heads of
    cross-encoders). NOTE: not in `repr`, which digests are made of: no vector outside of training depends on it."""

    def __post_init__(self):
        if self.activation not in ACTIVATIONS:
            raise InputError(f"activation {self.activation!r} is not known; use one of {', '.join(ACTIVATIONS)}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderDefinition:
    """A sentence encoder: body, pooling, dense layers, and whether its vectors are scaled to unit length.

    A cross-encoder is one that reads pairs of sentences and gives one number, a logit.
    """

    architecture: Architecture
    pooling: Pooling
    dense: tuple[Dense, ...] = ()
    normalize: bool = False
    reads_pairs: bool = dataclasses.field(default=False, repr=False)
    """NOTE: not in `repr`, so that digests of sentence encoders are what they were; a vector of one number is unlike any."""

    def __post_init__(self):
        self.pooling.indices(self.architecture.layers)
        if self.pooling.tokens == "pooler" and not self.architecture.pooler:
            raise InputError(
                f"pooling pooler needs a pooler, which this {self.architecture.family} encoder lacks; use cls."
            )
        width = self.pooled_width
        for index, dense in enumerate(self.dense):
            if dense.in_features != width:
                raise InputError(f"dense layer {index} reads {dense.in_features} features, but is given {width}.")
            width = dense.out_features

    @property
    def pooled_width(self) -> int:
        """Width after pooling, before dense layers."""
        copies = len(self.pooling.indices(self.architecture.layers)) if self.pooling.combine == "concat" else 1
        return self.architecture.hidden_size * copies

    @property
    def embedding_width(self) -> int:
        """Width of a sentence's vector."""
        return self.dense[-1].out_features if self.dense else self.pooled_width
