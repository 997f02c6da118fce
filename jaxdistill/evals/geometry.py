"""Measures the geometry of sentence vectors, encoding speed, and model size; whitens vectors.

The geometry is that of STS-B dev (`sts/stsb.dev.tsv.gz`), with vectors of unit length:

- Alignment, the expected distance of pairs that mean the same (gold score above 4, as in SimCSE, Gao et al., EMNLP 2021), and
  uniformity, the logarithm of an expected Gaussian potential over pairs of distinct sentences. Lower is better. Wang and Isola (ICML
  2020, https://arxiv.org/abs/2005.10242) square the distances, DistilCSE's equation 8 does not. NOTE: the minus before the expectation
  in its alignment contradicts the sentence below it (expected distance, lower is better); it is left out here.
- Anisotropy: mean cosine of pairs of distinct sentences (Ethayarajh, EMNLP 2019); 0 for uniform directions.
- ConGen's appendix A.3: Spearman's correlation of cosine similarity and word-level edit distance; near 0 for a model that does not
  look at words. The same correlation of the gold scores is reported too.
- ConGen's out-of-domain example (section Limitation): the cosine of two clinical sentences whose gold score is 0; ConGen-BERT-Base's is 0.3.

Speed follows SimTDE's Table 4 (Xie et al., SIGIR 2023, section 4.3). Rates depend on the machine and its load, so they are never cached.
"""

from collections.abc import Callable, Mapping, Sequence
from timeit import timeit

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Embed, InputError
from jaxdistill.data.targets import principal_axes
from jaxdistill.data.text import read
from jaxdistill.evals import sts
from jaxdistill.evals.evaluation import Evaluation, Model, TestSet, spearman
from jaxdistill.evals.pairs import GradedPairs
from jaxdistill.models.vectors import finite_vectors, unit_vectors, vectors_of_pairs

OUT_OF_DOMAIN = (
    "The risks and benefits of the procedure were discussed, and the patient consented to this procedure",
    "The content of this note has been reproduced, signed by an authorized physician in the space above, and mailed to "
    "the patient's parents, the patient's home care company.",
)
BATCH_SIZE = 128
PASSES = 3
WHITENING_SENTENCES = 100_000
"""Most sentences on which whitening is fitted: 0.3 GB of vectors of 768 dimensions."""
RATE = f"speed/batch {BATCH_SIZE} (sentences/s)"
PROTOCOL = (
    "STS-B dev; alignment of pairs above 4 and uniformity by Wang and Isola and by DistilCSE's equation 8; mean cosine of "
    "all pairs; Spearman of cosine and word-level edit distance (ConGen A.3); cosine of ConGen's clinical example"
)


def measures(pairs: GradedPairs, embed: Embed) -> Mapping[str, float]:
    """Scores `geometry/...` of a model: alignments, uniformities in nats, cosines and correlations in [-1, 1]."""
    vectors, first_rows, second_rows = vectors_of_pairs(embed, pairs.first, pairs.second)
    first, second = vectors[first_rows], vectors[second_rows]
    similarities = np.einsum("ne,ne->n", first, second)
    same = pairs.scores > 4.0  # pairs that mean the same
    all_cosines = (vectors @ vectors.T)[np.triu_indices(len(vectors), k=1)]  # of every two distinct sentences
    edits = np.array(list(map(edit_distance, map(str.split, pairs.first), map(str.split, pairs.second))))
    clinical_vectors = unit_vectors(embed, OUT_OF_DOMAIN)
    return {
        "geometry/alignment": alignment(first[same], second[same], power=2),
        "geometry/uniformity": uniformity(all_cosines, power=2),
        "geometry/alignment (DistilCSE)": alignment(first[same], second[same], power=1),
        "geometry/uniformity (DistilCSE)": uniformity(all_cosines, power=1),
        "geometry/anisotropy": float(np.mean(all_cosines)),
        "geometry/edit distance": spearman(edits, similarities, name=pairs.name),
        "geometry/edit distance of gold": spearman(edits, pairs.scores, name=pairs.name),
        "geometry/out-of-domain cosine": float(np.sum(clinical_vectors[0] * clinical_vectors[1])),
    }


def alignment(first: Float[np.ndarray, "n e"], second: Float[np.ndarray, "n e"], *, power: int) -> float:
    """`E ||f(x) - f(y)||^power` over pairs of unit vectors; `power` is 2 in Wang and Isola's equation 1, 1 in DistilCSE's 8."""
    return float(np.mean(np.linalg.norm(first - second, axis=1) ** power))


