"""A teacher of one or several models that score the text's sentence pairs, computed once, cached and resumable.

A labeller is a model that scores the pairs: a sentence encoder (cosine similarity, in [-1, 1]) or a cross-encoder (sigmoid, in
(0, 1)). For an objective that compares differences of any size (`logits`), a cross-encoder's labels are its logits, because the
sigmoids of large logits are all 1 in float32; a sentence encoder's are dot products, if its checkpoint compares by dot product.
The scores of several labellers are averaged, as in Trans-Encoder's mutual distillation (Liu et al., ICLR 2022, section 2.4).
"""

import dataclasses
import logging
from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float

from jaxdistill.core import InputError
from jaxdistill.core.paths import cache_folder
from jaxdistill.core.runtime import Advance
from jaxdistill.data import targets
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.inference import Embedder, refuse_mixed
from jaxdistill.models.model_text import check_reads
from jaxdistill.models.outside import PREFIX, Reranker
from jaxdistill.models.teacher import Encoder, Labeller, ModelContext, TargetInputs

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labels(Encoder):
    """The mean score of one or several models for each pair of a row: `text` and `second`, or a query and each of its candidates."""

    kind: str = "labels"

    scores_pairs = of_rows = True

    def labellers(self, context: ModelContext) -> Sequence[Labeller]:
        labellers: list[Labeller] = []
        for options in self.per_model():
            name = options.model
            if not name.startswith(PREFIX):  # which marks cross-encoders that sentence-transformers runs
                labellers.append(options.read(context, frozen=False))
            elif options.pooling or options.query_prompt or options.document_prompt:
                raise InputError(f"{name} scores pairs; leave teacher.pooling and the prompts of roles empty.")
            else:
                labellers.append(Reranker(name, prompt=options.prompt, max_length=options.max_length))
        return labellers

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        for labeller in inputs.labellers:
            if isinstance(labeller, SentenceModel):  # another one has no tokenizer of ours to check
                check_reads(inputs.data, labeller, inputs.objective.scored, inputs.text)
        refuse_mixed(inputs.labellers)  # cosines, sigmoids and logits differ in scale
        scores = [scores_of(labeller, inputs) for labeller in inputs.labellers]
        mean = np.asarray(np.mean(np.stack(scores), axis=0, dtype=np.float32))
        names = ", ".join(labeller.source for labeller in inputs.labellers)
        below = np.count_nonzero(mean < 0.0)
        log.info(f"labels: {mean.size:,} pairs by {names}, mean {mean.mean():.3f}, {below:,} of them below 0")
        return (mean,)


def scores_of(labeller: Labeller, inputs: TargetInputs) -> Float[np.ndarray, "rows k"]:
    """One labeller's scores of each row's `k` pairs: the first of the objective's `scored` columns with each of the others."""
    folder = cache_folder(inputs.data.cache_folder) / "labels"
    cached = partial(targets.cached_vectors, folder, progress=inputs.progress)
    # The cache's key; the columns and the kind of scores are added below.
    key = f"{labeller.digest()} {inputs.text.content_digest} {np.dtype(inputs.compute_dtype).name}"
    if isinstance(labeller, Reranker):
        return _pair_scores(labeller, inputs, cached, key)
    embedder = Embedder(labeller, compute_dtype=inputs.compute_dtype)
    score = _pair_scores if labeller.definition.reads_pairs else _similarities
    return score(embedder, inputs, cached, key)


def _pair_scores(model: Embedder | Reranker, inputs: TargetInputs, cached: partial[np.ndarray], key: str) -> np.ndarray:
    """The scores or logits `[rows, k]` of a cross-encoder, which are cached."""
    store, columns, logits = inputs.text, inputs.objective.scored, inputs.objective.logits

    def score(pairs: Sequence[tuple[str, str]], advance: Advance) -> np.ndarray:
        first, second = zip(*pairs, strict=True)
        return model.score(first, second, logits=logits, show_progress_bar=advance)[:, None]  # vectors of width 1

    title = "labelling pairs with logits" if logits else "labelling pairs"  # also distinguishes them in the cache
    scores = []
    for other in columns[1:]:
        pairs = list(zip(store.texts(columns[0]), store.texts(other), strict=True))
        scores.append(cached(f"{title} {columns[0]} {other} {key}", score, pairs, 1, what=title)[:])
    return np.concatenate(scores, axis=1)


def _similarities(embedder: Embedder, inputs: TargetInputs, cached: partial[np.ndarray], key: str) -> np.ndarray:
    """The similarities `[rows, k]` of a sentence encoder's vectors, which are cached."""
    store, columns = inputs.text, inputs.objective.scored
    compares_by_dot = embedder.model.definition.similarity == "dot"
    labels_are_products = compares_by_dot and inputs.objective.logits
    if compares_by_dot and not labels_are_products:
        log.warning("%s: its checkpoint compares by dot product; its labels are cosines here", embedder.model.source)
    index_of: dict[str, int] = {}  # of each distinct sentence, in `vectors`
    indices = []  # for each column, the index of each row's sentence
    for column in columns:
        texts = store.texts(column, embedder.model.role_prompts)  # with the prompts, so `encode` adds none
        indices.append(np.array([index_of.setdefault(text, len(index_of)) for text in texts]))
    vectors = cached(
        f"labelling sentences {' '.join(columns)} {key}",
        lambda sentences, advance: embedder.encode(sentences, prompt="", show_progress_bar=advance),
        list(index_of), embedder.width, what="labelling sentences",
    )  # fmt: skip
    scores = np.zeros((store.rows, len(columns) - 1), np.float32)
    for begin in range(0, store.rows, targets.BLOCK_ROWS):  # in blocks, because the vectors are on the disk
        block = slice(begin, begin + targets.BLOCK_ROWS)
        first, *others = (np.asarray(vectors[of_column[block]], np.float64) for of_column in indices)
        for pair, other in enumerate(others):
            products = np.einsum("ne,ne->n", first, other)
            lengths = np.maximum(np.linalg.norm(first, axis=1) * np.linalg.norm(other, axis=1), 1e-12)
            scores[block, pair] = products if labels_are_products else products / lengths
    return scores
