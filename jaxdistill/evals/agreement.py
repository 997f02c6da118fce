"""Measures agreement of student and teacher: how they rank pairs of the same sentences, and whether they find the same neighbours.

The correlation is Spearman's, between the two models' cosine similarities over held-out pairs. Recall is the share of the
teacher's k nearest sentences that are among the student's k nearest, where each held-out sentence is compared with all others.
Neither needs labels, and the models may differ in width and tokenizer.
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
"""Maps metrics to the headings of reports."""
PROTOCOL = (
    "each distinct sentence compared with all others by cosine: share of the teacher's nearest 1 and 10 that the model finds; "
    "Spearman of the two models' cosines over pairs of a sentence with the teacher's nearest and with a random one"
)


@dataclass(frozen=True, kw_only=True)
class AgreementTask:
    """The evaluation against a teacher's stored similarities and neighbours."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    teacher: Float[np.ndarray, " n"]
    """The teacher's cosine similarity of each pair."""
    nearest: Integer[np.ndarray, "sentences best"] | None = None
    """The teacher's nearest others of each row of `vectors_of_pairs`; None: the teacher only scores pairs."""
    roles: Sequence[str] = ()
    """Roles of the first sentences, then of the second ones; empty: none has one. With roles, `embed` must be a `RoleEmbed`."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of a sentence encoder's scores. A recall needs more others than its rank, or it would always be 1."""
        others = 0 if self.nearest is None else len(self.nearest) - 1
        return METRIC, *(RECALL(rank) for rank in RANKS if rank < others)

    def __call__(self, embed: Embed | Scorer) -> Mapping[str, float]:
        """The `metrics`; the teacher itself has 1. A cross-encoder has only the correlation."""
        name = "agreement with the teacher"
        if isinstance(embed, Scorer):
            return {METRIC: spearman(self.teacher, similarities(embed, self.first, self.second), name=name)}
        roles = self.roles if any(self.roles) else ()  # without roles, `embed` need not be a `RoleEmbed`
        vectors, left, right = vectors_of_pairs(embed, self.first, self.second, roles=roles)
        scores = {METRIC: spearman(self.teacher, np.einsum("ne,ne->n", vectors[left], vectors[right]), name=name)}
        if self.nearest is not None:
            nearest = nearest_others(vectors, count=max(RANKS))
            for rank in RANKS:
                if RECALL(rank) in self.metrics:
                    is_shared = (self.nearest[:, :rank, None] == nearest[:, None, :rank]).any(axis=2)
                    scores[RECALL(rank)] = float(is_shared.mean())
        return scores


def agreement_task(teacher: Embed, first: Sequence[str], second: Sequence[str]) -> AgreementTask:
    """The evaluation on these pairs; computes the teacher's similarities, and its neighbours among all of their sentences."""
    vectors, left, right = vectors_of_pairs(teacher, first, second)
    similarities = np.einsum("ne,ne->n", vectors[left], vectors[right])
    nearest = nearest_others(vectors, count=max(RANKS))
    return AgreementTask(first=tuple(first), second=tuple(second), teacher=similarities, nearest=nearest)


def held_out_task(
    vectors: Mapping[str, Float[np.ndarray, " e"]], *, seed: int, roles: Mapping[str, str] | None = None
) -> AgreementTask:
    """The evaluation on held-out sentences, with the teacher's vectors and, if they have any, their roles.

    Each sentence is paired with its nearest neighbour and with a random one: random pairs alone are nearly all unrelated,
    so their ranking says little.
    """
    sentences, count = list(vectors), len(vectors)
    unit = unit_rows(np.stack(list(vectors.values())))
    nearest = nearest_others(unit, count=max(RANKS))
    # A shift by 1 to count - 1 is never the sentence itself.
    random_others = (np.arange(count) + np.random.default_rng(seed).integers(1, count, size=count)) % count
    left, right = np.tile(np.arange(count), 2), np.concatenate([nearest[:, 0], random_others])
    return AgreementTask(
        first=tuple(sentences[i] for i in left),
        second=tuple(sentences[i] for i in right),
        teacher=np.einsum("ne,ne->n", unit[left], unit[right]),
        nearest=nearest,
        roles=[roles[sentences[i]] for i in (*left, *right)] if roles else (),
    )


def neighbouring_pairs(sentences: Sequence[str]) -> tuple[list[str], list[str]]:
    """Pairs the first sentence with the second, the third with the fourth, and so on."""
    if len(sentences) % 2 or len(sentences) < 4:
        raise InputError(
            f"{len(sentences)} sentences do not make pairs of neighbouring lines; an even number, at least 4, is needed."
        )
    return list(sentences[::2]), list(sentences[1::2])


def _sets(sources: Sources) -> Iterable[TestSet]:
    if not sources.text or not sources.teacher:
        raise MissingSet("needs text=FILE with sentences and teacher=MODEL; give both.")
    files = tuple(files_of("text", sources.text))
    yield TestSet(name="agreement", protocol=PROTOCOL, files=files, references=("teacher",))


def _run(model: Model, test_set: TestSet) -> Mapping[str, float]:
    assert model.teacher is not None  # the set uses it
    sentences = list(dict.fromkeys(text for (text,) in read(list(map(str, test_set.files))) if text.strip()))
    vectors = dict(zip(sentences, unit_vectors(model.teacher.embed, sentences), strict=True))
    return held_out_task(vectors, seed=0)(model.embed)


EVALUATION = Evaluation(task="agreement", scores=("agreement",), sets=_sets, run=_run, headings=METRICS)
