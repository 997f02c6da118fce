"""Prunes the attention heads and feed-forward units that contribute least to the hidden states, equally many in each layer.

A unit is an attention head, or one hidden number of the feed-forward network. Its contribution for a token is its values
`x [f]` times its rows `w [f, d]` of the output kernel. By magnitude, a unit is scored by the norm of `w`; by activation, by
the root mean square of `x w` over the tokens of a text.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Integer

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.core import Array, InputError, Params, Tokens
from jaxdistill.data.packing import pad
from jaxdistill.encoders.architecture import Architecture, EncoderDefinition
from jaxdistill.encoders.families import family
from jaxdistill.encoders.layers import Linear
from jaxdistill.encoders.sentence import as_module

SAMPLE, BATCH = 1024, 32
"""Number of sentences on which activations are measured, and of sentences per batch."""
OUTPUT = "output"
"""A block's last dense layer."""
Moments = Mapping[str, Float[Array, "_ _ _"]]
"""Maps each output kernel's path to the sum over tokens of `x^T x` for each of its units."""


def pruned(
    model: SentenceModel, *, heads: int = 0, intermediate: int = 0, moments: Moments | None = None
) -> SentenceModel:
    """The model with fewer heads and feed-forward units in each layer.

    Args:
      heads: number to keep in each layer; 0: all. They keep their width, which the family's `config.json` must be able to state.
      intermediate: units to keep in each feed-forward network; 0: all.
      moments: choose units by activation, with these moments; None: by magnitude.
    """
    old, params = model.definition.architecture, dict(model.params)
    new = smaller_architecture(old, heads, intermediate)
    for index in range(1 if old.shared_layers else old.layers):
        # Layers are pruned one by one, from weights of the whole model: no layer sees what another lost.
        layer = f"transformer/layers/{index}"
        if new.heads < old.heads:
            energies = _energies(params, f"{layer}/attention/output/kernel", old.heads, moments)
            params |= _without_heads(params, f"{layer}/attention", old, new, energies=energies)
        if new.intermediate_size < old.intermediate_size:
            output = f"{layer}/output/kernel"
            units = _largest(_energies(params, output, old.intermediate_size, moments), new.intermediate_size)
            names = [f"{layer}/{part}/{kind}" for part in ("gate", "intermediate") for kind in ("kernel", "bias")]
            params |= {name: params[name][..., units] for name in names if name in params}
            params[output] = params[output][units]
    cut = [f"{new.heads} heads"] * (new.heads < old.heads)
    cut += [f"an intermediate width of {new.intermediate_size:,}"] * (new.intermediate_size < old.intermediate_size)
    source = f"{model.source}, pruned to {' and '.join(cut)}" if cut else model.source
    return model.remade(dataclasses.replace(model.definition, architecture=new), params, source)


def smaller_architecture(old: Architecture, heads: int, intermediate: int) -> Architecture:
    """The architecture after pruning, which removes whole groups of heads that share keys, or else equally many query heads of
    each group; raises `InputError` if it is not possible."""
    if intermediate > old.intermediate_size:
        raise InputError(f"student.intermediate={intermediate} is above the encoder's {old.intermediate_size}.")
    new = dataclasses.replace(old, intermediate_size=intermediate or old.intermediate_size)
    if heads in (0, old.heads):
        return new
    module, each, width = family(old.family), old.heads // old.key_head_count, old.head_width
    divides = getattr(module, "HEADS_DIVIDE_WIDTH", False)
    allowed = [
        count
        for count in range(1, old.heads)
        if 0 in (count % each, count % old.key_head_count) and not (divides and old.hidden_size % count)
    ]
    if heads not in allowed:
        raise InputError(
            f"student.heads={heads} is not possible: the encoder has {old.heads} heads in {old.key_head_count} groups that share "
            f"keys{f', and {old.family} needs a divisor of its width' if divides else ''}; use one of "
            f"{', '.join(map(str, [*allowed, old.heads]))}."
        )
    keys = heads // each if heads % each == 0 else old.key_head_count
    new = dataclasses.replace(
        new,
        heads=heads,
        key_heads=0 if keys == heads else keys,
        head_size=0 if width * heads == old.hidden_size else width,
    )
    # Only a family that writes `head_dim` can state a head size other than hidden_size / heads.
    if new.head_size and module.config(new).get("head_dim") != width:
        raise InputError(
            f"student.heads={heads}: the heads of a {old.family} checkpoint always have hidden_size / heads = {width} numbers, so "
            "they cannot be pruned; set student.intermediate or student.layers instead."
        )
    return new


