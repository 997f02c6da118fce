"""Runs a form of an export over sentences, in the runtime that the form is for."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Float

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.inference.sentences import checked_sentences, prompt_text, whole_number

Run = Callable[..., np.ndarray]
"""Vectors [b, e], or logits [b, 1], from keyword arguments `input_ids`, `attention_mask` and `token_type_ids`, int64 [b, l]."""


def inputs(model: SentenceModel) -> list[str]:
    """Names of a form's inputs."""
    types = ["token_type_ids"] if model.definition.architecture.token_types > 1 else []
    return ["input_ids", "attention_mask", *types]


def outputs(model: SentenceModel) -> list[str]:
    """Names of a form's outputs."""
    return ["logits"] if model.definition.reads_pairs else ["last_hidden_state", "sentence_embedding"]


class Runtime:
    """A form of an export in its own runtime, with `encode` and, for a cross-encoder, `score`."""

    def __init__(self, model: SentenceModel, run: Run):
        """
        Args:
          model: gives tokenizer, prompts and sizes.
          run: of the form.
        """
        self.model, self._run = model, run
        self.source, self.prompts, self.default_prompt = model.source, model.prompts, model.default_prompt

    def encode(
        self,
        sentences: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
    ) -> Float[np.ndarray, "n e"]:
        """Vectors of `sentences`, one row each, in their order; of a single string, one vector.

        Args:
          sentences: longer ones than the model reads are truncated.
          prompt_name, prompt: name of one of the model's prompts, or the text itself; None: the default prompt, if it has one.
          batch_size: sentences of similar length computed together.

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

    def _results(self, texts: Sequence[str] | Sequence[tuple[str, str]], batch_size: int) -> np.ndarray:
        whole_number(batch_size, "batch_size", least=1)
        results = np.zeros((len(texts), self.model.definition.embedding_width), np.float32)
        for rows, batch in batches(self.model, texts, batch_size=batch_size):
            results[rows] = self._run(**batch)
        return results


def batches(
    model: SentenceModel, texts: Sequence[str] | Sequence[tuple[str, str]], *, batch_size: int
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Rows of `texts` and their padded tokens, shortest first."""
    encodings = model.encodings(texts)
    order = np.argsort([len(one.ids) for one in encodings], kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        found = [encodings[row] for row in rows]
        longest = max(1, *(len(one.ids) for one in found))  # a table has no token for an empty text
        ids = np.full((len(found), longest), model.definition.architecture.pad_id, np.int64)
        mask, types = np.zeros_like(ids), np.zeros_like(ids)
        for row, one in enumerate(found):
            ids[row, : len(one.ids)], mask[row, : len(one.ids)] = one.ids, 1
            types[row, : len(one.ids)] = one.type_ids
        yield rows, {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
