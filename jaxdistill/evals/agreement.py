"""Measures how far a student agrees with its teacher in similarities of sentence pairs and in nearest neighbours.

The correlation is Spearman's, between the two models' cosine similarities over held-out pairs. Recall is the share of the teacher's k
nearest held-out sentences that are among the student's. Neither needs labels, and the models may differ in width and tokenizer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import Embed, InputError, Scorer
from jaxdistill.core.ops.nearest import nearest_others
from jaxdistill.data.text import files_of, read
from jaxdistill.evals.evaluation import Evaluation, MissingSet, Model, Sources, TestSet, spearman
from jaxdistill.models.vectors import similarities, unit_rows, unit_vectors, vectors_of_pairs

METRIC = "agreement/spearman"
RECALL = "agreement/recall@{}".format
RANKS = (1, 10)
METRICS = {
    METRIC: "agreement with the teacher",
    RECALL(1): "teacher's nearest sentence found",
    RECALL(10): "teacher's ten nearest found",
}
PROTOCOL = (
    "each distinct sentence compared with all others by cosine: share of the teacher's nearest 1 and 10 that the model finds; "
    "Spearman of the two models' cosines over pairs of a sentence with the teacher's nearest and with a random one"
)


@dataclass(frozen=True, kw_only=True)
class AgreementTask:
    """Sentence pairs with the teacher's similarities and neighbours, to which a model is compared."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    teacher_similarities: Float[np.ndarray, " n"]
    """The teacher's cosine similarity of each pair, or its score if it only scores pairs."""
    teacher_nearest: Integer[np.ndarray, "sentences best"] | None = None
    """For each distinct sentence, indices of the teacher's nearest others; None if the teacher has no vectors. Sentences are numbered
    in the order in which they appear, first in `first` and then in `second`."""
    roles: Sequence[str] = ()
    """Roles of all first, then of all second sentences; empty: none has one. With roles, a model must be a `RoleEmbed`."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of a sentence encoder's scores. With at most `rank` other sentences, recall at `rank` would be 1 and is left out."""
        others = 0 if self.teacher_nearest is None else len(self.teacher_nearest) - 1
        return METRIC, *(RECALL(rank) for rank in RANKS if rank < others)

    def __call__(self, model: Embed | Scorer) -> Mapping[str, float]:
        """Scores a model by the `metrics`, a cross-encoder by the correlation alone. The teacher itself would score 1."""
        name = "agreement with the teacher"
        if isinstance(model, Scorer):
            scored = similarities(model, self.first, self.second)
            return {METRIC: spearman(self.teacher_similarities, scored, name=name)}
        roles = self.roles if any(self.roles) else ()  # without roles, `model` need not be a `RoleEmbed`
        vectors, left, right = vectors_of_pairs(model, self.first, self.second, roles=roles)  # as in `teacher_nearest`
        cosines = np.einsum("ne,ne->n", vectors[left], vectors[right])
        scores = {METRIC: spearman(self.teacher_similarities, cosines, name=name)}
        if self.teacher_nearest is not None:
            nearest = nearest_others(vectors, count=max(RANKS))
            for rank in RANKS:
                if RECALL(rank) in self.metrics:
                    # [sentences, the teacher's nearest, the model's nearest]
                    is_equal = self.teacher_nearest[:, :rank, None] == nearest[:, None, :rank]
                    scores[RECALL(rank)] = float(is_equal.any(axis=2).mean())
        return scores


def agreement_task(teacher: Embed, first: Sequence[str], second: Sequence[str]) -> AgreementTask:
    """Makes the evaluation on pairs of `first` and `second`; neighbours are searched among all of their sentences."""
    vectors, left, right = vectors_of_pairs(teacher, first, second)
    cosines = np.einsum("ne,ne->n", vectors[left], vectors[right])
    others = nearest_others(vectors, count=max(RANKS))
    return AgreementTask(first=tuple(first), second=tuple(second), teacher_similarities=cosines, teacher_nearest=others)


def held_out_task(
    teacher_vectors: Mapping[str, Float[np.ndarray, " e"]], *, seed: int, roles: Mapping[str, str] | None = None
) -> AgreementTask:
    """Makes the evaluation on held-out sentences; `teacher_vectors` and `roles` map each of them to its vector and role. Each is paired
    with its nearest neighbour and with a random other, because random pairs alone are nearly all unrelated."""
    sentences = list(teacher_vectors)
    if (count := len(sentences)) < 3:  # two have one cosine, which has no correlation
        raise InputError(f"agreement with the teacher needs at least 3 different sentences, not {count}.")
    unit = unit_rows(np.stack(list(teacher_vectors.values())))
    nearest = nearest_others(unit, count=max(RANKS))
    # A shift by 1 to count - 1 never leads back to the sentence itself.
    random_others = (np.arange(count) + np.random.default_rng(seed).integers(1, count, size=count)) % count
    left = np.tile(np.arange(count), 2)  # all sentences in order, which is how `teacher_nearest` numbers them
    right = np.concatenate([nearest[:, 0], random_others])
    return AgreementTask(
        first=tuple(sentences[row] for row in left),
        second=tuple(sentences[row] for row in right),
        teacher_similarities=np.einsum("ne,ne->n", unit[left], unit[right]),
        teacher_nearest=nearest,
        roles=[roles[sentences[row]] for row in (*left, *right)] if roles else (),
    )


def _sets(sources: Sources) -> Iterable[TestSet]:
    """One set, the sentences of `text`, on which models are compared with `teacher`."""
    if not sources.text or not sources.teacher:
        raise MissingSet("needs text=FILE with sentences and teacher=MODEL; give both.")
    files = tuple(files_of("text", sources.text))
    yield TestSet(name="agreement", protocol=PROTOCOL, files=files, references=("teacher",))


def _run(model: Model, test_set: TestSet) -> Mapping[str, float]:
    """The model's agreement with the teacher on all distinct sentences of the set."""
    assert model.teacher is not None  # because the set's `references` name it
    sentences = list(dict.fromkeys(text for (text,) in read(list(map(str, test_set.files))) if text.strip()))
    vectors = dict(zip(sentences, unit_vectors(model.teacher.embed, sentences), strict=True))
    return held_out_task(vectors, seed=0)(model.embed)


EVALUATION = Evaluation(task="agreement", scores=("agreement",), sets=_sets, run=_run, headings=METRICS)
