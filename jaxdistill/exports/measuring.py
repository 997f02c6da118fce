"""Compares forms of an export with the model itself: differences, agreement, size and speed.

Speeds hold for this machine at this moment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from timeit import repeat
from typing import Any

import numpy as np
from jaxtyping import Bool

from jaxdistill import paths
from jaxdistill.assets import HELDOUT
from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.core import Embed, InputError, PairScorer, Scorer
from jaxdistill.data.sources import read
from jaxdistill.evals.pairs import pairs_spearman
from jaxdistill.evals.similarity import spearman, unit_rows
from jaxdistill.evals.sts import read_set, sts_folder
from jaxdistill.exports.running import Run, Runtime, TextRun
from jaxdistill.inference import Embedder

OTHER_SCRIPTS = (
    "Zwei Äpfel und drei Birnen: €12.40!", "猫が眠る。", "Кошка спит на печи.", "القطة تنام.", "बिल्ली सो रही है।", "고양이가 잔다.",
    "Η γάτα κοιμάται.", "🐈 😴", "Rain.", "the same word " * 40,
)  # fmt: skip
COMPARED, TIMED, REPEATS = 190, 64, 3
"""Number of sentences of `HELDOUT` to compare, number to measure speed on, and how often; with `OTHER_SCRIPTS`, 200 are compared."""
LEAST_COSINE, LEAST_ROUNDED = 0.9999, 0.99
"""Lowest allowed cosine between a sentence's two vectors: for every sentence, or, with rounded weights, on average."""
MOST_OTHERS = 0.1
"""Largest allowed share of texts that a form's own tokenizer tokenises differently from the model's."""
LARGEST_SCORE = 1e-3
"""Largest allowed difference of a cross-encoder's scores, which are in (0, 1), unless weights are rounded."""
OTHER_TOKENS = "texts with other tokens"
"""A column of the table."""


@dataclass(frozen=True, kw_only=True)
class MeasuredForm:
    """One row of the table of forms."""

    name: str
    """Name of the file, or of the library that reads the folder."""
    size_bytes: int
    difference: float
    """Largest difference between numbers of a sentence's unit vectors, or between scores of a pair."""
    cosine: tuple[float, float] | None
    """Lowest and mean cosine between a sentence's two vectors; None for a cross-encoder."""
    other_tokens: int = 0
    """Number of texts that the form's own tokenizer tokenises differently; difference and cosines ignore them."""
    agreement: float
    """Spearman correlation, in [-1, 1], between the form's and the model's similarities of neighbouring sentences."""
    sts: float | None
    """Spearman correlation on STS-B dev, in [-1, 1]; None if its data are absent."""
    rates: tuple[float, float]
    """Sentences/s at batch 1 and 32."""

    def fault(self, *, rounded: bool) -> str:
        """Why the form differs too much; empty if it does not."""
        if self.cosine is None:
            too_far = self.agreement < LEAST_ROUNDED if rounded else not self.difference <= LARGEST_SCORE
            return f"scores differ by up to {self.difference:.1e}, agreement {self.agreement:.4f}" if too_far else ""
        if self.other_tokens > MOST_OTHERS * (COMPARED + len(OTHER_SCRIPTS)):
            return f"its own tokenizer gives {self.other_tokens} of the texts other tokens than the model's"
        reached, least = (self.cosine[1], LEAST_ROUNDED) if rounded else (self.cosine[0], LEAST_COSINE)
        if reached >= least:
            return ""
        return f"cosine {reached:.4f} with the model's own vectors, at least {least} is required"

    def cells(self) -> dict[str, str]:
        """The row's cells, by column."""
        cosine = (
            {"least cosine": f"{self.cosine[0]:.6f}", "mean cosine": f"{self.cosine[1]:.6f}"} if self.cosine else {}
        )
        score = {} if self.sts is None else {"STS-B dev": f"{100 * self.sts:.2f}"}
        return {
            "form": self.name,
            "MB": f"{self.size_bytes / 1e6:.1f}",
            "largest difference": f"{self.difference:.1e}",
            **cosine,
            "agreement": f"{100 * self.agreement:.2f}",
            **score,
            "sentences/s, batch 1": f"{self.rates[0]:,.0f}",
            "batch 32": f"{self.rates[1]:,.0f}",
            **({OTHER_TOKENS: str(self.other_tokens)} if self.other_tokens else {}),
        }


def table(rows: Sequence[MeasuredForm]) -> list[dict[str, str]]:
    """One mapping of columns to cells per row; all rows have the same columns."""
    cells = [row.cells() for row in rows]
    columns = dict.fromkeys(column for row in cells for column in row)
    return [{column: row.get(column, "") for column in columns} for row in cells]


