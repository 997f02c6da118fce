"""Trims a tokenizer, and the word embeddings with it, to the tokens of a text, which it then tokenises as before.

WordPiece takes the longest entry at each position, BPE its first merge, Unigram the likeliest path. Removing entries that were
not taken does not change these choices. So the tokens of the text stay, and with them:

- special tokens, and the single characters of the tokens that stay, so that other words of the same letters can be spelled;
- BPE: the merges that lead to each token that stays, and all bytes if the tokenizer reads bytes;
- Unigram: the least likely piece, to which the score of an unknown character is relative, and all bytes of its fallback.
"""

import dataclasses
import hashlib
import json
import logging
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer
from tokenizers import Tokenizer, models, pre_tokenizers

from jaxdistill.core import InputError, unknown_id
from jaxdistill.core.paths import cache_folder, make_folder
from jaxdistill.data.chunks import bare
from jaxdistill.data.options import Data
from jaxdistill.data.text import TEXT, columns_of, content_digest, is_plain, read, used_roles
from jaxdistill.encoders.hugging_face import read_settings
from jaxdistill.models.checkpoints.folder import write_json
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.checkpoints.tokenizer import CONFIG, SPECIAL_TOKENS, named_tokens, read_tokenizer, tokenizer_json
from jaxdistill.models.model_text import sentence_roles

FORMAT = 2  # version of trimming, part of the digest; bump to invalidate trimmed tokenizers in caches
WORDS = "transformer/embeddings/word/embedding"
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))  # entries for bytes (`byte_fallback`)

log = logging.getLogger(__name__)


def trimmed(tokenizer: Tokenizer, used: Iterable[int]) -> Tokenizer:
    """The tokenizer with only the entries of the ids in `used`, special tokens, and the entries that spell other words."""
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    ids = tokenizer.get_vocab(with_added_tokens=True)
    entry_of_id = {id: entry for entry, id in ids.items()}
    post_processor = content.get("post_processor") or {}
    processors = post_processor.get("processors", [post_processor])
    # Special tokens of the vocabulary, for unknown text, and of the post-processor.
    special = {token["content"] for token in content["added_tokens"] if token["special"]} | {model.get("unk_token")}
    if model.get("unk_id") is not None:
        special.add(model["vocab"][model["unk_id"]][0])
    for processor in processors:
        special |= {processor[role][0] for role in {"sep", "cls"} & processor.keys()}
        for token in processor.get("special_tokens", {}).values():
            special |= set(token["tokens"])
    entries = {entry_of_id[id] for id in used if id in entry_of_id} | (special & ids.keys())
    entries |= _spelling_entries(entries, content, ids.keys())
    new_ids = {old: new for new, old in enumerate(sorted(ids[entry] for entry in entries))}
    # The vocabulary with its new ids, and the merges of which both parts and the result stay.
    if model["type"] == "Unigram":
        model["vocab"] = [piece for old, piece in enumerate(model["vocab"]) if old in new_ids]
        model["unk_id"] = new_ids.get(model["unk_id"])
    else:
        model["vocab"] = {entry: new_ids[old] for entry, old in model["vocab"].items() if old in new_ids}
    if model["type"] == "BPE":
        model["merges"] = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= model["vocab"].keys()]
    # The new ids of added tokens, and of the post-processor's special tokens: `sep` and `cls` are pairs `[text, id]`.
    added = [token | {"id": new_ids[token["id"]]} for token in content["added_tokens"] if token["id"] in new_ids]
    for processor in processors:
        for role in {"sep", "cls"} & processor.keys():
            processor[role][1] = new_ids[processor[role][1]]
        for token in processor.get("special_tokens", {}).values():
            token["ids"] = [new_ids[ids[text]] for text in token["tokens"]]
    return Tokenizer.from_str(tokenizer_json(content | {"added_tokens": added}))


