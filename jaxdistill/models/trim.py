"""Trims a tokenizer, and the word embeddings with it, to the tokens of a text, which it then tokenises as before.

WordPiece takes the longest entry at each place, BPE its first merge, Unigram the likeliest path. Removing entries that were
not taken does not change these choices. So the tokens of the text stay, and with them:

- special tokens, and the single characters of all these tokens, so that other words of the same letters can be spelled;
- BPE: the merges that lead to each of these tokens, and all bytes if the tokenizer reads bytes;
- Unigram: the least likely piece, to which the score of an unknown character is relative, and all bytes of its fallback.
"""

import dataclasses
import hashlib
import json
import logging
import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer
from tokenizers import Tokenizer, models, pre_tokenizers

from jaxdistill.core import InputError, unknown_id
from jaxdistill.core.files import make_folder_atomic
from jaxdistill.core.paths import cache_folder
from jaxdistill.data.options import Data
from jaxdistill.data.text import TEXT, columns_of, content_digest, is_plain, read, used_roles
from jaxdistill.encoders.hugging_face import read_settings
from jaxdistill.models.checkpoints.folder import write_json
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.checkpoints.tokenizer import CONFIG, SPECIAL_TOKENS, named_tokens, read_tokenizer, tokenizer_json
from jaxdistill.models.model_text import sentence_roles

FORMAT = 2
"""Version of trimming, part of the digest; bump to invalidate trimmed tokenizers in caches."""
CHUNK_ROWS = 4096
"""Sentences tokenised at a time."""
WORDS = "transformer/embeddings/word/embedding"
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""Names of the bytes in a byte fallback."""


log = logging.getLogger(__name__)


def trimmed(tokenizer: Tokenizer, used: Iterable[int]) -> Tokenizer:
    """The tokenizer with the entries of these ids, special tokens, and the entries that spell other words."""
    content, ids = json.loads(tokenizer.to_str()), tokenizer.get_vocab(with_added_tokens=True)
    model, texts = content["model"], {id: text for text, id in ids.items()}
    special = {token["content"] for token in content["added_tokens"] if token["special"]} | {model.get("unk_token")}
    if model.get("unk_id") is not None:
        special.add(model["vocab"][model["unk_id"]][0])
    for part in _processors(content):
        special |= {part[role][0] for role in ("sep", "cls") if role in part}
        special |= {text for token in part.get("special_tokens", {}).values() for text in token["tokens"]}
    entries = {texts[id] for id in used if id in texts} | (special & ids.keys())
    entries |= {entry for entry in _spelling(content, entries) if entry in ids}
    if model["type"] == "BPE":
        entries |= _merged(model, entries - {token["content"] for token in content["added_tokens"]})
    if model["type"] == "Unigram":
        entries.add(min(model["vocab"], key=lambda piece: piece[1])[0])
    order = sorted(ids[entry] for entry in entries)
    new = {old: index for index, old in enumerate(order)}
    return Tokenizer.from_str(tokenizer_json(_renumbered(content, ids, new)))


def old_ids(before: Tokenizer, after: Tokenizer) -> Integer[np.ndarray, " t"]:
    """The id of each entry of a trimmed tokenizer before trimming, ascending."""
    entries = (str(after.id_to_token(index)) for index in range(after.get_vocab_size()))
    return np.array([before.token_to_id(entry) for entry in entries], np.int64)


def _processors(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The post-processor, or the parts of a sequence of them; changing these changes `content`."""
    outer = content.get("post_processor") or {}
    return outer.get("processors", [outer])


def _spelling(content: Mapping[str, Any], entries: Collection[str]) -> set[str]:
    """Single characters of the entries and of ASCII, and bytes; they need not be in the vocabulary."""
    model = content["model"]
    if model["type"] == "WordLevel":
        return set()
    prefix = model.get("continuing_subword_prefix") or ""
    characters = {character for entry in entries for character in entry.removeprefix(prefix)} | set(string.printable)
    spelling = characters | {prefix + character for character in characters}
    if model.get("byte_fallback"):
        spelling |= set(BYTES)
    if any('"ByteLevel"' in json.dumps(content.get(part)) for part in ("pre_tokenizer", "normalizer")):
        spelling |= set(pre_tokenizers.ByteLevel.alphabet())
    return spelling


