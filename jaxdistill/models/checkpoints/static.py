"""Reads static encoders: tables of token vectors. A sentence's vector is the mean of its tokens' vectors.

sentence-transformers' module `StaticEmbedding` has the tensor `embedding.weight`. model2vec has a `config.json` of its own type
and the tensor `embeddings`, optionally with `weights` and a `mapping`, and leaves unknown tokens out of the mean.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tokenizers
from jaxtyping import Float

from jaxdistill.core import unknown_id
from jaxdistill.encoders.architecture import Architecture, EncoderDefinition, Pooling
from jaxdistill.encoders.hugging_face import read_settings
from jaxdistill.models.checkpoints.tokenizer import read_tokenizer, tokenizer_json
from jaxdistill.models.checkpoints.weights import Arrays, check_finite, read_checkpoint

TABLE = "transformer/embeddings/word/embedding"
MAX_LENGTH = 1 << 20  # maximum tokens per sentence if a folder states none
POOLING = Pooling(tokens="mean")


def architecture_of(table: Float[np.ndarray, "v d"], dropped_id: int) -> Architecture:
    """The architecture of a static encoder with this table. Its mean ignores the token `dropped_id`; -1: no token."""
    entries, width = table.shape
    return Architecture(
        family="static", vocab_size=entries, hidden_size=width, layers=0, heads=1, intermediate_size=0, max_positions=MAX_LENGTH,
        hidden_dropout=0.0, attention_dropout=0.0, position_table=False, embedding_norm=False, dropped_id=dropped_id,
    )  # fmt: skip


def dropped_id(tokenizer: tokenizers.Tokenizer) -> int:
    """The id of the unknown token, which model2vec leaves out of the mean; -1 if the tokenizer has none."""
    unknown = unknown_id(tokenizer)
    return -1 if unknown is None else unknown


def read(folder: Path) -> tuple[Architecture, Float[np.ndarray, "v d"], tokenizers.Tokenizer, int]:
    """Reads a folder in either format: architecture, table, tokenizer, and maximum tokens per sentence."""
    tensors = read_checkpoint(folder)
    is_model2vec = "embeddings" in tensors
    name = "embeddings" if is_model2vec else "embedding.weight"
    table = tensors[name].astype(np.float32)
    if "mapping" in tensors:  # tokens share rows
        table = table[tensors["mapping"].astype(np.int64)]
    if "weights" in tensors:
        table = table * tensors["weights"].astype(np.float32)[:, None]
    # Both packages read only tokenizer.json; model2vec replaces its truncation by the length in config.json.
    tokenizer = without_special_tokens(read_tokenizer(folder, vocab_size=len(table), settings=False))
    if is_model2vec:
        max_length = read_settings(folder / "config.json").get("max_length", 512)  # model2vec's default
    else:
        truncation = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).truncation
        max_length = truncation["max_length"] if truncation else None  # of the file: `tokenizer` has none
    check_finite(table, name, folder)
    architecture = architecture_of(table, dropped_id(tokenizer) if is_model2vec else -1)
    return architecture, table, tokenizer, min(max_length or MAX_LENGTH, MAX_LENGTH)


def without_special_tokens(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy of the tokenizer that adds no special tokens and has no maximum length."""
    content = json.loads(tokenizer.to_str()) | {"post_processor": None, "truncation": None}
    return tokenizers.Tokenizer.from_str(tokenizer_json(content))


def folded(definition: EncoderDefinition, params: Mapping[str, np.ndarray]) -> tuple[EncoderDefinition, Arrays]:
    """An equivalent encoder with its dense layers, which must be linear, applied to its table. The row of `dropped_id` becomes zero."""
    table = np.array(params[TABLE], np.float32)
    for index in range(len(definition.dense)):
        table = table @ np.asarray(params[f"dense/{index}/kernel"], np.float32)
    dropped = definition.architecture.dropped_id
    if dropped >= 0:  # programs that count the token in the mean get vectors of the same direction
        table[dropped] = 0.0
    return dataclasses.replace(definition, architecture=architecture_of(table, dropped), dense=()), {TABLE: table}
