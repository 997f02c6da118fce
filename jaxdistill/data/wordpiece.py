"""Trains a tokenizer for a fresh student on the text, and caches it by digest.

Like BERT uncased, it lower-cases text. Unlike BERT, it keeps accents, which distinguish words in most languages (German `schon` and
`schön`). Text without spaces, such as Thai, is split into the longest known pieces. `transformers` loads the folder as `BertTokenizer`.

NOTE: by default, `tokenizers` numbers single characters in the order of a hash table, which differs between processes, and breaks ties
between equally frequent pairs by these numbers: the same text gives different vocabularies. Here characters are counted first and
numbered by frequency, so the same text gives the same tokenizer.
"""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from jaxdistill.core.paths import make_folder
from jaxdistill.data.text import ColumnNames, check_unchanged, columns_of, content_digest, read

FORMAT = 2
"""Version of the training procedure, part of the digest; bump to invalidate cached tokenizers."""
SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
SETTINGS = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": False} | SPECIAL
"""`tokenizer_config.json`. NOTE: without `strip_accents`, transformers would strip accents when it lower-cases."""
MAX_CHARACTERS = 1000
"""Maximum number of known characters; rarer ones are unknown. At most a quarter of the entries, since each takes two."""
LONG_RUN = re.compile(r"[^\s!-/:-@\[-`{-~]{31,}")
"""Characters without space or punctuation between them, too many for a word."""
MAX_IN_LONG_RUNS = 0.1
"""Maximum fraction of characters in long runs; above it, a text counts as written without spaces."""

log = logging.getLogger(__name__)


def train_wordpiece(
    specs: Sequence[str], *, entries: int, cache_folder: str | Path, columns: ColumnNames = ("text",)
) -> Path:
    """Trains a tokenizer on all `columns` of a text, or finds it in the cache; returns its folder. Each row counts once, whatever
    `data.weights` are. The vocabulary has `entries` pieces, or fewer if too few occur twice."""
    columns = columns_of(columns)
    text_digest = content_digest(specs)
    key = json.dumps([FORMAT, text_digest, columns, entries], sort_keys=True)
    folder = Path(cache_folder) / "tokenizers" / hashlib.sha256(key.encode()).hexdigest()[:32]

    def texts() -> Iterator[str]:
        return chain.from_iterable(read(specs, columns, cache=str(cache_folder)))

    def write(unfinished: Path) -> None:
        normalizer: Any = normalizers.BertNormalizer(strip_accents=False)
        counts = Counter[str]()
        in_long_runs = 0
        for text in texts():
            normal = normalizer.normalize_str(text)
            counts.update(normal)
            in_long_runs += sum(map(len, LONG_RUN.findall(normal)))
        visible = (character for character in counts if not character.isspace())
        characters = sorted(visible, key=lambda character: (-counts[character], character))  # ties by code point
        characters = characters[: min(MAX_CHARACTERS, (entries - len(SPECIAL)) // 4)]
        pre_tokenizer: Any = pre_tokenizers.BertPreTokenizer()
        settings = SETTINGS
        if in_long_runs / max(counts.total(), 1) > MAX_IN_LONG_RUNS:
            # In text without spaces, one rare character, or a length above 100, would make a sentence a single unknown token.
            rare_character = Regex("[^" + "".join(f"\\x{{{ord(character):x}}}" for character in characters) + "]")
            short_piece = Regex(".{1,100}")
            splits = [pre_tokenizers.Split(pattern, "isolated") for pattern in (rare_character, short_piece)]
            pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizer, *splits])
            # Not `BertTokenizer`, which would not split long runs.
            names = ["input_ids", "token_type_ids", "attention_mask"]
            settings = SPECIAL | {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": names}

        def bert_like(model: models.WordPiece) -> Tokenizer:
            tokenizer = Tokenizer(model)
            tokenizer.normalizer = normalizer
            tokenizer.pre_tokenizer = pre_tokenizer
            return tokenizer

        # In the draft, pieces such as `##a` are special tokens, which fixes their order. Only its vocabulary is used.
        draft = bert_like(models.WordPiece(unk_token=SPECIAL["unk_token"]))
        trainer = trainers.WordPieceTrainer(
            vocab_size=entries,
            min_frequency=2,
            special_tokens=[*SPECIAL.values(), *(f"##{character}" for character in characters)],
            initial_alphabet=characters,
            limit_alphabet=len(characters),
            show_progress=False,
        )
        draft.train_from_iterator(texts(), trainer)
        tokenizer = bert_like(models.WordPiece(draft.get_vocab(), unk_token=SPECIAL["unk_token"]))
        tokenizer.add_special_tokens(list(SPECIAL.values()))
        special = [(token, tokenizer.token_to_id(token)) for token in (SPECIAL["cls_token"], SPECIAL["sep_token"])]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
        )
        tokenizer.decoder = decoders.WordPiece(prefix="##")
        check_unchanged(specs, text_digest)  # else the folder would be named by another text
        tokenizer.save(str(unfinished / "tokenizer.json"))
        tokenizer.model.save(str(unfinished))  # `vocab.txt`
        (unfinished / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        log.info("a tokenizer of %d entries was trained on the text: %s", tokenizer.get_vocab_size(), folder)

    make_folder(folder, write)
    return folder
