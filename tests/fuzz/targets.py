"""Readers under fuzzing: each takes bytes, and may only return or raise `InputError` of one line."""

import gzip
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.numpy
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from jaxdistill.checkpoints import modules, safetensors_file, tokenizer, weights
from jaxdistill.checkpoints.model import read_architecture
from jaxdistill.core import InputError
from jaxdistill.data import formats, vectors, words
from jaxdistill.encoders import pair_head, settings
from jaxdistill.evals import read_table

LINE_BYTES = 1 << 20
"""Limit of a line while fuzzing: small, so that reaching it takes no time."""


class Target(NamedTuple):
    """A reader, and what a campaign begins with."""

    read: Callable[[bytes, Path], object]
    """Reads bytes, which it may write into the folder."""
    seeds: Callable[[], Sequence[bytes]]
    words: Sequence[bytes] = ()
    """What mutations insert as a whole."""


def check(target: Target, data: bytes, folder: Path) -> None:
    """Raises whatever is no `InputError` of one line."""
    try:
        target.read(data, folder)
    except InputError as error:
        assert "\n" not in str(error), f"an error of several lines: {error}"
        assert len(str(error)) < 4000, f"an error of {len(str(error))} characters"


def _table(suffix: str) -> Callable[[bytes, Path], object]:
    def read(data: bytes, folder: Path) -> None:
        path = folder / f"a{suffix}"
        path.write_bytes(data)
        columns = {"text": "text"} if ".txt" in suffix else {"text": "text", "second": "b|text"}
        for row in formats.rows(path, columns, LINE_BYTES):
            assert all(isinstance(cell, str) for cell in row)
            "\0".join(row).encode()

    return read


def _pairs(data: bytes, folder: Path) -> None:
    """A table of an evaluation in both formats."""
    for suffix in (".tsv", ".csv"):
        path = folder / f"pairs{suffix}"
        path.write_bytes(data)
        try:
            list(read_table.columns(path, ("text", "b")))
        except InputError:
            if suffix == ".csv":
                raise


def _gzip(data: bytes, folder: Path) -> None:
    """The first byte chooses the format inside."""
    _table((".txt.gz", ".csv.gz", ".jsonl.gz", ".parquet.gz")[(data or b"\0")[0] % 4])(data[1:], folder)


def _npy(data: bytes, folder: Path) -> None:
    path = folder / "a.npy"
    path.write_bytes(data)
    for block in vectors.blocks(path):
        np.asarray(block, np.float32)


def _safetensors(data: bytes, folder: Path) -> None:
    path = folder / "a.safetensors"
    path.write_bytes(data)
    for name, array in safetensors_file.read_safetensors(path).items():
        array.astype(np.float32)
        assert array.shape == safetensors_file.shapes_of_safetensors(path)[name]


def _safetensors_seeds() -> list[bytes]:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(3, np.int8)}
    return [safetensors.numpy.save(tensors, metadata={"format": "pt"}), safetensors.numpy.save({})]


MODEL_FILES = {
    "config.json": {
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 8, "hidden_act": "gelu", "id2label": {"0": "a"},
    },
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 4, "pooling_mode_mean_tokens": True, "pooling_mode": "cls"},
    "2_Dense/config.json": {"in_features": 4, "out_features": 2, "bias": True, "activation_function": "torch.nn.modules.linear.Identity"},
    "sentence_bert_config.json": {"max_seq_length": 8, "do_lower_case": False},
    "config_sentence_transformers.json": {"prompts": {"query": "q: "}, "default_prompt_name": "query", "model_type": "SentenceTransformer"},
    "tokenizer_config.json": {"model_max_length": 8, "tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids"]},
    "model.safetensors.index.json": {"weight_map": {"a": "a.safetensors"}},
}  # fmt: skip


ODD_VALUES = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, -(10**30), 0.5, math.nan, math.inf, "", "x", "\0", "\ud800", "../x",
    "a" * 5000, [], [[]], [None], ["x"], [0, 1], {}, {"a": 1},
)  # fmt: skip
"""What takes the place of a value in JSON."""


