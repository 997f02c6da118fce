"""Checks a caller's sentences and numbers."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxdistill.core import InputError


def checked_sentences(sentences: Iterable[str], caller: str) -> list[str]:
    """The sentences as a list; raises `InputError` for anything but a collection of strings."""
    if isinstance(sentences, str | bytes | Mapping) or not isinstance(sentences, Iterable):
        raise InputError(
            f"{caller} takes a list of sentences, not {type(sentences).__name__}; put a single sentence in a list."
        )
    if hasattr(sentences, "columns") or hasattr(sentences, "column_names"):
        raise InputError(f"{caller} takes a list of sentences, not a table; give one column of it.")
    listed: Any = sentences
    if hasattr(listed, "to_pylist"):  # iterating over pyarrow's columns would give its own scalars
        listed = listed.to_pylist()
    if isinstance(listed, set | frozenset) or getattr(listed, "shape", None) == ():
        kind = type(listed).__name__
        raise InputError(f"{caller}'s argument has type {kind}, which has no order or rows; give a list.")
    texts = list(listed)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"{caller}: sentence {index} is {text!r:.40}; it must be a text.")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{caller}: sentence {index} has half of a surrogate pair, which no tokenizer can read."
            ) from None
    return texts


def whole_number(value: int | None, name: str, *, least: int, most: int | None = None) -> int | None:
    """Checks a caller's whole number, which may be None; raises `InputError` for anything else or out of range."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if value is not None and not (is_whole and least <= value <= (value if most is None else most)):
        beyond = f" and at most {most}" if most is not None else ""
        raise InputError(f"{name}={value!r} must be a whole number, at least {least}{beyond}.")
    return value