def _energies(
    params: Mapping[str, np.ndarray], path: str, units: int, moments: Moments | None
) -> Float[np.ndarray, " units"]:
    """Squared norm of each unit's contribution to the hidden states."""
    rows = np.asarray(params[path], np.float32).reshape(units, -1, params[path].shape[-1])
    products = np.einsum("ufd,ued->ufe", rows, rows)
    # The sum over tokens of ||x w||^2 is the trace of w^T (sum x^T x) w; by magnitude, the moments are the identity.
    seen = np.eye(rows.shape[1], dtype=np.float32)[None] if moments is None else np.asarray(moments[path])
    return np.sum(products * seen, axis=(1, 2))


def _largest(energies: Float[np.ndarray, " units"], count: int) -> Integer[np.ndarray, " n"]:
    return np.sort(np.argsort(-energies, kind="stable")[:count])


def _without_heads(
    params: Mapping[str, np.ndarray],
    path: str,
    old: Architecture,
    new: Architecture,
    energies: Float[np.ndarray, " units"],
) -> dict[str, np.ndarray]:
    """The parameters of an attention block with only the heads that contribute most."""
    grouped = energies.reshape(old.key_head_count, -1)
    keys = _largest(grouped.sum(axis=1), new.key_head_count)
    each = new.heads // new.key_head_count
    queries = np.concatenate([key * grouped.shape[1] + _largest(grouped[key], each) for key in keys])
    smaller = {}
    for part, chosen in {"query": queries, "key": keys, "value": keys}.items():
        for name in (f"{path}/{part}/kernel", f"{path}/{part}/bias"):
            if name in params:
                array = params[name]
                of_heads = array.reshape(*array.shape[:-1], -1, old.head_width)[..., chosen, :]
                smaller[name] = of_heads.reshape(*array.shape[:-1], -1)
    output = params[f"{path}/output/kernel"]
    of_heads = output.reshape(old.heads, old.head_width, -1)[queries]
    return smaller | {f"{path}/output/kernel": of_heads.reshape(-1, output.shape[-1])}


class _Recorder:
    """A dense layer that also sums the second moments of its input, unit by unit."""

    def __init__(self, linear: Linear, units: int, real: Bool[Array, "g r l"]):
        self.linear, self.units, self.real = linear, units, real
        self.total: Array = jnp.zeros(())

    def __call__(self, x: Float[Array, "g r l i"], compute_dtype: DTypeLike) -> Float[Array, "g r l o"]:
        seen = jnp.where(self.real[..., None], x, 0.0).reshape(*x.shape[:-1], self.units, -1)
        self.total = self.total + jnp.einsum("grluf,grlue->ufe", seen, seen)
        return self.linear(x, compute_dtype)


def activation_moments(
    model: SentenceModel, ids: Sequence[Integer[np.ndarray, " _"]], *, longest: int
) -> dict[str, np.ndarray]:
    """The moments of the model's units on sentences of at most `longest` tokens."""
    ids, total = sorted(ids, key=len), dict[str, np.ndarray]()
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        length = min(longest, 1 << (len(batch[-1]) - 1).bit_length())
        tokens = pad(batch, length=length, count=BATCH, pad_id=model.definition.architecture.pad_id)
        for path, moments in jax.device_get(moments_of(model.definition, model.params, tokens)).items():
            total[path] = total.get(path, 0.0) + moments
    return total


@partial(jax.jit, static_argnums=0)
def moments_of(definition: EncoderDefinition, params: Params, tokens: Tokens) -> dict[str, Float[Array, "_ _ _"]]:
    """The moments of a batch of sentences; sum them over batches."""
    transformer, architecture = as_module(definition, params).transformer, definition.architecture
    recorders: dict[str, _Recorder] = {}
    for index, layer in enumerate(transformer.layers):
        path = f"transformer/layers/{index}"
        blocks = {
            f"{path}/attention": (layer.attention, architecture.heads),
            path: (layer, architecture.intermediate_size),
        }
        for name, (block, units) in blocks.items():
            recorders[f"{name}/output/kernel"] = recorder = _Recorder(block.output, units, tokens.owner >= 0)
            setattr(block, OUTPUT, recorder)
    transformer(tokens, key=None, compute_dtype=jnp.float32, remat=False)
    return {path: jnp.asarray(recorder.total) for path, recorder in recorders.items()}
