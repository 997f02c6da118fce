"""What a model reads: the caller's sentences, checked, and the prompt before them."""

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from jaxdistill.cli import did_you_mean
from jaxdistill.core import InputError
from jaxdistill.encoders.model import NO_PROMPT


def checked_sentences(given: Iterable[str], caller: str) -> list[str]:
    """The sentences as a list; raises `InputError` for anything but several texts."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InputError(
            f"{caller} takes a list of sentences, not {type(given).__name__}; put a single sentence in a list."
        )
    sentences = list(given)
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
class Prompted(Protocol):
    """A model with named prompts."""

    @property
    def source(self) -> str: ...

    @property
    def prompts(self) -> Mapping[str, str]: ...

    @property
    def default_prompt(self) -> str | None: ...


def prompt_text(model: Prompted, name: str | None) -> str:
    """The text that a named prompt puts before a sentence; `none` is no prompt."""
    name = model.default_prompt if name is None else name
    if not name or (name == NO_PROMPT and name not in model.prompts):
        return ""
    if name not in model.prompts:
        known = ", ".join(model.prompts) or "none"
        raise InputError(
            f"prompt {name!r} is unknown to {model.source}; it has: {known}.{did_you_mean(name, list(model.prompts))}"
        )
    return model.prompts[name]
