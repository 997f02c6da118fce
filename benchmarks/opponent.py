"""The PyTorch opponent of the benchmarks: a plain loop that distils a sentence-transformers model.

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
from torch.nn import Identity, Linear, Sequential, Tanh
from torch.nn.functional import normalize
from tpu_plan import MODELS
from transformers import AutoConfig, AutoModel

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]
"""Tokens of all first views and then of all second views, and the targets."""
AHEAD = 2
"""Batches that are made ahead, as on the other side."""


class Opponent:
    """Trains a copy of a student, one batch at a time."""

    def __init__(
        self,
        student: "Path | RandomEncoder",
        *,
        queue: Float[np.ndarray, "k e"] | None,
        temperature: float = 0.05,
        bfloat16: bool,
        learning_rate: float = 5e-4,
        eps: float = 1e-6,
        dropout: bool = True,
        teacher: "Path | RandomEncoder | None" = None,
        device: str = "cpu",
        compiled: bool = False,
    ):
        """
        Args:
          student: the untrained student with its head, or its folder.
          queue: teacher vectors of the first queue, oldest first (ConGen); None: 1 - cosine, without a queue.
          teacher: a model or its folder, which computes the targets in the step, from the tokens of the first view.
          compiled: whether `torch.compile` compiles the encoders, for batches of any length.
        """
        self.model = encoder(student).to(device).train(dropout)
        self.teacher = encoder(teacher).to(device).eval() if teacher else None
        for model in filter(None, (self.model, self.teacher) if compiled else ()):
            next(model.children()).compile(dynamic=True)
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
            return congen_loss(vectors, targets, keys, temperature=self.temperature)

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


class RandomEncoder(torch.nn.Module):
    """An encoder in the shape of a public one, with random weights, mean pooling and, if `width` is not 0, a tanh head."""

    def __init__(self, name: str, *, layers: int = 0, width: int = 0):
        super().__init__()
        family, _, _, settings = MODELS[name]
        config = AutoConfig.for_model(family.__name__.rpartition(".")[2], **settings)
        config.num_hidden_layers = layers or config.num_hidden_layers
        self.transformer = AutoModel.from_config(config, attn_implementation="sdpa")
        self.head = Sequential(Linear(config.hidden_size, width), Tanh()) if width else Identity()

    def forward(self, tokens: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        states, mask = self.transformer(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
        return {"sentence_embedding": self.head((states * mask).sum(dim=1) / mask.sum(dim=1))}


def encoder(model: Path | RandomEncoder) -> SentenceTransformer | RandomEncoder:
    """The model, loaded from its folder if `model` is one."""
    return SentenceTransformer(str(model), device="cpu") if isinstance(model, Path) else model


def congen_loss(
    vectors: torch.Tensor, targets: torch.Tensor, keys: torch.Tensor, *, temperature: float
) -> torch.Tensor:
    """ConGen's mean loss over the keys, as the released code computes it; `vectors` has one view after the other."""
    probabilities = torch.softmax(targets @ keys.T / temperature, dim=1)
    log_probabilities = torch.log_softmax(vectors @ keys.T / temperature, dim=1)
    return -(probabilities.repeat(len(vectors) // len(targets), 1) * log_probabilities).sum(dim=1).mean()


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
