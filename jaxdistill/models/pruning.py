"""Chooses what a student leaves out of a model by its effect on a text: layers, and feed-forward units.

`student.layers=greedy:6` drops one layer at a time, always the one whose removal changes the sentences' vectors least. It
then swaps kept layers for dropped ones while that brings the vectors closer to the whole model's.

Source: Peer et al., Greedy-layer pruning: Speeding up Transformer models for natural language processing, 2022
(arXiv 2105.14839). Differences: closeness to the whole model replaces a task's score, and the swaps are an addition.

`student.intermediate` keeps the feed-forward units that contribute most to the hidden states, equally many in each layer. A
unit is one hidden dimension of the network, with the activation `x`. Its contribution for a token is `x` times its row `w [d]` of
the output kernel, so a unit's score is the squared norm of `w` times its energy, the sum of `x^2` over the tokens of a text.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxdistill.core import Array, Params, Tokens
from jaxdistill.core.cluster import processes
from jaxdistill.core.ops.dense import dtype_of
from jaxdistill.data.packing import pad
from jaxdistill.encoders.architecture import EncoderDefinition
from jaxdistill.encoders.layers import Linear
from jaxdistill.encoders.sentence import as_module
from jaxdistill.models.checkpoints.model import SentenceModel, check_size
from jaxdistill.models.inference import Embedder
from jaxdistill.models.model_text import sampled_ids
from jaxdistill.models.surgery import from_layers
from jaxdistill.models.teacher import ModelContext

BATCH = 32  # sentences per batch in which activations are measured

log = logging.getLogger(__name__)


def resolved_layers(choice: str, context: ModelContext, model: SentenceModel) -> str:
    """The option `student.layers`, with `greedy:6` replaced by the list of 6 layers that are chosen on a sample of the text."""
    kind, _, number = choice.partition(":")
    depth = model.definition.architecture.layers
    if kind != "greedy" or not number.isdecimal() or not 0 < int(number) <= depth:
        return choice  # `surgery.from_layers` reads or refuses it
    ids = sampled_ids(context.data, context.student_views, model, 512)

    def vectors(layers: Sequence[int]) -> Float[np.ndarray, "n e"]:
        part = from_layers(model, ",".join(map(str, layers)))
        return Embedder(part, compute_dtype=dtype_of(context.precision)).encode_ids(ids)

    log.info("student: choosing %s of %d layers on %d sentences", number, depth, len(ids))
    chosen = greedy(vectors, depth, int(number))
    # All processes use the choice of the first one, because others may round differently.
    return ",".join(map(str, processes.gathered(chosen)[0]))


def greedy(vectors: Callable[[Sequence[int]], Float[np.ndarray, "n e"]], depth: int, count: int) -> list[int]:
    """Indices of the `count` layers of `depth` to keep: drops layers one by one, then swaps single ones. Of equals, the first one wins.
    `vectors` maps indices of layers to the vectors of fixed sentences by the model with only these layers."""
    layers = list(range(depth))
    target = vectors(layers)

    def closest(candidates: Sequence[list[int]]) -> tuple[float, list[int]]:
        scored = [(closeness(vectors(candidate), target), candidate) for candidate in candidates]
        score, winner = max(scored, key=lambda pair: pair[0])
        log.info("student: layers %s are the closest to all of them: %.3f", ", ".join(map(str, winner)), score)
        return score, winner

    score = 1.0  # of all layers
    while len(layers) > count:
        score, layers = closest([[layer for layer in layers if layer != dropped] for dropped in layers])
    # A layer that was dropped early may now be worth more than one that was kept. If all layers are kept, nothing can be swapped.
    while count < depth:
        dropped = [layer for layer in range(depth) if layer not in layers]
        swapped_score, swapped = closest([sorted({*layers} - {old} | {new}) for old in layers for new in dropped])
        if swapped_score <= score:
            break
        score, layers = swapped_score, swapped
    return layers


def closeness(student: Float[np.ndarray, "n e"], target: Float[np.ndarray, "n e"]) -> float:
    """Mean cosine of two models' vectors of the same sentences. Both are centred, because all cosines in a narrow cone are large."""
    first = student - student.mean(axis=0)
    second = target - target.mean(axis=0)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(np.mean(np.sum(first * second, axis=1) / np.maximum(norms, 1e-12)))


def pruned(model: SentenceModel, units: int, energies: Mapping[str, Float[Array, " _"]]) -> SentenceModel:
    """The model with only the `units` of each feed-forward network that have the highest scores, see the top of this file. `energies`
    maps the path of each layer to the energies of its units."""
    old = model.definition.architecture
    params = dict(model.params)
    check_size("student.intermediate", units, old.intermediate_size, "the encoder's")
    for index in range(1 if old.shared_layers else old.layers):
        # `energies` are the whole model's, so the units that one layer loses do not change the scores of others.
        layer = f"transformer/layers/{index}"
        output = f"{layer}/output/kernel"  # [units, d]: one row for each unit
        scores = np.sum(np.square(np.asarray(params[output], np.float32)), axis=1) * np.asarray(energies[layer])
        chosen = np.sort(np.argsort(-scores, kind="stable")[:units])
        # Kernels [d, units] and biases [units] of the layers before the activation; some families have no gate or biases.
        inputs = [f"{layer}/{part}/{leaf}" for part in ("gate", "intermediate") for leaf in ("kernel", "bias")]
        params |= {path: params[path][..., chosen] for path in inputs if path in params}
        params[output] = params[output][chosen]
    source = f"{model.source}, pruned to an intermediate width of {units:,}"
    return dataclasses.replace(model, params=params, source=source).with_architecture(intermediate_size=units)


def unit_energies(context: ModelContext, model: SentenceModel) -> dict[str, np.ndarray]:
    """Maps the path of each layer to the energies of its units on a sample of the training text."""
    ids = sorted(sampled_ids(context.data, context.student_views, model, 1024), key=len)  # so batches have like lengths
    longest = min(context.data.max_length or model.max_length, model.max_length)  # as `sampled_ids` truncates
    total = dict[str, np.ndarray]()
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        length = min(longest, 1 << (len(batch[-1]) - 1).bit_length())  # the next power of two; the last is the longest
        tokens = pad(batch, length=length, count=BATCH, pad_id=model.definition.architecture.pad_id)
        for path, energies in jax.device_get(energies_of(model.definition, model.params, tokens)).items():
            total[path] = total.get(path, 0.0) + energies
    return total


@partial(jax.jit, static_argnums=0)
def energies_of(definition: EncoderDefinition, params: Params, tokens: Tokens) -> dict[str, Float[Array, " _"]]:
    """Maps the path of each layer to the energies of its units: the sums over a batch's tokens of `x^2`."""
    transformer = as_module(definition, params).transformer
    energies: dict[str, Array] = {}

    def recorded(path: str, output: Linear, x: Float[Array, "g r l i"], compute_dtype: DTypeLike) -> Array:
        """Applies `output`, the last layer of a feed-forward network, and records the energies of its input."""
        without_padding = jnp.where(tokens.owner[..., None] >= 0, x, 0.0)
        energy = jnp.einsum("grli,grli->i", without_padding, without_padding)
        energies[path] = energies.get(path, 0.0) + energy  # a shared layer runs several times
        return output(x, compute_dtype)

    for index, layer in enumerate(transformer.layers):  # made by this call, so they may be changed
        layer.output = cast(Linear, partial(recorded, f"transformer/layers/{index}", layer.output))
    transformer(tokens, key=None, compute_dtype=jnp.float32, remat=False)
    return energies
