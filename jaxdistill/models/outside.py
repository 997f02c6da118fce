"""Models that sentence-transformers runs on torch, for architectures that `encoders` does not have."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxdistill.core import InputError
from jaxdistill.core.files import file_names, foreign_errors
from jaxdistill.core.runtime import Advance
from jaxdistill.data.text import digest_of_file
from jaxdistill.models.checkpoints.model import is_hub_model, locate, prompt_text
from jaxdistill.models.vectors import sigmoid

PREFIX = "sentence_transformers:"  # begins the name of a cross-encoder that sentence-transformers loads and runs
PAIRS_PER_CALL = 512  # signals such as Ctrl-C are handled between calls


def loaded(class_name: str, model: str, **options: Any) -> Any:
    """Loads `model` with the class `class_name` of sentence-transformers and its `options`; raises `InputError` if that fails."""
    try:
        import sentence_transformers
    except ImportError as error:
        raise InputError(f"{model} needs torch ({error}): pip install sentence-transformers torch") from None
    with foreign_errors(f"sentence-transformers cannot load {model}"):
        source = model if is_hub_model(model) else str(locate(model))  # the class downloads by itself
        return getattr(sentence_transformers, class_name)(source, **options)


def content_digest(model: str) -> str:
    """SHA-256 of a local model's files except Markdown, or the commit of a model that was downloaded from the hub."""
    if is_hub_model(model):
        import huggingface_hub

        return Path(huggingface_hub.snapshot_download(model, local_files_only=True)).name  # the folder of a commit
    folder = locate(model)
    names = [name for name in file_names(folder) if not name.endswith(".md")]  # cards change no vector
    return hashlib.sha256("".join(f"{name} {digest_of_file(folder / name)} " for name in names).encode()).hexdigest()


class Reranker:
    """A cross-encoder, also a causal one, that sentence-transformers runs. Code that comes with a model never runs."""

    def __init__(self, source: str, *, prompt: str = "", max_length: int = 0, batch_size: int = 32):
        """`source` begins with `PREFIX`; `prompt` is a prompt's name or text; `max_length` 0 is the model's own."""
        self.source = source
        self._name = source.removeprefix(PREFIX)
        self._batch_size = batch_size
        self._model = loaded("CrossEncoder", self._name)
        if self._model.num_labels != 1:
            raise InputError(f"{source} has {self._model.num_labels} labels; a cross-encoder has one.")
        self._model.max_seq_length = max_length or self._model.max_seq_length
        self._prompt = prompt_text(self._model.prompts, prompt) if prompt else None

    def digest(self) -> str:
        """SHA-256 of everything that determines the scores."""
        settings = content_digest(self._name), self._model.max_seq_length, self._prompt
        return hashlib.sha256(f"{PREFIX} {settings}".encode()).hexdigest()

    def score(
        self, first: Sequence[str], second: Sequence[str], *, logits: bool = False, show_progress_bar: Advance
    ) -> Float[np.ndarray, " n"]:
        """Scores of pairs in (0, 1), or their logits, as `Embedder.score` gives them. `show_progress_bar` is called with counts of pairs."""
        import torch

        pairs = list(zip(first, second, strict=True))
        batches = []
        for begin in range(0, len(pairs), PAIRS_PER_CALL):
            with foreign_errors(f"sentence-transformers cannot score pairs with {self.source}"):
                batch = self._model.predict(
                    pairs[begin : begin + PAIRS_PER_CALL], prompt=self._prompt, batch_size=self._batch_size,
                    activation_fn=torch.nn.Identity(), show_progress_bar=False,  # `Identity` gives logits
                )  # fmt: skip
            batches.append(np.asarray(batch, np.float32))
            show_progress_bar(len(batch))
        pair_logits = np.concatenate(batches)
        return pair_logits if logits else sigmoid(pair_logits)
