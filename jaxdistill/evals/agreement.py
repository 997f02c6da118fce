"""Measures agreement of student and teacher: Spearman's correlation of their similarities of the same sentence pairs.

The correlation is between the two models' cosine similarities over held-out pairs. It needs no labels, and the models may
differ in width and tokenizer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Embed, InputError, Scorer
from jaxdistill.evals.evaluation import Evaluation, Shown
from jaxdistill.evals.similarity import cosines, similarities, spearman, unit_rows

METRIC = "agreement/spearman"


@dataclass(frozen=True, kw_only=True)
class AgreementTask:
    """The evaluation against a teacher's stored similarities."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    teacher: Float[np.ndarray, " n"]
    """The teacher's cosine similarity of each pair."""
    roles: tuple[Sequence[str], Sequence[str]] = ((), ())
    """Roles of the first and of the second sentences; empty: none has one. With roles, `embed` must be a `RoleEmbed`."""

    def __call__(self, embed: Embed | Scorer) -> Mapping[str, float]:
        """`agreement/spearman`, in [-1, 1]; 1 for the teacher itself."""
        if isinstance(embed, Scorer) or not any(map(any, self.roles)):
            student = similarities(embed, self.first, self.second)
        else:
            student = cosines(embed, self.first, self.second, roles=[*self.roles[0], *self.roles[1]])
        return {METRIC: spearman(self.teacher, student, what="agreement with the teacher")}


def agreement_task(teacher: Embed, first: Sequence[str], second: Sequence[str]) -> AgreementTask:
    """The evaluation on these pairs; computes the teacher's similarities."""
    return AgreementTask(first=tuple(first), second=tuple(second), teacher=cosines(teacher, first, second))


def held_out_task(
    vectors: Mapping[str, Float[np.ndarray, " e"]], *, seed: int, roles: Mapping[str, str] | None = None
) -> AgreementTask:
    """The evaluation on held-out sentences, given with the teacher's vectors.

    Each sentence is paired with its nearest neighbour and with a random one: random pairs alone are nearly all unrelated,
    so their ranking says little.

    Args:
      roles: role of each sentence; None: none has one.
    """
    sentences = list(vectors)
    if len(sentences) < 2:
        raise InputError(f"{len(sentences)} distinct held-out sentences; pairs need at least 2.")
    unit = unit_rows(np.stack([vectors[sentence] for sentence in sentences]))
    similarities = unit @ unit.T
    np.fill_diagonal(similarities, -np.inf)
    near = np.argmax(similarities, axis=1)
    count = len(sentences)
    far = (np.arange(count) + np.random.default_rng(seed).integers(1, count, size=count)) % count
    left, right = np.tile(np.arange(count), 2), np.concatenate([near, far])
    return AgreementTask(
        first=tuple(sentences[i] for i in left),
        second=tuple(sentences[i] for i in right),
        teacher=similarities[left, right],
        roles=([roles[sentences[i]] for i in left], [roles[sentences[i]] for i in right]) if roles else ((), ()),
    )


def neighbouring_pairs(sentences: Sequence[str]) -> tuple[list[str], list[str]]:
    """Pairs the first sentence with the second, the third with the fourth, and so on."""
    if len(sentences) % 2 or len(sentences) < 4:
        raise InputError(
            f"{len(sentences)} sentences do not make pairs of neighbouring lines; an even number, at least 4, is needed."
        )
    return list(sentences[::2]), list(sentences[1::2])


EVALUATION = Evaluation(scores=("agreement",), shown=Shown(dev_headings={METRIC: "agreement with the teacher"}))
