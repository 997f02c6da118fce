"""Prunes the feed-forward units that contribute least to the hidden states, equally many in each layer.

A unit is one hidden number `x` of the feed-forward network. Its contribution for a token is `x` times its row `w [d]` of the
output kernel, so a unit is scored by the norm of `w` times the root mean square of `x` over the tokens of a text.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Integer

from jaxdistill.core import Array, InputError, Params, Tokens
from jaxdistill.data.packing import pad
from jaxdistill.encoders.architecture import EncoderDefinition
from jaxdistill.encoders.layers import Linear
from jaxdistill.encoders.sentence import as_module
from jaxdistill.models.checkpoints.model import SentenceModel

SAMPLE, BATCH = 1024, 32
"""Number of sentences on which activations are measured, and of sentences per batch."""
OUTPUT = "output"
"""A block's last dense layer."""
Energies = Mapping[str, Float[Array, " _"]]
"""Maps the path of each layer to the sum over tokens of `x^2` for each of its units."""


def pruned(model: SentenceModel, units: int, energies: Energies | None) -> SentenceModel:
    """The model with fewer units in each feed-forward network.

    Args:
      units: number to keep in each network.
      energies: see `unit_energies`; None: as if all units were equally active.
    """
    old, params = model.definition.architecture, dict(model.params)
    if units > old.intermediate_size:
        raise InputError(f"student.intermediate={units} is above the encoder's {old.intermediate_size}.")
    for index in range(1 if old.shared_layers else old.layers):
        # Each layer is pruned by the whole model's activations: no layer sees what another lost.
        layer = f"transformer/layers/{index}"
        output = f"{layer}/output/kernel"
        scores = np.sum(np.square(np.asarray(params[output], np.float32)), axis=1)
        scores = scores if energies is None else scores * np.asarray(energies[layer])
        chosen = np.sort(np.argsort(-scores, kind="stable")[:units])
        names = [f"{layer}/{part}/{kind}" for part in ("gate", "intermediate") for kind in ("kernel", "bias")]
        params |= {name: params[name][..., chosen] for name in names if name in params}
        params[output] = params[output][chosen]
    architecture = dataclasses.replace(old, intermediate_size=units)
    source = f"{model.source}, pruned to an intermediate width of {units:,}"
    return model.remade(dataclasses.replace(model.definition, architecture=architecture), params, source)


class _Recorder:
    """A dense layer that also sums the squares of its inputs, unit by unit."""

    def __init__(self, linear: Linear, real: Bool[Array, "g r l"]):
        self.linear, self.real = linear, real
        self.total: Array = jnp.zeros(())

    def __call__(self, x: Float[Array, "g r l i"], compute_dtype: DTypeLike) -> Float[Array, "g r l o"]:
        seen = jnp.where(self.real[..., None], x, 0.0)
        self.total = self.total + jnp.einsum("grlu,grlu->u", seen, seen)
        return self.linear(x, compute_dtype)


def unit_energies(
    model: SentenceModel, ids: Sequence[Integer[np.ndarray, " _"]], *, longest: int
) -> dict[str, np.ndarray]:
    """The `Energies` of the model's units on sentences of at most `longest` tokens."""
    ids, total = sorted(ids, key=len), dict[str, np.ndarray]()
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        length = min(longest, 1 << (len(batch[-1]) - 1).bit_length())
        tokens = pad(batch, length=length, count=BATCH, pad_id=model.definition.architecture.pad_id)
        for path, energies in jax.device_get(energies_of(model.definition, model.params, tokens)).items():
            total[path] = total.get(path, 0.0) + energies
    return total


@partial(jax.jit, static_argnums=0)
def energies_of(definition: EncoderDefinition, params: Params, tokens: Tokens) -> dict[str, Float[Array, " _"]]:
    """The `Energies` of a batch of sentences; sum them over batches."""
    transformer, recorders = as_module(definition, params).transformer, dict[str, _Recorder]()
    for index, layer in enumerate(transformer.layers):
        recorders[f"transformer/layers/{index}"] = recorder = _Recorder(layer.output, tokens.owner >= 0)
        setattr(layer, OUTPUT, recorder)
    transformer(tokens, key=None, compute_dtype=jnp.float32, remat=False)
    return {path: jnp.asarray(recorder.total) for path, recorder in recorders.items()}