def _merged(model: Mapping[str, Any], entries: Collection[str]) -> set[str]:
    """All that the merges from characters to the entries produce; BPE never merges across tokens."""
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    merged = set()
    for entry in entries:
        symbols = list(entry)
        while pairs := [(ranks[pair], index) for index, pair in enumerate(pairwise(symbols)) if pair in ranks]:
            index = min(pairs)[1]
            symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]
            merged.add(symbols[index])
    return merged


def _renumbered(content: dict[str, Any], ids: Mapping[str, int], new: Mapping[int, int]) -> dict[str, Any]:
    """The tokenizer's JSON with only the entries of `new`, which maps old ids to new ones."""
    model = content["model"]
    if model["type"] == "Unigram":
        vocab = [piece for old, piece in enumerate(model["vocab"]) if old in new]
        pieces = {"vocab": vocab, "unk_id": new.get(model["unk_id"])}
    else:
        vocab = {entry: new[old] for entry, old in model["vocab"].items() if old in new}
        merges = [pair for pair in model.get("merges", []) if {*pair, "".join(pair)} <= vocab.keys()]
        pieces = {"vocab": vocab} | ({"merges": merges} if model["type"] == "BPE" else {})
    added = [token | {"id": new[token["id"]]} for token in content["added_tokens"] if token["id"] in new]
    for part in _processors(content):
        for role in ("sep", "cls"):
            if role in part:
                part[role][1] = new[part[role][1]]
        for token in part.get("special_tokens", {}).values():
            token["ids"] = [new[ids[text]] for text in token["tokens"]]
    return content | {"model": model | pieces, "added_tokens": added}


def write(before: Tokenizer, after: Tokenizer, origin: Path, folder: Path) -> None:
    """Writes the trimmed `tokenizer.json`, the settings of `origin` with renumbered ids, and for WordPiece `vocab.txt`."""
    content = json.loads(after.to_str())
    (folder / "tokenizer.json").write_text(tokenizer_json(content, indent=2), encoding="utf-8")
    new = {str(old): str(index) for index, old in enumerate(old_ids(before, after).tolist())}
    for name in (CONFIG, SPECIAL_TOKENS):
        if (origin / name).exists():
            settings = read_settings(origin / name)
            if isinstance(decoder := settings.get("added_tokens_decoder"), dict):
                settings["added_tokens_decoder"] = {new[old]: token for old, token in decoder.items() if old in new}
            write_json(folder / name, settings)
    if content["model"]["type"] == "WordPiece":
        entries = (after.id_to_token(index) for index in range(len(new)))
        (folder / "vocab.txt").write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")


def with_trimmed(model: SentenceModel, folder: Path) -> SentenceModel:
    """The model with the trimmed tokenizer in `folder` and the corresponding rows of its word embeddings."""
    tokenizer = read_tokenizer(folder, vocab_size=None, lower_case=False)
    tokenizer.enable_truncation(model.max_length)
    rows, old = old_ids(model.tokenizer, tokenizer), model.definition.architecture
    pad_id = rows.tolist().index(old.pad_id) if old.pad_id in rows else 0
    architecture = dataclasses.replace(old, vocab_size=len(rows), pad_id=pad_id)
    return model.remade(
        dataclasses.replace(model.definition, architecture=architecture),
        model.params | {WORDS: np.ascontiguousarray(model.params[WORDS][rows])},
        f"{model.source}, vocabulary trimmed to {len(rows):,} tokens",
        tokenizer=tokenizer,
        tokenizer_folder=folder,
    )


