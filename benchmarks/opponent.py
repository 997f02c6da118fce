"""The PyTorch opponent of the training benchmark: a plain loop that distils a sentence-transformers model.

Batches are tokenised and padded to their longest sentence, and `ahead` makes them in a thread, as a DataLoader would; teacher
vectors are stored, or computed in the step. `sort_by_length` makes batches of sentences of similar length, as a careful user would.
"""

import contextlib
import random
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from sentence_transformers import SentenceTransformer
from torch.nn.functional import normalize

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]
"""Tokens of all first views and then of all second views, and the targets."""
AHEAD = 2
"""Batches that are made ahead, as on the other side."""


class Opponent:
    """Trains a copy of a student, one batch at a time."""

    def __init__(
        self,
        student: Path,
        *,
        queue: Float[np.ndarray, "k e"] | None,
        temperature: float = 0.05,
        bfloat16: bool,
        learning_rate: float = 5e-4,
        eps: float = 1e-6,
        dropout: bool = True,
        teacher: Path | None = None,
        device: str = "cpu",
        compiled: bool = False,
    ):
        """
        Args:
          student: folder of the untrained student, with its head.
          queue: teacher vectors of the first queue, oldest first (ConGen); None: 1 - cosine, without a queue.
          teacher: folder of a model that computes the targets in the step, from the tokens of the first view.
          compiled: whether `torch.compile` compiles the encoders, for batches of any length.
        """
        self.model = SentenceTransformer(str(student), device=device).train(dropout)
        self.teacher = SentenceTransformer(str(teacher), device=device).eval() if teacher else None
        for model in filter(None, (self.model, self.teacher) if compiled else ()):
            model[0].compile(dynamic=True)
        self.device = device
        dtype = torch.bfloat16 if bfloat16 else torch.float32
        self.queue = None if queue is None else torch.tensor(queue, device=device, dtype=dtype)
        self.temperature, self.bfloat16 = temperature, bfloat16
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=learning_rate, eps=eps, weight_decay=0.01)

    def step(self, batch: Batch, learning_rate: float | None = None) -> torch.Tensor:
        """Takes a step and returns the loss before it."""
        loss = self.loss(*batch)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] if learning_rate is None else learning_rate
        self.optimizer.step()
        return loss.detach()

    def loss(self, tokens: dict[str, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
        cast = torch.autocast(self.device, dtype=torch.bfloat16) if self.bfloat16 else contextlib.nullcontext()
        tokens = {name: array.to(self.device, non_blocking=True) for name, array in tokens.items()}
        targets = targets.to(self.device, non_blocking=True)
        with cast:
            if self.teacher:
                with torch.no_grad():
                    first = {name: array[: len(targets)] for name, array in tokens.items()}
                    targets = normalize(self.teacher(first)["sentence_embedding"].float(), dim=1)
            vectors = normalize(self.model(tokens)["sentence_embedding"].float(), dim=1)
            if self.queue is None:
                return (1.0 - (vectors * targets).sum(dim=1)).mean()
            keys = torch.cat([self.queue, targets.to(self.queue.dtype)])
            self.queue = keys[len(targets) :]
            probabilities = torch.softmax(targets @ keys.T / self.temperature, dim=1)
            found = torch.log_softmax(vectors @ keys.T / self.temperature, dim=1)
            return -(probabilities.repeat(len(vectors) // len(targets), 1) * found).sum(dim=1).mean()

    def batches(
        self,
        texts: Sequence[str],
        targets: Float[np.ndarray, "n e"],
        *,
        batch_size: int,
        max_length: int,
        sort_by_length: bool,
    ) -> Iterator[Batch]:
        """Batches for ever."""
        words = random.Random(0)
        for rows in self.rows(texts, batch_size, sort_by_length):
            views = [texts[row] for row in rows]
            if self.queue is not None:
                views += [without_words(text, words) for text in views]
            options = dict(padding=True, truncation=True, max_length=max_length, return_tensors="pt")
            yield self.pinned(dict(self.model.tokenizer(views, **options)), torch.tensor(targets[rows]))

    def pinned(self, tokens: dict[str, torch.Tensor], targets: torch.Tensor) -> Batch:
        """The batch in memory that a GPU reads while it computes."""
        if self.device != "cuda":
            return tokens, targets
        return {name: array.pin_memory() for name, array in tokens.items()}, targets.pin_memory()

    def rows(self, texts: Sequence[str], batch_size: int, sort_by_length: bool) -> Iterator[np.ndarray]:
        generator = np.random.default_rng(0)
        lengths = np.array([len(ids) for ids in self.model.tokenizer(list(texts))["input_ids"]])
        while True:
            order = generator.permutation(len(texts))
            if sort_by_length:
                order = order[np.argsort(lengths[order], kind="stable")]
            batches = [order[start : start + batch_size] for start in range(0, len(order) - batch_size + 1, batch_size)]
            generator.shuffle(batches)
            yield from batches


def ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, made by a thread."""
    with ThreadPoolExecutor(1) as thread:
        waiting = deque(thread.submit(next, batches) for _ in range(AHEAD))
        while True:
            waiting.append(thread.submit(next, batches))
            yield waiting.popleft().result()


def without_words(text: str, generator: random.Random) -> str:
    """The text without a random tenth of its words."""
    words = text.split()
    return " ".join([word for word in words if generator.random() > 0.1] or words[:1])
