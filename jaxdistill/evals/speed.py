"""Measures encoding speed and model size.

SimTDE's Table 4 (Xie et al., SIGIR 2023, section 4.3) gives the time of a pass over the STS-B test set, 2,758 sentences, one
sentence per call; here it is also measured in batches of 128. Differences from the paper: the unit is sentences per second,
because a pass covers both sides of all pairs; there is one pass at batch 1, an average over 2,758 calls, and the mean of three
passes at batch 128. Compilation is not counted. Rates depend on the machine and its load, so they are never cached.
"""

from collections.abc import Mapping, Sequence
from timeit import timeit

from jaxdistill.core import Embed
from jaxdistill.evals import sts
from jaxdistill.evals.evaluation import Evaluation, Model, TestSet

BATCH_SIZE = 128
PASSES = 3
WARM_EVERY = 10
"""Before timing, every tenth sentence by length and the longest one are encoded once, so that all shapes are compiled."""
PROTOCOL = (
    f"STS-B test pass, one sentence a call and in batches of {BATCH_SIZE} (SimTDE, Table 4); compiling not counted"
)
RATE = f"speed/batch {BATCH_SIZE} (sentences/s)"
"""The score that tables and plots show as a model's speed."""


def rates(sentences: Sequence[str], embed: Embed) -> dict[str, float]:
    """Rates in sentences/s; `embed` computes up to 128 sentences together."""
    for sentence in sorted(sentences, key=len, reverse=True)[::WARM_EVERY]:
        embed([sentence])
    embed(sentences)
    return {
        "speed/batch 1 (sentences/s)": len(sentences) / timeit(lambda: [embed([one]) for one in sentences], number=1),
        RATE: PASSES * len(sentences) / timeit(lambda: embed(sentences), number=PASSES),
    }


def _run(model: Model, test_set: TestSet) -> Mapping[str, float]:
    pairs = sts.pairs_of(test_set)
    measured = rates((*pairs.first, *pairs.second), model.embed_in_batches(BATCH_SIZE))
    return measured | {"speed/parameters": model.parameters, "speed/weights (bytes)": model.size_bytes}


EVALUATION = Evaluation(
    task="speed",
    scores=("speed",),
    sets=lambda sources: [sts.set_on("sts-b", "speed", PROTOCOL, sources, is_repeatable=False)],
    run=_run,
    is_plain=True,
    is_main=lambda name: False,
)