def uniformity(cosines: Float[np.ndarray, " n"], *, power: int) -> float:
    """`log E exp(-2 ||f(x) - f(y)||^power)` from cosines of pairs; `power` is 2 in Wang and Isola's equation 2, 1 in DistilCSE's 8."""
    distances = np.sqrt(np.maximum(2.0 - 2.0 * cosines, 0.0))
    return float(np.log(np.mean(np.exp(-2.0 * distances**power))))


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """Levenshtein distance of two lists of words: the fewest insertions, deletions and replacements."""
    row = list(range(len(second) + 1))  # edits from no word to each prefix of `second`
    for count, word in enumerate(first, start=1):
        previous_row = row  # from the words before `word`
        row = [count]  # `count` words deleted
        for column, other in enumerate(second):
            replaced = previous_row[column] + (word != other)
            row.append(min(replaced, previous_row[column + 1] + 1, row[column] + 1))  # or deleted, or inserted
    return row[-1]


EVALUATION = Evaluation(
    task="geometry",
    scores=("geometry",),
    sets=lambda sources: [sts.test_set_of("sts-b-dev", "geometry", PROTOCOL, sources)],
    run=lambda model, test_set: measures(sts.read_set(*test_set.content), model.embed),
    has_units=True,
)


def whitening(vectors: Float[np.ndarray, "n e"]) -> Callable[[Float[np.ndarray, "m e"]], Float[np.ndarray, "m e"]]:
    """The affine map that gives `vectors` zero mean and identity covariance; raises `InputError` if there are at most `e` vectors.

    Su et al., Whitening Sentence Representations for Better Semantics and Faster Retrieval, arXiv 2103.15316, equations 5 to 8:
    `(x - mean) U S^(-1/2)`, where the covariance of `vectors` is `U S U^T`. Difference from the authors' code, which divides a rounding
    error by itself: a direction without variance, as the last LayerNorm gives the mean of a BERT's tokens, becomes zero.
    """
    width = vectors.shape[1]
    if len(vectors) <= width:
        raise InputError(f"whiten needs more than {width} distinct sentences, the vectors' width, not {len(vectors)}.")
    mean, kernel = principal_axes(vectors, power=1.0)
    return lambda others: ((others - mean) @ kernel).astype(np.float32)


def whitening_on(embed: Embed, specs: Sequence[str]) -> Callable[[np.ndarray], np.ndarray]:
    """The whitening of a model's vectors, fitted to at most `WHITENING_SENTENCES` random distinct sentences of the texts `specs`."""
    sentences = list(dict.fromkeys(sentence for (sentence,) in read(specs)))
    if len(sentences) > WHITENING_SENTENCES:
        rows = np.random.default_rng(0).choice(len(sentences), WHITENING_SENTENCES, replace=False)
        sentences = [sentences[row] for row in rows]
    return whitening(finite_vectors(embed, sentences))


def _run_speed(model: Model, test_set: TestSet) -> Mapping[str, float]:
    """Rates in sentences per second, one sentence a call and in batches; number of parameters, and size of the weights."""
    pairs = sts.read_set(*test_set.content)
    embed = model.timed
    assert embed is not None
    sentences = [*pairs.first, *pairs.second]
    # Compiles before timing. Lengths are padded to few shapes, so every tenth sentence by length meets each of them.
    for sentence in sorted(sentences, key=len, reverse=True)[::10]:
        embed([sentence])
    embed(sentences)
    one_by_one_s = timeit(lambda: [embed([sentence]) for sentence in sentences], number=1)
    return {
        "speed/batch 1 (sentences/s)": len(sentences) / one_by_one_s,
        RATE: PASSES * len(sentences) / timeit(lambda: embed(sentences), number=PASSES),
        "speed/parameters": model.parameters,
        "speed/weights (bytes)": model.size_bytes,
    }


SPEED_PROTOCOL = (
    f"STS-B test pass, one sentence a call and in batches of {BATCH_SIZE} (SimTDE, Table 4); compiling not counted"
)
SPEED = Evaluation(
    task="speed",
    scores=("speed",),
    sets=lambda sources: [sts.test_set_of("sts-b", "speed", SPEED_PROTOCOL, sources, is_repeatable=False)],
    run=_run_speed,
    has_units=True,
)
