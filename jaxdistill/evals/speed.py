"""How fast and how large is a model?

SimTDE's Table 4 (Xie et al., SIGIR 2023, section 4.3): the time of a pass over the STS-B test set, 2,758 sentences, at
batch 1, one sentence a call; here also in one call of batches of 128. Differences from it: sentences per second, because
a pass is of both sides of all pairs; a single pass at batch 1, which is an average over 2,758 calls, and the mean of three
at batch 128. Compiling is not counted. The figures are of the machine as it was: they are never remembered.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxdistill.core import Embed

BATCH_SIZE = 128
PASSES = 3
WARM_EVERY = 10
"""Every tenth sentence by length is encoded once before the clock starts, and the longest: all shapes are compiled then."""
PROTOCOL = (
    f"STS-B test pass, one sentence a call and in batches of {BATCH_SIZE} (SimTDE, Table 4); compiling not counted"
)


@dataclass(frozen=True, kw_only=True)
class SpeedTask:
    """The measurement of one model."""

    sentences: tuple[str, ...]
    parameters: int
    size_bytes: int
    """Of the weights files."""

    def __call__(self, embed: Embed) -> Mapping[str, float]:
        """`speed/...`, rates in sentences/s; `embed` computes 128 sentences together where it is given as many."""
        by_length = sorted(self.sentences, key=len, reverse=True)
        for sentence in by_length[::WARM_EVERY]:
            embed([sentence])
        embed(self.sentences)
        return {
            "speed/batch 1 (sentences/s)": self._rate(lambda: [embed([sentence]) for sentence in self.sentences], 1),
            f"speed/batch {BATCH_SIZE} (sentences/s)": self._rate(lambda: embed(self.sentences), PASSES),
            "speed/parameters": self.parameters,
            "speed/weights (bytes)": self.size_bytes,
        }

    def _rate(self, one_pass: Callable[[], object], passes: int) -> float:
        start = time.perf_counter()
        for _ in range(passes):
            one_pass()
        return passes * len(self.sentences) / (time.perf_counter() - start)