class Reference:
    """The model itself in float32, and the text on which forms are compared with it."""

    def __init__(self, model: SentenceModel):
        self.model, self._pairs = model, model.definition.reads_pairs
        self.sentences = compared_texts()
        self._own = self._results(Embedder(model), self.sentences)
        folder = paths.data_folder()
        self._dev = None if folder is None else read_set("sts-b-dev", sts_folder(folder))

    def measured(self, name: str, run: Run | TextRun, file: Path) -> MeasuredForm:
        """Compares and times a form's file."""
        size = sum(path.stat().st_size for path in file.parent.glob(f"{file.stem}.*"))
        runtime = Runtime(self.model, run)
        alike = runtime.reads_alike(self.sentences)

        def of_batch(size: int) -> Callable[[Sequence[str]], np.ndarray]:
            return lambda texts: self._results(runtime, texts, size)

        return self._row(name, runtime, of_batch, size, alike=alike)

    def of_library(self, folder: Path, size: int) -> list[MeasuredForm]:
        """Compares and times sentence-transformers, with torch, on the exported folder; empty if it is not installed."""
        try:
            from sentence_transformers import CrossEncoder, SentenceTransformer
        except ImportError:
            return []
        if not self.model.definition.pooling.in_sentence_transformers:
            return []
        loaded: Any = (CrossEncoder if self._pairs else SentenceTransformer)(str(folder), device="cpu")

        def of_batch(size: int) -> Callable[[Sequence[str]], np.ndarray]:
            if self._pairs:
                return lambda texts: loaded.predict(_pairs(texts), batch_size=size)
            return lambda texts: loaded.encode(list(texts), batch_size=size)

        def score(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
            return loaded.predict(list(zip(first, second, strict=True)))

        embed: Embed | Scorer = PairScorer(score, of_batch(32)) if self._pairs else of_batch(32)
        return [self._row("sentence-transformers (torch)", embed, of_batch, size)]

    def _row(
        self,
        name: str,
        embed: "Runtime | Embed | Scorer",
        of_batch: Callable[[int], Callable[[Sequence[str]], np.ndarray]],
        size: int,
        alike: Bool[np.ndarray, " n"] | None = None,
    ) -> MeasuredForm:
        results_of_form = of_batch(32)(self.sentences)
        own, theirs = (results if self._pairs else unit_rows(results) for results in (self._own, results_of_form))
        same = np.ones(len(own), bool) if alike is None or not alike.any() else alike
        timed = self.sentences[:TIMED]
        scored = embed.encode if isinstance(embed, Runtime) and not self._pairs else embed
        return MeasuredForm(
            name=name,
            size_bytes=size,
            difference=float(np.max(np.abs(own - theirs)[same])),
            cosine=None if self._pairs else least_and_mean(own[same], theirs[same]),
            other_tokens=0 if alike is None else int(np.sum(~alike)),
            agreement=spearman(self._alike(own), self._alike(theirs), what="agreement of the forms"),
            sts=None if self._dev is None else pairs_spearman(scored, self._dev),
            rates=(_rate(of_batch(1), timed), _rate(of_batch(32), timed)),
        )

    def _results(self, model: Embedder | Runtime, texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
        if not self._pairs:
            return model.encode(list(texts), batch_size=batch_size)
        first, second = map(list, zip(*_pairs(texts), strict=True))
        if isinstance(model, Runtime):
            return model.score(first, second, batch_size=batch_size)
        return model.score(first, second)

    def _alike(self, results: np.ndarray) -> np.ndarray:
        """Similarities of neighbouring sentences."""
        return results if self._pairs else np.sum(results * np.roll(results, -1, axis=0), axis=1)


def compared_texts() -> list[str]:
    """The texts on which forms are compared with the model."""
    return [*sentences(HELDOUT, COMPARED), *OTHER_SCRIPTS]


def sentences(text: str, most: int) -> list[str]:
    """The first different sentences of a text; raises `InputError` if it has none."""
    distinct: dict[str, None] = {}
    for (line,) in read([text]):
        if line.strip():
            distinct[line] = None
        if len(distinct) == most:
            break
    if not distinct:
        raise InputError(f"{text} has no sentence; give a text with one a line.")
    return list(distinct)


def _pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs each text with the next one."""
    return list(zip(texts, [*texts[1:], *texts[:1]], strict=True))


def _rate(run: Callable[[Sequence[str]], np.ndarray], texts: Sequence[str]) -> float:
    """Texts/s, the best of `REPEATS`, which other programs disturb least."""
    return len(texts) / min(repeat(lambda: run(texts), number=1, repeat=REPEATS))


def least_and_mean(own: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Lowest and mean cosine of corresponding rows of unit length; two zero rows count as equal."""
    both = ~own.any(axis=1) & ~theirs.any(axis=1)
    alike = np.where(both, 1.0, np.sum(own * theirs, axis=1))
    return float(alike.min()), float(alike.mean())