def places(value: object, path: tuple = ()) -> Iterator[tuple]:
    """The path of every value in JSON, of lists the first three."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from places(inner, (*path, key))


def replaced(value: object, path: tuple, new: object) -> object:
    """JSON with another value at a place; unchanged if the place is gone."""
    if not path:
        return new
    if isinstance(value, dict) and path[0] in value:
        return value | {path[0]: replaced(value[path[0]], path[1:], new)}
    if isinstance(value, list) and isinstance(path[0], int) and path[0] < len(value):
        return [*value[: path[0]], replaced(value[path[0]], path[1:], new), *value[path[0] + 1 :]]
    return value


def edited(value: object, choices: bytes) -> bytes:
    """JSON in which each pair of bytes chooses a place and an odd value for it."""
    known = list(places(value))
    for place, odd in zip(choices[::2], choices[1::2], strict=False):
        value = replaced(value, known[place % len(known)], ODD_VALUES[odd % len(ODD_VALUES)])
    return json.dumps(value).encode()


def _model_json(data: bytes, folder: Path) -> None:
    """The first byte chooses the file of a model that the others become, or above 127 edit."""
    for name, content in MODEL_FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        if not (folder / name).exists():
            (folder / name).write_text(json.dumps(content))
    chosen = folder / list(MODEL_FILES)[(data or b"\0")[0] % len(MODEL_FILES)]
    is_edited = bool(data) and data[0] > 127
    chosen.write_bytes(edited(MODEL_FILES[str(chosen.relative_to(folder))], data[1:]) if is_edited else data[1:])
    try:
        found = modules.read_modules(folder)
        architecture = read_architecture(found.transformer)
        pair_head.classifier_labels(settings.read_settings(folder / "config.json"), folder / "config.json")
        tokenizer.length_limit(folder)
        tokenizer.gives_types(folder)
        if chosen.name.endswith(".index.json"):
            weights.checkpoint_shapes(folder)
        weights.check_sizes(architecture, {"embeddings": (16, 16)} | {str(n): () for n in range(16)}, source="a model")
    finally:
        chosen.unlink()


def _model_json_seeds() -> list[bytes]:
    plain = [bytes([place]) + json.dumps(content).encode() for place, content in enumerate(MODEL_FILES.values())]
    return [*plain, *(bytes([128 + place, 1, 2, 3, 4]) for place in range(len(MODEL_FILES)))]


def _tokenizer(data: bytes, folder: Path) -> None:
    """Loads a `tokenizer.json` and reads some text with it, as training does."""
    (folder / "tokenizer.json").write_bytes(data)
    made = tokenizer.read_tokenizer(folder, vocab_size=1000, lower_case=False)
    made.enable_truncation(16)
    words.tokenised_words(made, ["A cat sleeps, \u00e4 \u65e5\u672c \U0001f642!", "x" * 200], "", 16)


def _tokenizer_seeds() -> list[bytes]:
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "a": 2, "c": 3, "t": 4, "##a": 5, "##t": 6, "ca": 7, "cat": 8, "\u2581": 9}
    byte_fallback = {f"<0x{byte:02X}>": 10 + byte for byte in range(256)}
    piece = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    piece.normalizer, piece.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    piece.post_processor = processors.TemplateProcessing(
        single="[PAD] $A [UNK]", special_tokens=[("[PAD]", 0), ("[UNK]", 1)]
    )
    merged = Tokenizer(
        models.BPE(vocabulary | byte_fallback, [("c", "a"), ("ca", "t")], unk_token="[UNK]", byte_fallback=True)
    )
    merged.pre_tokenizer = pre_tokenizers.Split(Regex("\\w+"), "isolated")
    merged.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" +"), "\u2581")])
    unigram = Tokenizer(models.Unigram([("[UNK]", 0.0), ("a", -1.0), ("cat", -2.0), ("\u2581", -1.5)], 0))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.add_special_tokens(["<s>"])
    return [made.to_str().encode() for made in (piece, merged, unigram)]


def _parquet_seeds() -> list[bytes]:
    import pyarrow
    from pyarrow import parquet

    text = {"text": ["a", "b\n", None, "a"], "b": ["x", "y", "z", "x"]}
    seeds = []
    for table in (pyarrow.table(text), pyarrow.table({"text": [1, 2]})):
        for options in ({"compression": "NONE"}, {"compression": "snappy", "use_dictionary": False}):
            file = io.BytesIO()
            parquet.write_table(table, file, **options)
            seeds.append(file.getvalue())
    return seeds


def _npy_seeds() -> list[bytes]:
    arrays = [np.arange(6, dtype=kind).reshape(3, 2) for kind in ("f4", ">f2", "i8")] + [np.zeros((0, 4), "f4")]
    files = []
    for array in arrays:
        file = io.BytesIO()
        np.save(file, array)
        files.append(file.getvalue())
    packed = io.BytesIO()
    np.savez(packed, a=arrays[0])
    return [*files, packed.getvalue()]


_TSV = b"text\tb\nA cat.\tx\n\ny\tz\r\n"
_CSV = b'text,b\n"A ""cat"", it\nis",x\ny,z\n'
_JSONL = b'{"text": "A cat.", "b": null, "n": 1.5e3}\n\n{"text": "\\u00e4", "b": "x"}\n'

TARGETS = {
    "txt": Target(
        _table(".txt"), lambda: [b"\xef\xbb\xbfA cat.\nD\xc3\xb6rfer\r\nlast\rx", b"\n\n", b"\xf0\x9f\x99\x82\n"]
    ),
    "tsv": Target(_table(".tsv"), lambda: [_TSV, b"text\nx\n", b"text\ttext\n1\t2\n"], [b"text", b"\t", b"\r\n"]),
    "csv": Target(_table(".csv"), lambda: [_CSV, b"text\nx\n", b'text,b\n"1', b"a\rb\n"], [b"text", b'""', b"\r\n"]),
    "pairs": Target(_pairs, lambda: [_TSV, _CSV], [b"text", b"b", b"\t"]),
    "jsonl": Target(
        _table(".jsonl"), lambda: [_JSONL], [b'{"text":', b"[" * 50, b"1" * 50, b"\\ud83d", b"NaN", b"1e999"]
    ),
    "parquet": Target(_table(".parquet"), _parquet_seeds),
    "gz": Target(
        _gzip, lambda: [bytes([k]) + gzip.compress(d, mtime=0) for k, d in enumerate((b"x\n" * 9, _CSV, _JSONL))]
    ),
    "safetensors": Target(_safetensors, _safetensors_seeds, [b'"F8_E4M3"', b'"F4"', b"99999999999", b"-1", b"[" * 40]),
    "json": Target(
        _model_json, _model_json_seeds, [b"null", b"true", b"1e999", b"[]", b"{}", b"9" * 30, b"../", b'"\\u0000"']
    ),
    "tokenizers": Target(
        _tokenizer, _tokenizer_seeds, [b"null", b'"type":"BPE"', b'"ByteLevel"', b"true", b"4294967295", b"[]"]
    ),
    "npy": Target(_npy, _npy_seeds, [b"'descr': '<f4'", b"True", b"(9999999999999, 2)", b"|O", b"<f8"]),
}
