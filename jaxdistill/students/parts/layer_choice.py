"""Chooses a student's layers by how much the model's vectors change without each of them.

`student.layers=greedy:6` drops one layer at a time, always the one whose removal changes the sentences' vectors least. It
then swaps kept layers for dropped ones while that brings the vectors closer to the whole model's.

Source: Peer et al., Greedy-layer pruning: Speeding up Transformer models for natural language processing, 2022
(arXiv 2105.14839). Differences: closeness to the whole model replaces a task's score, and the swaps are an addition.
"""

import logging
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.cluster import processes
from jaxdistill.core import InputError
from jaxdistill.data.model_text import sampled_ids
from jaxdistill.inference import Embedder
from jaxdistill.ops.dense import dtype_of
from jaxdistill.surgery import resizing
from jaxdistill.teachers.parts.teacher import ModelContext

GREEDY = "greedy:"
SAMPLE = 512
"""Most sentences on which layers are chosen; a longer text gives at least half as many."""

log = logging.getLogger(__name__)


def cut(wanted: str, context: ModelContext, model: SentenceModel) -> SentenceModel:
    """The model with the layers of `student.layers`; evenly spaced ones stand in for a greedy choice in a draft."""
    if not wanted.startswith(GREEDY):
        return resizing.from_layers(model, wanted)
    count = _count(wanted, model.definition.architecture.layers)
    if context.draft:
        return resizing.from_layers(model, f"even:{count}")
    # The first process's choice holds for all: others may round differently.
    chosen = processes.gathered(_chosen(context, model, count))[0]
    return resizing.from_layers(model, ",".join(map(str, chosen)))


def _count(option: str, depth: int) -> int:
    number = option.removeprefix(GREEDY)
    if not number.isdecimal() or not 0 < int(number) <= depth:
        raise InputError(
            f"student.layers={option!r}: give a number from 1 to {depth} (the model's layers), such as greedy:{depth // 2}."
        )
    return int(number)


def _chosen(context: ModelContext, model: SentenceModel, count: int) -> list[int]:
    """The `count` layers chosen by the model's vectors of sentences drawn evenly from the text."""
    ids = sampled_ids(context.data, context.student_views, model, SAMPLE)
    dtype = dtype_of(context.precision)

    def vectors(layers: Sequence[int]) -> Float[np.ndarray, "n e"]:
        part = resizing.from_layers(model, ",".join(map(str, layers)))
        return Embedder(part, compute_dtype=dtype).encode_ids(ids)

    log.info("student: choosing %d of %d layers on %d sentences", count, model.definition.architecture.layers, len(ids))
    return greedy(vectors, model.definition.architecture.layers, count)


def greedy(vectors: Callable[[Sequence[int]], Float[np.ndarray, "n e"]], depth: int, count: int) -> list[int]:
    """Drops layers one by one until `count` are left, then swaps single ones; ties go to the first choice.

    Args:
      vectors: gives a fixed set of sentences' vectors by the model with only these layers.
      depth: number of the model's layers.
    """
    kept = list(range(depth))
    whole = vectors(kept)

    def best(choices: Sequence[list[int]]) -> tuple[float, list[int]]:
        choice = max(((closeness(vectors(layers), whole), layers) for layers in choices), key=lambda choice: choice[0])
        log.info("student: layers %s are the closest to all of them: %.3f", ", ".join(map(str, choice[1])), choice[0])
        return choice

    close = 1.0
    while len(kept) > count:
        close, kept = best([[layer for layer in kept if layer != dropped] for dropped in kept])
    # A layer that was dropped early may be worth more than another one, now that its neighbours are gone.
    while count < depth:
        left_out = [layer for layer in range(depth) if layer not in kept]
        reached, other = best([sorted({*kept} - {old} | {new}) for old in kept for new in left_out])
        if reached <= close:
            break
        close, kept = reached, other
    return kept


def closeness(student: Float[np.ndarray, "n e"], target: Float[np.ndarray, "n e"]) -> float:
    """Mean cosine of two models' vectors of the same sentences, each centred: in a narrow cone, all cosines are large."""
    first, second = (x - x.mean(axis=0) for x in (student, target))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(np.mean(np.sum(first * second, axis=1) / np.maximum(norms, 1e-12)))
