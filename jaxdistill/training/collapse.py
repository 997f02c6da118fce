"""Watches for collapse: measures at each evaluation how widely a student's sentence vectors are spread.

A student may keep its score for a while although its vectors gather in a few directions. Three numbers of its unit vectors
for a fixed sample of the training text show this:

- `vectors/spread`: standard deviation of the cosines of all pairs of sentences.
- `vectors/uniformity`: Wang and Isola's uniformity (https://arxiv.org/abs/2005.10242, equation 2), in nats; lower is
  more uniform.
- `vectors/rank`: effective rank of the centred vectors, the exponential of the entropy of their singular values
  (Roy and Vetterli, EUSIPCO 2007; RankMe, https://arxiv.org/abs/2210.02885).
"""

import logging
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Diverged, Embed
from jaxdistill.data.tokens import TokenStore
from jaxdistill.evals.geometry import pairwise_cosines, uniformity
from jaxdistill.evals.similarity import unit_or_zero_vectors

log = logging.getLogger(__name__)

SAMPLE = 256
"""Sentences of the training text on which the spread is measured."""
SPREAD, RANK = "vectors/spread", "vectors/rank"
SHARE = 0.25
"""Vectors count as collapsed if spread or rank falls below this fraction of the run's highest."""


def watched_spread(
    step: int, spread: Mapping[str, float], highest: Mapping[str, float], *, stops: bool
) -> dict[str, float]:
    """The highest spread and rank so far, this evaluation included; warns of a collapse.

    Args:
      spread: `measured_spread` after `step`.
      highest: what this function returned for the evaluation before; empty for the first.
      stops: raise `Diverged` instead of a warning.
    """
    if fallen := collapse_of(spread, highest):
        if stops:
            raise Diverged(f"at step {step}: the student's vectors collapse: {fallen}")
        log.warning("step %d: the student's vectors collapse: %s; evals.collapse=stop ends such a run", step, fallen)
    return {name: max(spread[name], highest.get(name, 0.0)) for name in (SPREAD, RANK)}


def sample_of(store: TokenStore) -> list[str]:
    """At most `SAMPLE` distinct, evenly spaced sentences of the text's first column, with the student's prompts; none if
    there are fewer than 8."""
    rows = np.linspace(0, store.rows - 1, min(SAMPLE, store.rows)).astype(int)
    column = store.columns[0]
    roles = store.roles(column, rows)
    texts = [store.prompts[role] + store.text(column, int(row)) for role, row in zip(roles, rows, strict=True)]
    distinct = list(dict.fromkeys(texts))
    return distinct if len(distinct) >= 8 else []


def measured_spread(embed: Embed, sentences: Sequence[str]) -> dict[str, float]:
    """The three numbers for a model; raises `InputError` if a vector is not finite or all are zero.

    Leaves out zero vectors, which a static student gives for sentences of unknown words.
    """
    vectors = unit_or_zero_vectors(embed, sentences)
    vectors = vectors[np.any(vectors, axis=1)]
    cosines = pairwise_cosines(vectors)
    return {
        SPREAD: float(np.std(cosines)),
        "vectors/uniformity": uniformity(cosines, power=2),
        RANK: effective_rank(vectors),
    }


def effective_rank(vectors: Float[np.ndarray, "n e"]) -> float:
    """Exponential of the entropy of the centred vectors' singular values; 1 if all lie on one line, 0 if all are equal."""
    singular = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False)
    total = singular.sum()
    if total < 1e-9 * len(vectors):
        return 0.0
    shares = singular[singular > 0] / total
    return float(np.exp(-np.sum(shares * np.log(shares))))


def collapse_of(now: Mapping[str, float], highest: Mapping[str, float]) -> str:
    """Says which numbers have fallen below `SHARE` of their highest value; empty if none has."""
    fallen = [name for name in (SPREAD, RANK) if now[name] < SHARE * highest.get(name, 0.0)]
    return " and ".join(f"{name} fell from {highest[name]:.3g} to {now[name]:.3g}" for name in fallen)
