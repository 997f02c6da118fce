"""Describes sentence encoders as plain, hashable dataclasses, static under `jax.jit`."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxdistill.core import InputError, alias


def cache_key(value: Any) -> str:
    """Describes an `EncoderDefinition`, or a value in one, for digests: equal keys and equal weights give equal vectors.
    Names only fields that differ from their defaults, so that a new field invalidates no cached targets."""
    if isinstance(value, tuple):
        return f"({', '.join(map(cache_key, value))})"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    entries = []
    for field in dataclasses.fields(value):
        field_value = getattr(value, field.name)
        # `drophead` and `drops` act in training only, and `reads_pairs` changes no number of the forward pass. NOTE: the other rates
        # of dropout change no vector either, but leaving them out now would invalidate cached targets.
        if field.name not in ("drophead", "drops", "reads_pairs") and field_value != field.default:
            entries.append(f"{field.name}={cache_key(field_value)}")
    return f"{type(value).__name__}({', '.join(entries)})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerKind:
    """Properties that may differ between layers: attention window and rotary positions."""

    window: int = 0
    """Tokens on each side that a token attends to; 0: all tokens of its sentence."""
    theta: float = 0.0
    """Base of the rotary positions; 0: queries and keys are not rotated."""
    divisor: float = 1.0
    """Divides the rotary frequencies (linear scaling for longer texts)."""
    kept_below: float = 0.0
    """A wavelength in tokens: frequencies with shorter wavelengths are not divided (Llama 3)."""
    divided_above: float = 0.0
    """A wavelength in tokens: frequencies with longer ones are divided, those between the two partly. 0: all are divided."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """The body of an encoder: a transformer assembled from parts; BERT's are the defaults."""

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
    """Rows of the token type table; 0: no such table. Sentences have type 0, a pair's second sentence type 1."""
    embedding_size: int = 0
    """Width of the embedding tables if they are projected to `hidden_size` (ELECTRA); 0: `hidden_size`."""
    activation: str = "gelu"
    """One of `layers.ACTIVATION_FUNCTIONS`."""
    layer_norm_eps: float = 1e-12
    position_offset: int = 0
    """Row of the position table for a sentence's first token (RoBERTa and MPNet: 2). The row before it is for padding."""
    relative_buckets: int = 0
    """Rows of MPNet's relative position bias; 0: none."""
    pooler: bool = False
    """Whether the parameters hold BERT's pooler, Dense + tanh on the first token."""
    pad_id: int = 0
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    drophead: float = 0.0
    """Probability of dropping an attention head in training, per sentence and layer."""

    position_table: bool = True
    kinds: tuple[LayerKind, ...] = ()
    """One kind per layer; empty: no layer has a window or rotary positions."""
    shared_layers: bool = False
    """Whether all layers share one set of weights (ALBERT)."""

    norm: str = "layer"
    """The kind of every norm: `layer` or `layer_no_bias` (LayerNorm), `rms`, or `rms_plus_one` (Gemma: multiplies by 1 + weight)."""
    norm_place: str = "post"
    """`post`: after each residual sum; `pre`: before each block; `both`: before and after each block, the latter before the sum.
    `pre` and `both` add a norm after the last layer."""
    embedding_norm: bool = True
    first_norm: bool = True
    """Whether a norm precedes the first layer's attention (ModernBERT: no)."""
    embedding_projected: bool = False
    """Whether embeddings are projected even if they are as wide as the layers (ALBERT)."""
    embedding_scaled: bool = False
    """Whether word embeddings are multiplied by the square root of their width (Gemma)."""

    head_size: int = 0
    """Width of an attention head; 0: `hidden_size / heads`."""
    key_heads: int = 0
    """Key and value heads, each shared by `heads / key_heads` query heads; 0: `heads`."""
    query_key_norm: bool = False
    """Whether queries and keys are normalised, head by head, before rotation."""
    attention_scale: float = 0.0
    """Multiplies attention scores; 0: `head_size ** -0.5`."""
    attention_bias: bool = True
    """Whether the four dense layers of attention have biases."""
    attention_output_bias: bool = True
    """Whether attention's output layer also has a bias (Qwen2: no)."""
    causal: bool = False

    gated: bool = False
    """Whether the feed-forward network multiplies `activation(gate(x))` by `intermediate(x)`."""
    intermediate_bias: bool = True
    """Whether the feed-forward network's first dense layer, and its gate, have biases."""
    output_bias: bool = True
    """Whether the feed-forward network's last dense layer has a bias."""

    dropped_id: int = -1
    """Id of a token that pooling ignores, such as the unknown token in model2vec; -1: none."""

    def __post_init__(self):
        if not self.embedding_size:
            object.__setattr__(self, "embedding_size", self.hidden_size)
        if not self.head_size and self.hidden_size % self.heads:
            raise InputError(f"hidden_size={self.hidden_size} is not divisible by heads={self.heads}.")

    @property
    def is_static(self) -> bool:
        """Whether the encoder is a table of token vectors without layers (`models/checkpoints/static.py`)."""
        return self.family == "static"

    @property
    def longest(self) -> int:
        """Maximum tokens per sentence."""
        return self.max_positions - self.position_offset

    @property
    def head_width(self) -> int:
        """`head_size`, with its default filled in."""
        return self.head_size or self.hidden_size // self.heads

    @property
    def key_head_count(self) -> int:
        """`key_heads`, with its default filled in."""
        return self.key_heads or self.heads

    def kind(self, layer: int) -> LayerKind:
        """The properties of the layer with the index `layer`."""
        return self.kinds[layer] if self.kinds else LayerKind()

    @property
    def repeated_layers(self) -> tuple[int, int]:
        """`(start, period)`: from index `start` on, the structure of the layers repeats every `period` layers, at least twice.
        `(layers, 0)` if no layers repeat."""
        # Equal entries mean layers that differ in their weights alone: a `LayerKind`, and whether attention has a norm.
        structure = [(self.kind(layer), self.first_norm or layer > 0) for layer in range(self.layers)]
        repeats = []
        for start in range(self.layers):
            remaining = structure[start:]
            for period in range(1, len(remaining) // 2 + 1):
                if remaining == remaining[:period] * (len(remaining) // period):
                    repeats.append((start, period))
        # The compiler sees the first `start` layers and one period, so the smallest sum gives the smallest program.
        return min(repeats, key=sum, default=(self.layers, 0))

    def with_layers(self, chosen: Sequence[int]) -> "Architecture":
        """A copy with the layers of the indices `chosen`, which may repeat."""
        kinds = tuple(self.kinds[layer] for layer in chosen) if self.kinds else ()
        return dataclasses.replace(self, layers=len(chosen), kinds=kinds)


TOKEN_POOLINGS = ("cls", "pooler", "mean", "max", "last", "weightedmean", "mean_sqrt_len")
MEANS = ("cls", "mean", "last", "weightedmean")
"""Token poolings that are weighted means of tokens, so that a linear layer gives the same result before and after them."""
LAYER_CHOICES = ("last", "second_to_last", "first_last", "last2", "last4", "all")
COMBINATIONS = ("mean", "max", "concat")
POOLING_HELP = (
    f"{', '.join(TOKEN_POOLINGS)}; or over layers, tokens:layers or tokens:layers:combination, such as mean:last4 or"
    f" mean:last4:concat (layers: {', '.join(LAYER_CHOICES)}; combinations: {', '.join(COMBINATIONS)})"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooling:
    """How token vectors become one sentence vector: layers are combined per token, then tokens are pooled."""

    tokens: str
    """`cls`: the first token; `pooler`: BERT's Dense + tanh on it; `mean` and `max`: over all tokens; `last`: the last token;
    `weightedmean`: the n-th token has weight n; `mean_sqrt_len`: the sum divided by the root of the number of tokens."""
    layers: str = "last"
    """The layers whose outputs are combined; `first` is the embeddings' output, which `all` includes."""
    combine: str = "mean"

    def __post_init__(self):
        exists = self.tokens in TOKEN_POOLINGS and self.layers in LAYER_CHOICES and self.combine in COMBINATIONS
        misuses_pooler = self.tokens == "pooler" and self.layers != "last"  # BERT's pooler reads the last layer
        if misuses_pooler or not exists:
            raise InputError(f"pooling {self} does not exist; choose from {POOLING_HELP}.")

    @classmethod
    def parse(cls, text: str) -> "Pooling":
        """Reads `tokens[:layers[:combination]]`, such as `cls` or `mean:last4:max`."""
        return cls(**dict(zip(("tokens", "layers", "combine"), text.split(":", 2), strict=False)))

    def __str__(self) -> str:
        """The shortest text from which `parse` reads the pooling; a single layer needs no combination."""
        words = {"last": 1, "second_to_last": 2}.get(self.layers, 3)
        return ":".join((self.tokens, self.layers, self.combine)[:words])

    @property
    def averages_layers(self) -> bool:
        """Whether the outputs of several layers are averaged."""
        return self.layers not in ("last", "second_to_last") and self.combine == "mean"

    @property
    def in_sentence_transformers(self) -> bool:
        """Whether sentence-transformers has modules for this choice of layers: the last one, or a mean of several."""
        return self.layers == "last" or self.averages_layers

    def indices(self, layers: int) -> tuple[int, ...]:
        """Indices of the hidden states to combine: state 0 is the embeddings' output, and state i the output of layer i - 1."""
        states = range(layers + 1)
        indices_by_choice = {
            "last": states[-1:],
            "second_to_last": states[-2:-1],
            "first_last": (0, layers),
            "last2": states[-2:],
            "last4": states[-4:],
            "all": states,
        }
        return tuple(indices_by_choice[self.layers])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense:
    """A dense layer on the pooled sentence."""

    in_features: int
    out_features: int
    bias: bool = True
    activation: str = "tanh"
    drops: bool = False
    """Whether its input has dropout in training, at `hidden_dropout`'s rate (heads of cross-encoders)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceNorm:
    """A LayerNorm on the pooled sentence, as one of the layers in `EncoderDefinition.dense`."""

    width: int

    in_features = out_features = alias("width")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderDefinition:
    """A sentence encoder: body, pooling, dense layers, and whether its vectors are scaled to unit length."""

    architecture: Architecture
    pooling: Pooling
    dense: tuple[Dense | SentenceNorm, ...] = ()
    """Layers applied to the pooled sentence, in order."""
    normalize: bool = False
    similarity: str = "cosine"
    """How vectors are compared: `cosine`, or `dot` if their lengths count; always `cosine` if `normalize`."""
    reads_pairs: bool = False
    """Whether it is a cross-encoder, which reads a pair of sentences and returns one logit."""

    def __post_init__(self):
        if self.normalize:
            object.__setattr__(self, "similarity", "cosine")
        body = self.architecture
        # The embeddings' output counts as a layer: `second_to_last` needs two outputs, `last4` four.
        min_layers = {"second_to_last": 1, "last4": 3}.get(self.pooling.layers, 0)
        lacks_pooler = self.pooling.tokens == "pooler" and not body.pooler
        if lacks_pooler or body.layers < min_layers:
            raise InputError(
                f"pooling {self.pooling} does not fit this {body.family} encoder, which has {body.layers} layers and "
                f"{'a' if body.pooler else 'no'} pooler; use mean or cls."
            )

    @property
    def dense_on_tokens(self) -> bool:
        """Whether it has dense layers that may also be applied to tokens, before pooling, with the same sentence vectors: they may if
        they are linear, and pooling is a weighted mean over tokens (`MEANS`) and over layers."""
        are_linear = all(isinstance(layer, Dense) and layer.activation == "identity" for layer in self.dense)
        pools_mean = self.pooling.tokens in MEANS and self.pooling.in_sentence_transformers
        return bool(self.dense) and are_linear and pools_mean and not self.reads_pairs

    @property
    def embedding_width(self) -> int:
        """Width of a sentence's vector."""
        concatenated = len(self.pooling.indices(self.architecture.layers)) if self.pooling.combine == "concat" else 1
        return self.dense[-1].out_features if self.dense else concatenated * self.architecture.hidden_size
