"""Measures encoding speed and model size.

SimTDE's Table 4 (Xie et al., SIGIR 2023, section 4.3) has the time of a pass over the STS-B test set, 2,758 sentences, at
batch 1, one sentence a call; here it is also measured in batches of 128. Differences from the paper: sentences per second,
because a pass covers both sides of all pairs; a single pass at batch 1, which is an average over 2,758 calls, and the mean
of three passes at batch 128. Compilation is not counted. Rates depend on the machine and its load, so they are never cached.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from jaxdistill.core import Embed
from jaxdistill.evals import sts
from jaxdistill.evals.evaluation import PLAIN, Evaluation, Model, Sources, Unit, no_headings
from jaxdistill.evals.pairs import GradedPairs

BATCH_SIZE = 128
PASSES = 3
WARM_EVERY = 10
"""Every tenth sentence by length is encoded once before timing starts, and the longest, so that all shapes are compiled."""
PROTOCOL = (
    f"STS-B test pass, one sentence a call and in batches of {BATCH_SIZE} (SimTDE, Table 4); compiling not counted"
)
RATE = f"speed/batch {BATCH_SIZE} (sentences/s)"
"""The score that tables and plots show as a model's speed."""


@dataclass(frozen=True, kw_only=True)
class SpeedTask:
    """The measurement of one model."""

    sentences: tuple[str, ...]
    parameters: int
    size_bytes: int
    """Of the weights files."""

    def __call__(self, embed: Embed) -> Mapping[str, float]:
        """`speed/...`, rates in sentences/s; `embed` computes up to 128 sentences together."""
        by_length = sorted(self.sentences, key=len, reverse=True)
        for sentence in by_length[::WARM_EVERY]:
            embed([sentence])
        embed(self.sentences)
        return {
            "speed/batch 1 (sentences/s)": self._rate(lambda: [embed([sentence]) for sentence in self.sentences], 1),
            RATE: self._rate(lambda: embed(self.sentences), PASSES),
            "speed/parameters": self.parameters,
            "speed/weights (bytes)": self.size_bytes,
        }

    def _rate(self, one_pass: Callable[[], object], passes: int) -> float:
        start = time.perf_counter()
        for _ in range(passes):
            one_pass()
        return passes * len(self.sentences) / (time.perf_counter() - start)


def _units(sources: Sources) -> Iterable[Unit | str]:
    yield sts.sts_b_unit("speed", "sts-b", PROTOCOL, sources, _values, is_repeatable=False)


def _values(pairs: GradedPairs, model: Model) -> Mapping[str, float]:
    task = SpeedTask(sentences=(*pairs.first, *pairs.second), parameters=model.parameters, size_bytes=model.size_bytes)
    return task(model.embed_in_batches(BATCH_SIZE))


EVALUATION = Evaluation(group="speed", scores=("speed",), measure=PLAIN, units=_units, headings=no_headings)
