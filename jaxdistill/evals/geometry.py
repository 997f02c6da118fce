"""Measures the geometry of sentence vectors, encoding speed, and model size.

The geometry is that of STS-B dev (`sts/stsb.dev.tsv.gz`), with vectors of unit length:

- Alignment, the expected distance of pairs that mean the same (gold score above 4, as in SimCSE, Gao et al., EMNLP
  2021), and uniformity, the logarithm of an expected Gaussian potential over pairs of distinct sentences. Lower is
  better. Both are measured as defined by Wang and Isola (ICML 2020, https://arxiv.org/abs/2005.10242), with squared
  distances, and by DistilCSE's equation 8, with plain distances. NOTE: the minus before the expectation in equation 8's
  alignment contradicts the sentence below it (expected distance, lower is better); it is left out here.
- Anisotropy: mean cosine of pairs of distinct sentences (Ethayarajh, EMNLP 2019); 0 for uniform directions.
- ConGen's appendix A.3: Spearman's correlation of cosine similarity and word-level edit distance; near 0 for a model
  that does not look at words. The same correlation of the gold scores is reported too.
- ConGen's out-of-domain example (section Limitation): the cosine of two clinical sentences whose gold score is 0;
  ConGen-BERT-Base gives 0.3 in the paper.

Speed: SimTDE's Table 4 (Xie et al., SIGIR 2023, section 4.3) gives the time of a pass over the STS-B test set, 2,758 sentences,
one sentence per call; here it is also measured in batches of 128. Differences from the paper: the unit is sentences per second,
because a pass covers both sides of all pairs; there is one pass at batch 1, an average over 2,758 calls, and the mean of three
passes at batch 128. Compilation is not counted. Rates depend on the machine and its load, so they are never cached.
"""

from collections.abc import Mapping, Sequence
from timeit import timeit

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Embed
from jaxdistill.evals import sts
from jaxdistill.evals.evaluation import Evaluation, Model, TestSet
from jaxdistill.evals.pairs import GradedPairs
from jaxdistill.evals.similarity import spearman
from jaxdistill.models.vectors import unit_vectors

ALIKE = 4.0
"""Pairs with a higher score, of at most 5, mean the same."""
OUT_OF_DOMAIN = (
    "The risks and benefits of the procedure were discussed, and the patient consented to this procedure",
    "The content of this note has been reproduced, signed by an authorized physician in the space above, and mailed to "
    "the patient's parents, the patient's home care company.",
)
BATCH_SIZE = 128
PASSES = 3
WARM_EVERY = 10
"""Before timing, every tenth sentence by length and the longest one are encoded once, so that all shapes are compiled."""
RATE = f"speed/batch {BATCH_SIZE} (sentences/s)"
"""The score that tables and plots show as a model's speed."""
PROTOCOL = (
    "STS-B dev; alignment of pairs above 4 and uniformity by Wang and Isola and by DistilCSE's equation 8; mean cosine of "
    "all pairs; Spearman of cosine and word-level edit distance (ConGen A.3); cosine of ConGen's clinical example"
)


def measures(pairs: GradedPairs, embed: Embed) -> Mapping[str, float]:
    """`geometry/...`: losses in units of length or nats, cosines and correlations in [-1, 1]."""
    distinct = list(dict.fromkeys([*pairs.first, *pairs.second]))
    vectors = dict(zip(distinct, unit_vectors(embed, distinct), strict=True))
    first = np.stack([vectors[text] for text in pairs.first])
    second = np.stack([vectors[text] for text in pairs.second])
    alike = pairs.scores > ALIKE
    between = pairwise_cosines(np.stack(list(vectors.values())))
    both = zip(pairs.first, pairs.second, strict=True)
    edits = np.array([edit_distance(one.split(), other.split()) for one, other in both])
    similarities = np.einsum("ne,ne->n", first, second)
    return {
        "geometry/alignment": alignment(first[alike], second[alike], power=2),
        "geometry/uniformity": uniformity(between, power=2),
        "geometry/alignment (DistilCSE)": alignment(first[alike], second[alike], power=1),
        "geometry/uniformity (DistilCSE)": uniformity(between, power=1),
        "geometry/anisotropy": float(np.mean(between)),
        "geometry/edit distance": spearman(edits, similarities, what=pairs.name),
        "geometry/edit distance of gold": spearman(edits, pairs.scores, what=pairs.name),
        "geometry/out-of-domain cosine": float(np.prod(unit_vectors(embed, OUT_OF_DOMAIN), axis=0).sum()),
    }


def alignment(first: Float[np.ndarray, "n e"], second: Float[np.ndarray, "n e"], *, power: int) -> float:
    """`E ||f(x) - f(y)||^power` over pairs of unit vectors: 2 in Wang and Isola's equation 1, 1 in DistilCSE's 8."""
    return float(np.mean(np.linalg.norm(first - second, axis=1) ** power))


def uniformity(cosines: Float[np.ndarray, " n"], *, power: int) -> float:
    """`log E exp(-2 ||f(x) - f(y)||^power)` from cosines of pairs: 2 in Wang and Isola's equation 2, 1 in DistilCSE's 8."""
    distances = np.sqrt(np.maximum(2.0 - 2.0 * cosines, 0.0))
    return float(np.log(np.mean(np.exp(-2.0 * distances**power))))


def pairwise_cosines(vectors: Float[np.ndarray, "n e"]) -> Float[np.ndarray, " m"]:
    """Cosines of all `m = n (n - 1) / 2` pairs of unit vectors."""
    return (vectors @ vectors.T)[np.triu_indices(len(vectors), k=1)]


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """Levenshtein distance of two lists of words: the fewest insertions, deletions and replacements."""
    row = list(range(len(second) + 1))
    for count, word in enumerate(first, start=1):
        before, row[0] = row[0], count
        for column, other in enumerate(second, start=1):
            before, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, before + (word != other))
    return row[-1]


EVALUATION = Evaluation(
    task="geometry",
    scores=("geometry",),
    sets=lambda sources: [sts.set_on("sts-b-dev", "geometry", PROTOCOL, sources)],
    run=lambda model, test_set: measures(sts.pairs_of(test_set), model.embed),
    is_plain=True,
    is_main=lambda name: False,
)


def rates(sentences: Sequence[str], embed: Embed) -> dict[str, float]:
    """Rates in sentences/s; `embed` computes up to 128 sentences together."""
    for sentence in sorted(sentences, key=len, reverse=True)[::WARM_EVERY]:
        embed([sentence])
    embed(sentences)
    return {
        "speed/batch 1 (sentences/s)": len(sentences) / timeit(lambda: [embed([one]) for one in sentences], number=1),
        RATE: PASSES * len(sentences) / timeit(lambda: embed(sentences), number=PASSES),
    }


def _run_speed(model: Model, test_set: TestSet) -> Mapping[str, float]:
    pairs = sts.pairs_of(test_set)
    measured = rates((*pairs.first, *pairs.second), model.embed_in_batches(BATCH_SIZE))
    return measured | {"speed/parameters": model.parameters, "speed/weights (bytes)": model.size_bytes}


SPEED_PROTOCOL = (
    f"STS-B test pass, one sentence a call and in batches of {BATCH_SIZE} (SimTDE, Table 4); compiling not counted"
)
SPEED = Evaluation(
    task="speed",
    scores=("speed",),
    sets=lambda sources: [sts.set_on("sts-b", "speed", SPEED_PROTOCOL, sources, is_repeatable=False)],
    run=_run_speed,
    is_plain=True,
    is_main=lambda name: False,
)