def _spelling_entries(entries: Set[str], content: Mapping[str, Any], vocabulary: Set[str]) -> set[str]:
    """Entries of the `vocabulary` that spell `entries` and other words, see the top of this file. `content` is the tokenizer's JSON."""
    model = content["model"]
    spelling = set[str]()
    if model["type"] != "WordLevel":
        # The characters of the entries and of ASCII, and bytes, spell other words.
        prefix = model.get("continuing_subword_prefix") or ""
        characters = {character for entry in entries for character in entry.removeprefix(prefix)}
        characters |= set(string.printable)
        spelling |= characters | {prefix + character for character in characters}
        if model.get("byte_fallback"):
            spelling |= set(BYTES)
        if any('"ByteLevel"' in json.dumps(content.get(step)) for step in ("pre_tokenizer", "normalizer")):
            spelling |= set(pre_tokenizers.ByteLevel.alphabet())
        spelling &= vocabulary
    if model["type"] == "BPE":
        # The results of all merges that lead from characters to an entry, in the order in which BPE makes them.
        ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        for entry in (entries | spelling) - {token["content"] for token in content["added_tokens"]}:
            symbols = list(entry)
            while pairs := [(ranks[pair], index) for index, pair in enumerate(pairwise(symbols)) if pair in ranks]:
                _, index = min(pairs)  # the leftmost pair of the lowest rank
                symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]
                spelling.add(symbols[index])
    if model["type"] == "Unigram":
        least_likely, _ = min(model["vocab"], key=itemgetter(1))
        spelling.add(least_likely)
    return spelling


def old_ids(before: Tokenizer, after: Tokenizer) -> Integer[np.ndarray, " v"]:
    """The ids that the entries of the trimmed tokenizer `after` had in `before`, ascending."""
    entries = (str(after.id_to_token(index)) for index in range(after.get_vocab_size()))
    return np.array([before.token_to_id(entry) for entry in entries], np.int64)


def write(tokenizer: Tokenizer, origin: Path, folder: Path) -> None:
    """Writes a trimmed tokenizer to `folder`, the settings from the folder `origin` and, for WordPiece, `vocab.txt` included."""
    content = json.loads(tokenizer.to_str())
    (folder / "tokenizer.json").write_text(tokenizer_json(content, indent=2), encoding="utf-8")
    for name in (CONFIG, SPECIAL_TOKENS):
        if (origin / name).exists():
            settings = read_settings(origin / name)
            settings.pop("added_tokens_decoder", None)  # has the old ids; tokenizer.json has the new ones
            write_json(folder / name, settings)
    if content["model"]["type"] == "WordPiece":
        entries = (tokenizer.id_to_token(id) for id in range(tokenizer.get_vocab_size()))
        (folder / "vocab.txt").write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")


def unknown_prefixes(tokenizer: Tokenizer, text: str) -> set[int]:
    """Ids of the entries that WordPiece takes from an unknown word before it fails. They must stay: without them, it could take shorter
    entries and succeed, and the word would be known. Empty for other kinds of tokenizers."""
    model, unknown = tokenizer.model, unknown_id(tokenizer)
    if not isinstance(model, models.WordPiece):
        return set()
    prefixes = set[int]()
    normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    words = tokenizer.pre_tokenizer.pre_tokenize_str(normal) if tokenizer.pre_tokenizer else [(normal, (0, 0))]
    for word, _ in words:
        if len(word) > model.max_input_chars_per_word:  # always unknown
            continue
        # WordPiece takes the entries of the longest known beginning of the word; of a known word, this is the whole word.
        for end in range(len(word), 0, -1):
            ids = {token.id for token in model.tokenize(word[:end])}
            if unknown not in ids:
                prefixes |= ids
                break
    return prefixes


