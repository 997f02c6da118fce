"""Static encoders: tables of token vectors. A sentence's vector is the mean of its tokens' vectors.

sentence-transformers' module `StaticEmbedding` has the tensor `embedding.weight`. model2vec has a `config.json` of its own type
and the tensor `embeddings`, optionally with `weights` and a `mapping`, and leaves unknown tokens out of the mean.
"""

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
from jaxdistill.models.checkpoints.weights import check_finite, read_checkpoint, read_safetensors

FAMILY = "static"
MODEL2VEC = "model2vec"
"""`model_type` of model2vec's `config.json`."""
TABLE = "transformer/embeddings/word/embedding"
MAX_LENGTH = 1 << 20
"""Maximum tokens per sentence if a folder states none."""
MODEL2VEC_MAX_LENGTH = 512
"""Maximum tokens per sentence if a model2vec folder states none."""
POOLING = Pooling(tokens="mean")


def architecture_of(table: Float[np.ndarray, "v d"], *, dropped: int | None) -> Architecture:
    """The architecture of a static encoder with this table; the mean ignores tokens with the id `dropped`."""
    entries, width = table.shape
    return Architecture(
        family=FAMILY, vocab_size=entries, hidden_size=width, layers=0, heads=1, intermediate_size=0, max_positions=MAX_LENGTH,
        hidden_dropout=0.0, attention_dropout=0.0, position_table=False, embedding_norm=False,
        dropped_id=-1 if dropped is None else dropped,
    )  # fmt: skip


def is_model2vec(folder: Path) -> bool:
    """Whether `folder` is model2vec's, whose `config.json` has no `model_type` before December 2024."""
    path, weights = folder / "config.json", folder / "model.safetensors"
    stated = read_settings(path).get("model_type") if path.exists() else ""
    if stated is None and weights.exists():
        return "embeddings" in read_safetensors(weights)
    return stated == MODEL2VEC


def read(folder: Path) -> tuple[Architecture, Float[np.ndarray, "v d"], tokenizers.Tokenizer, int]:
    """Reads either format: architecture, table, tokenizer, and maximum tokens per sentence."""
    tensors, of_model2vec = read_checkpoint(folder), is_model2vec(folder)
    name = "embedding.weight" if "embedding.weight" in tensors else "embeddings"
    table = tensors[name].astype(np.float32)
    if "mapping" in tensors:  # tokens share rows
        table = table[tensors["mapping"].astype(np.int64)]
    if "weights" in tensors:
        table = table * tensors["weights"].astype(np.float32)[:, None]
    # Both packages read only tokenizer.json; model2vec replaces its truncation by the length in config.json.
    tokenizer = without_special_tokens(read_tokenizer(folder, vocab_size=len(table), lower_case=False, settings=False))
    if of_model2vec:
        longest = read_settings(folder / "config.json").get("max_length", MODEL2VEC_MAX_LENGTH)
    else:
        truncation = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).truncation
        longest = truncation["max_length"] if truncation else 0
    check_finite(table, name, folder)
    architecture = architecture_of(table, dropped=unknown_id(tokenizer) if of_model2vec else None)
    return architecture, table, tokenizer, min(longest or MAX_LENGTH, MAX_LENGTH)


def without_special_tokens(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy of the tokenizer that adds no special tokens and has no maximum length."""
    content = json.loads(tokenizer.to_str()) | {"post_processor": None, "truncation": None}
    return tokenizers.Tokenizer.from_str(tokenizer_json(content))


def folded(definition: EncoderDefinition, params: Mapping[str, np.ndarray]) -> Float[np.ndarray, "v e"]:
    """The table with all dense layers applied to its rows, which gives the same vectors; a dropped token's row is zero."""
    table = np.asarray(params[TABLE], np.float32)
    for index in range(len(definition.dense)):
        table = table @ np.asarray(params[f"dense/{index}/kernel"], np.float32)
    if definition.architecture.dropped_id >= 0:
        table = table.copy()
        table[definition.architecture.dropped_id] = 0.0
    return table
