"""Runs a form of an export on sentences, in the form's own runtime."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.core import InputError
from jaxdistill.inference.sentences import checked_sentences, prompt_text, whole_number

Run = Callable[..., np.ndarray]
"""Maps `input_ids`, `attention_mask` and `token_type_ids` (keywords, int64 [b, l]) to vectors [b, e] or logits [b, 1]."""


@dataclass(frozen=True)
class TextRun:
    """A form whose runtime tokenises texts itself."""

    run: Run
    tokens: Callable[[str], list[int]]
    """Ids of a text's tokens, special ones included."""


def imported(name: str, extra: str) -> Any:
    """The module `name`.

    Raises:
      InputError: its package is not installed; the line says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"the package {(error.name or name).partition('.')[0]} is not installed; run: pip install 'jaxdistill[{extra}]'"
        ) from None


def inputs(model: SentenceModel) -> list[str]:
    """Names of a form's inputs."""
    types = ["token_type_ids"] if model.definition.architecture.token_types > 1 else []
    return ["input_ids", "attention_mask", *types]


def outputs(model: SentenceModel) -> list[str]:
    """Names of a form's outputs."""
    return ["logits"] if model.definition.reads_pairs else ["last_hidden_state", "sentence_embedding"]


class Runtime:
    """A form of an export in its own runtime, with `encode` and, for a cross-encoder, `score`."""

    def __init__(self, model: SentenceModel, run: Run | TextRun):
        """
        Args:
          model: provides prompts and sizes, and the tokenizer if the form has none.
          run: runs the form.
        """
        self.model, self._own_tokens = model, run.tokens if isinstance(run, TextRun) else None
        self._run = run.run if isinstance(run, TextRun) else run
        self.source, self.prompts, self.default_prompt = model.source, model.prompts, model.default_prompt

    def encode(
        self,
        sentences: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
    ) -> Float[np.ndarray, "n e"]:
        """Vectors of `sentences`, one row each, in their order; for a single string, one vector.

        Args:
          sentences: truncated to the model's maximum length.
          prompt_name, prompt: name of one of the model's prompts, or the text itself; None: the default prompt, if it has one.
          batch_size: number of sentences of similar length computed together.

        Raises:
          InputError: anything but texts, an unknown prompt, or a batch size below 1.
        """
        texts = checked_sentences([sentences] if isinstance(sentences, str) else sentences, "encode")
        prefix = prompt_text(self, prompt_name, prompt)
        vectors = self._results([prefix + text for text in texts], batch_size)
        return vectors[0] if isinstance(sentences, str) else vectors

    def score(self, first: Sequence[str], second: Sequence[str], *, batch_size: int = 32) -> Float[np.ndarray, " n"]:
        """A cross-encoder's score of each pair, in (0, 1), as `jaxdistill.load(...).score` gives it."""
        pairs = [(self.model.prompt + one, other) for one, other in zip(first, second, strict=True)]
        logits = self._results(pairs, batch_size)[:, 0].astype(np.float64)
        return np.exp(-np.logaddexp(0.0, -logits))

    def reads_alike(self, texts: Sequence[str]) -> Bool[np.ndarray, " n"]:
        """Whether the form tokenises each text, without a prompt, as the model does."""
        if self._own_tokens is None:
            return np.ones(len(texts), bool)
        own = map(self._own_tokens, texts)
        return np.array([ids == one.ids for ids, one in zip(own, self.model.encodings(texts), strict=True)])

    def _results(self, texts: Sequence[str] | Sequence[tuple[str, str]], batch_size: int) -> np.ndarray:
        whole_number(batch_size, "batch_size", least=1)
        results = np.zeros((len(texts), self.model.definition.embedding_width), np.float32)
        for rows, batch in batches(self.model, texts, batch_size=batch_size, tokens=self._own_tokens):
            results[rows] = self._run(**batch)
        return results


def batches(
    model: SentenceModel,
    texts: Sequence[str] | Sequence[tuple[str, str]],
    *,
    batch_size: int,
    tokens: Callable[[Any], list[int]] | None = None,
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Rows of `texts` and their padded tokens, shortest first; `tokens` takes the tokenizer's place."""
    if tokens:
        encodings = [(ids, [0] * len(ids)) for ids in map(tokens, texts)]
    else:
        encodings = [(one.ids, one.type_ids) for one in model.encodings(texts)]
    order = np.argsort([len(ids) for ids, _ in encodings], kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        chosen = [encodings[row] for row in rows]
        longest = max(1, *(len(ids) for ids, _ in chosen))  # a table has no token for an empty text
        padded = np.full((len(chosen), longest), model.definition.architecture.pad_id, np.int64)
        mask, types = np.zeros_like(padded), np.zeros_like(padded)
        for row, (ids, own_types) in enumerate(chosen):
            padded[row, : len(ids)], mask[row, : len(ids)], types[row, : len(ids)] = ids, 1, own_types
        yield rows, {"input_ids": padded, "attention_mask": mask, "token_type_ids": types}