def trimmed_to_text(specs: Sequence[str], data: Data, model: SentenceModel) -> SentenceModel:
    """The model with its tokenizer trimmed to the text of `specs`, which it tokenises as before. The tokenizer is cached. All
    `data.columns` are read, also those that the training does not use, because the student may be for more languages."""
    columns = columns_of(dict(data.columns) or (TEXT,))
    architecture = model.definition.architecture
    # These ids stay with any text: those of padding, prompts and named special tokens. So do all below `position_offset`, because ids
    # are renumbered without gaps, and RoBERTa's padding must keep the id `position_offset - 1`, see `position_rows`.
    needed = {architecture.pad_id, *range(architecture.position_offset)}
    for prompt in model.prompts.values():
        needed |= set(model.tokenizer.encode(prompt).ids)
    named = (model.tokenizer.token_to_id(token) for token in named_tokens(model.tokenizer_folder))
    needed |= {id for id in named if id is not None}
    # Each sentence is read after every one of these, whichever role its column has.
    role_prompts = sorted({model.role_prompts[role] for role in ("", *used_roles(sentence_roles(data)))})
    cache_key = [FORMAT, content_digest(specs), columns, model.tokenizer.to_str(), role_prompts, sorted(needed)]
    digest = hashlib.sha256(json.dumps(cache_key, sort_keys=True).encode()).hexdigest()[:32]
    folder = cache_folder(data.cache_folder) / "tokenizers" / digest

    def sentences() -> Iterator[str]:
        for spec in specs:
            # A plain text has a single column.
            for row in read([spec], {TEXT: TEXT} if is_plain(spec) else columns, cache=data.cache_folder):
                yield from (prompt + cell.strip() for cell in row if cell.strip() for prompt in role_prompts)

    def write_trimmed(unfinished: Path) -> None:
        used, digest_before = _tokens(model.tokenizer, sentences(), np.arange(len(model.params[WORDS])))
        smaller = trimmed(model.tokenizer, needed | used)
        _, digest_after = _tokens(smaller, sentences(), old_ids(model.tokenizer, smaller))
        if digest_after != digest_before:
            raise InputError(f"student.trim changes how {model.source} tokenises the text; leave student.trim empty.")
        write(smaller, model.tokenizer_folder, unfinished)

    make_folder(folder, write_trimmed)
    tokenizer = read_tokenizer(folder)
    tokenizer.enable_truncation(model.max_length)
    words = model.params[WORDS]
    rows = old_ids(model.tokenizer, tokenizer)  # the rows of `words` that stay
    smaller = dataclasses.replace(
        model, tokenizer=tokenizer, tokenizer_folder=folder,
        params=model.params | {WORDS: np.ascontiguousarray(words[rows])},
        source=f"{model.source}, vocabulary trimmed to {len(rows):,} tokens",
    )  # fmt: skip
    saved = model.parameter_count - smaller.parameter_count
    log.info(f"vocabulary trimmed from {len(words):,} to {len(rows):,} tokens, which saves {saved:,} parameters")
    # The tokenizer may have no entry for the padding.
    new_pad_id = rows.tolist().index(architecture.pad_id) if architecture.pad_id in rows else 0
    return smaller.with_architecture(vocab_size=len(rows), pad_id=new_pad_id)


def _tokens(tokenizer: Tokenizer, texts: Iterator[str], ids_before: Integer[np.ndarray, " v"]) -> tuple[set[int], str]:
    """Ids that occur in the texts or in `unknown_prefixes`, and a digest of the texts' tokens. `ids_before` maps the tokenizer's ids to
    the untrimmed one's, so that digests before and after trimming can be compared."""
    tokenizer = bare(tokenizer)  # a copy, because the model's must keep its truncation
    unknown = unknown_id(tokenizer)
    used = set[int]()
    digest = hashlib.sha256()
    while chunk := list(islice(texts, 4096)):
        for text, encoding in zip(chunk, tokenizer.encode_batch(chunk), strict=True):
            used.update(encoding.ids)
            digest.update(ids_before[np.array(encoding.ids, np.int64)].tobytes() + b"|")
            if unknown in encoding.ids:
                used |= unknown_prefixes(tokenizer, text)
    return used, digest.hexdigest()
