"""GGUF, for llama.cpp and programs built on it: `gguf/model.gguf` and, in half precision, `gguf/model_f16.gguf`.

A file holds the weights under llama.cpp's names, the vocabulary, and the pooling. llama.cpp has its own graphs and tokenises
texts itself. Only BERT's WordPiece tokenizer can be exported, and llama.cpp tokenises some scripts differently
(docs/deployment.md).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from tokenizers import models, normalizers

from jaxdistill.checkpoints.folder import exported
from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.checkpoints.weights import tensors_from_params
from jaxdistill.encoders.architecture import Architecture, EncoderDefinition
from jaxdistill.encoders.hugging_face import Part, tensor_names
from jaxdistill.evals.similarity import unit_rows
from jaxdistill.exports.running import TextRun, imported
from jaxdistill.ops.unknown import unknown_id

EXTRA, NEEDS = "gguf", ("gguf", "llama_cpp")
FOLDER = "gguf"
FLOAT, HALF = "model.gguf", "model_f16.gguf"
ROUNDED = ()
BERT = {
    "embeddings/word": "token_embd",
    "embeddings/position": "position_embd",
    "embeddings/token_type": "token_types",
    "embeddings/norm": "token_embd_norm",
    "layers/*/attention/query": "blk.*.attn_q",
    "layers/*/attention/key": "blk.*.attn_k",
    "layers/*/attention/value": "blk.*.attn_v",
    "layers/*/attention/output": "blk.*.attn_output",
    "layers/*/attention/norm": "blk.*.attn_output_norm",
    "layers/*/intermediate": "blk.*.ffn_up",
    "layers/*/output": "blk.*.ffn_down",
    "layers/*/norm": "blk.*.layer_output_norm",
}
NOMIC_BERT = BERT | {
    "layers/*/attention/query": Part("blk.*.attn_qkv", 0, 3),
    "layers/*/attention/key": Part("blk.*.attn_qkv", 1, 3),
    "layers/*/attention/value": Part("blk.*.attn_qkv", 2, 3),
    "layers/*/gate": "blk.*.ffn_gate",
}
GRAPHS = {"bert": BERT, "nomic-bert": NOMIC_BERT}
"""Maps llama.cpp's graphs to its names of our layers."""
POOLINGS = {"mean": "MEAN", "cls": "CLS", "last": "LAST"}
"""Maps our poolings to llama.cpp's."""
TABLES = ("position_embd.weight", "token_types.weight")
"""Matrices that stay in single precision."""
WORD_START = "\u2581"
"""Prefix of pieces that begin a word; pieces within a word lose their `##`."""


def refusal(model: SentenceModel) -> str:
    """Why llama.cpp cannot hold the model; empty if it can."""
    definition, pooling = model.definition, model.definition.pooling
    if definition.reads_pairs:
        return "it is a cross-encoder, and only sentence encoders are written"
    if not _graph(definition.architecture):
        return (
            f"no graph of llama.cpp is written for this {definition.architecture.family}; BERT, RoBERTa, DistilBERT and NomicBERT "
            "with GELU, and embeddings as wide as the layers, are"
        )
    if definition.dense or pooling.tokens == "pooler":
        return "llama.cpp leaves out layers after pooling; use a student without them (student.head=none)"
    if pooling.tokens not in POOLINGS or pooling.several_layers:
        return f"llama.cpp has no pooling {pooling}; use {', '.join(POOLINGS)}"
    if not _vocabulary(model):
        return f"its tokenizer is {type(model.tokenizer.model).__name__} with its own rules, and only BERT's WordPiece is written"
    return ""


def write(model: SentenceModel, folder: Path, *, calibration: Sequence[str] = ()) -> list[Path]:
    """Writes the files; returns their paths."""
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    definition, params = exported(model.definition, dict(model.params))
    tensors, vocabulary = _tensors(definition.architecture, params, model.max_length), _vocabulary(model)
    for name in (FLOAT, HALF):
        _write(place / name, definition, vocabulary, tensors, longest=model.max_length)
    return [place / FLOAT, place / HALF]


def runner(model: SentenceModel, file: Path) -> TextRun:
    """A function that runs a file in llama.cpp, sentence by sentence."""
    llama = _Llama(file, model.max_length)

    def run(**given: np.ndarray) -> np.ndarray:
        lengths = given["attention_mask"].sum(axis=1)
        rows = [llama.vector(ids[:length]) for ids, length in zip(given["input_ids"], lengths, strict=True)]
        vectors = np.stack(rows)
        return unit_rows(vectors) if model.definition.normalize else vectors

    return TextRun(run, llama.tokens)


def _graph(a: Architecture) -> str:
    """llama.cpp's graph that computes the encoder; empty if there is none."""
    if a.projects_embeddings or a.relative_buckets or a.is_static:
        return ""
    if not a.beyond_bert and a.activation in ("gelu", "gelu_tanh"):
        return "bert"
    plain = not (a.head_size or a.key_heads) and a.kinds and len(set(a.kinds)) == 1 and a.kind(0).divisor == 1.0
    return "nomic-bert" if a.family == "nomic_bert" and a.activation == "silu" and plain else ""


