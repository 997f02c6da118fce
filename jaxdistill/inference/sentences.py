"""Checks a caller's sentences, prompts and numbers."""

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from jaxdistill.checkpoints.prompts import NO_PROMPT
from jaxdistill.cli import did_you_mean
from jaxdistill.core import InputError
from jaxdistill.data.in_memory import values_of


def checked_sentences(given: Iterable[str], caller: str) -> list[str]:
    """The sentences as a list; raises `InputError` for anything but a collection of strings."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InputError(
            f"{caller} takes a list of sentences, not {type(given).__name__}; put a single sentence in a list."
        )
    if hasattr(given, "columns") or hasattr(given, "column_names"):
        raise InputError(f"{caller} takes a list of sentences, not a table; give one column of it.")
    sentences = list(values_of(given, f"{caller}'s argument"))
    for index, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise InputError(f"{caller}: sentence {index} is {sentence!r:.40}; it must be a text.")
        try:
            sentence.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{caller}: sentence {index} has half of a surrogate pair, which no tokenizer can read."
            ) from None
    return sentences


@runtime_checkable
class HasPrompts(Protocol):
    """A model with named prompts."""

    @property
    def source(self) -> str: ...

    @property
    def prompts(self) -> Mapping[str, str]: ...

    @property
    def default_prompt(self) -> str | None: ...


def prompt_text(model: HasPrompts, name: str | None, text: str | None = None) -> str:
    """The text to prepend to a sentence: the prompt of this name (`none`: empty), or the given text.

    Raises:
      InputError: the name is unknown, the text is the name of a prompt, or one of them is no text.
    """
    for argument, given in (("prompt_name", name), ("prompt", text)):
        if not isinstance(given, str | None):
            raise InputError(f"{argument}={given!r:.40} has type {type(given).__name__}; it must be a text.")
    if text is not None:
        if text in model.prompts:
            raise InputError(f"prompt={text!r} is the name of a prompt of {model.source}; give prompt_name={text!r}.")
        return text
    name = model.default_prompt if name is None else name
    if not name or (name == NO_PROMPT and name not in model.prompts):
        return ""
    if name not in model.prompts:
        known = ", ".join(model.prompts) or "none"
        raise InputError(
            f"prompt {name!r} is unknown to {model.source}; it has: {known}.{did_you_mean(name, list(model.prompts))}"
        )
    return model.prompts[name]


def whole_number(value: int | None, name: str, *, least: int, most: int | None = None) -> int | None:
    """Checks a caller's whole number, which may be None; raises `InputError` for anything else or out of range."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if value is not None and not (is_whole and least <= value <= (value if most is None else most)):
        beyond = f" and at most {most}" if most is not None else ""
        raise InputError(f"{name}={value!r} must be a whole number, at least {least}{beyond}.")
    return value
