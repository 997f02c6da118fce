"""How is a checkpoint's tokenizer read? As a `tokenizers.Tokenizer` that truncates and never pads."""

from pathlib import Path

import tokenizers

from jaxdistill.core import InputError
from jaxdistill.encoders.modules import read_json

UNLIMITED = 10**6
"""Tokenizers without a limit of their own have 1e30 as `model_max_length`."""


def read_tokenizer(folder: Path, *, vocab_size: int | None, lower_case: bool) -> tokenizers.Tokenizer:
    """The tokenizer in `folder`; its own padding and truncation are switched off.

    Args:
      folder: with `tokenizer.json`, or older files that transformers can convert.
      vocab_size: rows of the word embedding; a tokenizer that needs more is refused. None: there is none yet.
      lower_case: lower-case the text first (`do_lower_case` of sentence-transformers).
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path)) if path.exists() else _converted(folder)
    except InputError:
        raise
    except Exception as error:  # tokenizers raises plain Exception
        raise InputError(f"{path} is not a tokenizer that can be read ({str(error)[:200]}).") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values())
    if vocab_size is not None and largest >= vocab_size:
        raise InputError(
            f"{folder}: the tokenizer has ids up to {largest}, the word embedding only {vocab_size} rows;"
            " they do not belong together."
        )
    if lower_case:
        before = [tokenizers.normalizers.Lowercase()] + ([tokenizer.normalizer] if tokenizer.normalizer else [])
        tokenizer.normalizer = tokenizers.normalizers.Sequence(before)
    return tokenizer


def length_limit(folder: Path) -> int:
    """`model_max_length` of the tokenizer; 0 where there is none."""
    path = folder / "tokenizer_config.json"
    limit = read_json(path).get("model_max_length") if path.exists() else None
    return int(limit) if isinstance(limit, int | float) and limit < UNLIMITED else 0


def _converted(folder: Path) -> tokenizers.Tokenizer:
    files = [name for name in ("vocab.txt", "vocab.json", "sentencepiece.bpe.model") if (folder / name).exists()]
    if not files:
        raise InputError(f"{folder} has no tokenizer; looked for tokenizer.json, vocab.txt, vocab.json.")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise InputError(
            f"{folder} has {files[0]} but no tokenizer.json; to convert it: pip install transformers"
        ) from None
    return AutoTokenizer.from_pretrained(str(folder), use_fast=True).backend_tokenizer