def _write(
    file: Path,
    definition: EncoderDefinition,
    vocabulary: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    longest: int,
) -> None:
    """Writes one file, `HALF` with matrices in half precision."""
    gguf = imported("gguf", EXTRA)
    a, half = definition.architecture, file.name == HALF
    out = gguf.GGUFWriter(file, _graph(a))
    out.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if half else gguf.LlamaFileType.ALL_F32)
    out.add_context_length(longest)
    out.add_embedding_length(a.hidden_size)
    out.add_block_count(a.layers)
    out.add_feed_forward_length(a.intermediate_size)
    out.add_head_count(a.heads)
    out.add_layer_norm_eps(a.layer_norm_eps)
    out.add_causal_attention(False)
    out.add_pooling_type(gguf.PoolingType[POOLINGS[definition.pooling.tokens]])
    if a.kinds:
        out.add_rope_freq_base(a.kind(0).theta)
    add = {bool: out.add_bool, str: out.add_string, int: out.add_uint32, list: out.add_array}
    for key, value in vocabulary.items():
        add[type(value)](f"tokenizer.ggml.{key}", value)
    for name, tensor in tensors.items():
        rounded = half and tensor.ndim == 2 and name not in TABLES
        out.add_tensor(name, tensor.astype(np.float16) if rounded else tensor)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _tensors(a: Architecture, params: Mapping[str, np.ndarray], longest: int) -> dict[str, np.ndarray]:
    """Tensors by llama.cpp's names. The position table has only the rows from the first token's up to the maximum length."""
    tensors = tensors_from_params(params, tensor_names(GRAPHS[_graph(a)], params))
    if a.position_table:
        rows = tensors["position_embd.weight"]
        tensors["position_embd.weight"] = rows[a.position_offset : a.position_offset + longest]
    return tensors


def _vocabulary(model: SentenceModel) -> dict[str, Any]:
    """Settings of llama.cpp's WordPiece; empty if it would tokenise differently."""
    tokenizer, a = model.tokenizer, model.definition.architecture
    pieces, normalizer, ends = tokenizer.model, tokenizer.normalizer, tokenizer.encode("").ids
    unknown = unknown_id(tokenizer)
    if (
        not isinstance(pieces, models.WordPiece)
        or pieces.continuing_subword_prefix != "##"
        or not isinstance(normalizer, normalizers.BertNormalizer)
        or len(ends) != 2
        or unknown is None
    ):
        return {}
    added = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    special = added | {*ends, unknown, a.pad_id}
    texts, kinds = [], []
    for number in range(a.vocab_size):
        token = tokenizer.id_to_token(number)
        texts.append(f"[PAD{number}]" if token is None else token if number in special else _piece(token))
        kinds.append(5 if token is None else 3 if number in special else 1)  # unused, control and normal
    strips = normalizer.lowercase if normalizer.strip_accents is None else normalizer.strip_accents
    return {
        "model": "bert",
        "pre": "default",
        "tokens": texts,
        "token_type": kinds,
        "token_type_count": max(a.token_types, 1),
        "bos_token_id": ends[0],
        "cls_token_id": ends[0],
        "eos_token_id": ends[1],
        "seperator_token_id": ends[1],
        "unknown_token_id": unknown,
        "padding_token_id": a.pad_id,
        "normalizer.lowercase": normalizer.lowercase,
        "normalizer.strip_accents": strips,
    }


def _piece(token: str) -> str:
    """A token of WordPiece as llama.cpp writes it."""
    return token[2:] if token.startswith("##") else WORD_START + token


class _Llama:
    """A file in llama.cpp."""

    def __init__(self, file: Path, longest: int):
        self._api, self._longest = imported("llama_cpp", EXTRA), longest
        sizes = dict(n_ctx=longest, n_batch=longest, n_ubatch=longest)
        threads = dict(
            n_threads=1, n_threads_batch=1
        )  # several threads busy-wait, which takes long on a loaded machine
        self._model = self._api.Llama(model_path=str(file), embedding=True, verbose=False, **sizes, **threads)

    def tokens(self, text: str) -> list[int]:
        """Ids of a text's tokens, special ones included, truncated as by the model's tokenizer."""
        ids = self._model.tokenize(text.encode())
        return ids if len(ids) <= self._longest else [*ids[: self._longest - 1], ids[-1]]

    def vector(self, ids: Sequence[int]) -> Float[np.ndarray, " d"]:
        """The pooled vector of a sentence. Not `Llama.embed`, which truncates long texts without the final special token."""
        api, context = self._api, self._model.ctx
        batch = api.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for place, token in enumerate(ids):
                batch.token[place], batch.pos[place], batch.logits[place] = int(token), place, 1
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            if failed := api.llama_encode(context, batch):
                raise RuntimeError(f"llama.cpp failed with code {failed}")
        finally:
            api.llama_batch_free(batch)
        pooled = api.llama_get_embeddings_seq(context, 0)
        return np.ctypeslib.as_array(pooled, (self._model.n_embd(),)).copy()