def needed_rows(model: SentenceModel) -> set[int]:
    """Ids that stay whatever the text: the padding token's, all below the position offset (RoBERTa's), and those of prompts and named
    tokens."""
    architecture, tokenizer = model.definition.architecture, model.tokenizer
    rows = {architecture.pad_id, *range(architecture.position_offset)}
    for prompt in model.prompts.values():
        rows |= set(tokenizer.encode(prompt).ids)
    named = (tokenizer.token_to_id(token) for token in named_tokens(model.tokenizer_folder))
    return rows | {id for id in named if id is not None}


def unknown_prefixes(tokenizer: Tokenizer, text: str) -> set[int]:
    """Ids of the WordPiece entries before the unknown part of a word, which makes the whole word unknown.

    They must stay: without them, shorter entries could be taken and the rest of the word become known. Empty for other kinds of
    tokenizers.
    """
    model, unknown, found = tokenizer.model, unknown_id(tokenizer), set[int]()
    if not isinstance(model, models.WordPiece):
        return found
    normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    words = tokenizer.pre_tokenizer.pre_tokenize_str(normal) if tokenizer.pre_tokenizer else [(normal, (0, 0))]
    for word in (word for word, _ in words if len(word) <= model.max_input_chars_per_word):
        # The longest known beginning has the entries that are taken from the whole word.
        beginnings = ({token.id for token in model.tokenize(word[:end])} for end in range(len(word), 0, -1))
        found |= next((ids for ids in beginnings if unknown not in ids), set())
    return found


def trimmed_to_text(specs: Sequence[str], data: Data, model: SentenceModel) -> SentenceModel:
    """The model with its tokenizer trimmed to a text, which it tokenises as before; the tokenizer is cached.

    All columns are read, also those that the training does not use: the student may be meant for more languages.
    """
    columns, needed = columns_of(dict(data.columns) or (TEXT,)), needed_rows(model)
    prompts = sorted({model.role_prompts[role] for role in ("", *used_roles(sentence_roles(data)))})
    inputs = [FORMAT, content_digest(specs), columns, model.tokenizer.to_str(), prompts, sorted(needed)]
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]
    folder = cache_folder(data.cache_folder) / "tokenizers" / digest

    def sentences() -> Iterator[str]:
        for spec in specs:
            # A plain text has no column but the sentences.
            for row in read([spec], {TEXT: TEXT} if is_plain(spec) else columns, cache=data.cache_folder):
                yield from (prompt + cell.strip() for cell in row if cell.strip() for prompt in prompts)

    def fill(unfinished: Path) -> None:
        ids, digest_before = _tokens(model.tokenizer, sentences(), np.arange(len(model.params[WORDS])))
        result = trimmed(model.tokenizer, needed | ids)
        if _tokens(result, sentences(), old_ids(model.tokenizer, result))[1] != digest_before:
            raise InputError(f"student.trim changes how {model.source} tokenises the text; leave student.trim empty.")
        write(model.tokenizer, result, model.tokenizer_folder, unfinished)

    if not folder.is_dir():
        make_folder_atomic(folder, fill, what="the trimmed tokenizer")
    smaller = with_trimmed(model, folder)
    log.info(
        "vocabulary trimmed from %s to %s tokens, which saves %s parameters",
        *(f"{one.definition.architecture.vocab_size:,}" for one in (model, smaller)),
        f"{model.parameter_count - smaller.parameter_count:,}",
    )
    return smaller


def _tokens(tokenizer: Tokenizer, sentences: Iterator[str], old_ids: Integer[np.ndarray, " v"]) -> tuple[set[int], str]:
    """Ids that occur in a text or spell its unknown words, and a digest of all ids in order, as numbered in `old_ids`."""
    whole = Tokenizer.from_str(tokenizer.to_str())
    whole.no_truncation()
    unknown, used, digest = unknown_id(whole), set[int](), hashlib.sha256()
    while chunk := list(islice(sentences, CHUNK_ROWS)):
        for sentence, encoding in zip(chunk, whole.encode_batch(chunk), strict=True):
            used.update(encoding.ids)
            digest.update(old_ids[np.array(encoding.ids, np.int64)].tobytes() + b"|")
            if unknown in encoding.ids:
                used |= unknown_prefixes(whole, sentence)
    return used, digest.hexdigest()
