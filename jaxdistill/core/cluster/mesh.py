"""Makes the device mesh and the shardings of arrays on it.

The mesh has three axes. `slice` and `data` together split the batch and the queue: `data` within a group of devices with
fast links, such as a TPU slice or a GPU host, and `slice` over these groups. `run.sharding` splits parameters over `data` or
`model`, so that in a step only gradients, never parameters, move between slices.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Integer

from jaxdistill.core import BATCH_AXES, STACKED, Array, InputError, Params
from jaxdistill.core.files import foreign_errors

Rules = Sequence[tuple[str, Sequence[str]]]
"""Pairs of a regular expression on the path of a parameter, and the mesh's axis for each of its axes; empty: not split."""
FrozenParams = Mapping[str, Array | list[Array]]
"""Parameters by path; the weights of stacked layers are a list, which `place_frozen` makes one array."""

AXES = ("slice", "data", "model")

PEAK_FLOPS_PER_S = {
    "TPU v5 lite": 197e12, "TPU v5": 459e12, "TPU v6 lite": 918e12, "H100": 989e12, "H200": 989e12, "A100": 312e12,
}  # fmt: skip
"""Peak dense bfloat16 FLOP/s by a part of JAX's device name; the first match counts. Sources: cloud.google.com/tpu/docs/v5e, /v5p
and /v6e, read on 22 November 2026, and NVIDIA's data sheets of the SXM modules."""

QUEUE_RULE = (r"objective/.*\bring$", ("", BATCH_AXES, ""))
"""Splits each batch of a queue over the devices, so that each device writes its part of a new batch locally."""


def on_host(array: Array) -> np.ndarray:
    """Fetches a whole array to this host. If it is split over hosts, all processes must call this together."""
    if isinstance(array, np.ndarray) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return multihost_utils.process_allgather(array, tiled=True)


def make_mesh(
    *,
    model_axis: int = 1,
    slices: int = 0,
    devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm] - an alias that jax makes at run time
) -> Mesh:
    """Arranges the devices as `[slice, data, model]`: `slices` (0: as many as they report, or one) times the rest times `model_axis`."""
    slice_indices = {device: getattr(device, "slice_index", None) or 0 for device in devices or jax.devices()}
    devices = sorted(slice_indices, key=slice_indices.__getitem__)  # stable
    slices = slices or len({*slice_indices.values()})
    if len(devices) % (slices * model_axis):
        raise InputError(
            f"run.slices={slices} times run.model_axis={model_axis} does not divide the {len(devices)} devices; set them to "
            "divisors of their number, or --config.run.slices to 0 for the slices that TPUs report."
        )
    return Mesh(np.array(devices).reshape(slices, -1, model_axis), AXES)


def batch_devices(mesh: Mesh | AbstractMesh) -> int:
    """Number of devices, or groups of them along `model`, that split a batch."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def pack_groups(requested: int, mesh: Mesh, batch_size: int) -> int:
    """Number of groups of a batch, of equal size on every device: `requested`, lowered to a divisor of `batch_size` and then raised to a
    multiple of the devices that split the batch, or else the number of these devices."""
    devices = batch_devices(mesh)
    if batch_size % devices:
        lower = batch_size // devices * devices
        nearest = ", ".join(str(size) for size in (lower, lower + devices) if size)
        raise InputError(f"data.batch_size={batch_size} is not divisible by {devices} devices; nearest: {nearest}.")
    groups = math.lcm(math.gcd(requested, batch_size), devices)
    return groups if batch_size % groups == 0 else devices


def local_groups(mesh: Mesh, groups: int) -> Integer[np.ndarray, " local"]:
    """Indices of the groups of a batch that this process's devices hold, ascending."""
    slices = batch_sharding(mesh).addressable_devices_indices_map((groups,))
    return np.unique(np.concatenate([np.arange(groups)[index] for index in slices.values()]))


def shardings(tree: Any, mesh: Mesh, rules: Rules) -> Any:
    """The sharding of each leaf, by the first rule that matches its path and number of axes; replicated without such a rule."""

    def choose(path, leaf):
        name = path_name(path)
        for pattern, axes in (*rules, QUEUE_RULE):
            if re.search(pattern, name) and len(axes) == np.ndim(leaf):
                return NamedSharding(mesh, PartitionSpec(*(axis or None for axis in axes)))
        return NamedSharding(mesh, PartitionSpec())

    return jax.tree_util.tree_map_with_path(choose, tree)


def unsharded(params: Params, shardings: Mapping[str, NamedSharding], dtype: DTypeLike) -> Params:
    """Gathers the parameters that the axis `data` splits, inside a jitted function, so that each device has them whole.

    Without this, the compiler splits hidden states by width where a matrix is split over the batch's devices, and reshards them
    in every product. Kernels are sent in `dtype`, to which products round them anyway; gradients are summed in float32.
    Stacks of layers stay split; the weights of one layer, cut from a stack, are gathered.
    """
    whole = dict(params)
    for path, array in params.items():
        split = shardings[path]
        if "data" not in split.spec or (path.startswith(STACKED) and array.ndim == len(split.spec)):
            continue
        if path.startswith(STACKED):
            split = NamedSharding(split.mesh, PartitionSpec(*split.spec[1:]))
        axes = [None if axis == "data" else axis for axis in split.spec]
        # Biases, norms and tables stay float32: unlike kernels, they are not rounded when they are used.
        sent_dtype = jnp.dtype(dtype if path.endswith("/kernel") else array.dtype)
        whole[path] = _gather(array, split, NamedSharding(split.mesh, PartitionSpec(*axes)), sent_dtype.name)
    return whole


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(array: Array, split: NamedSharding, whole: NamedSharding, sent_dtype: str) -> Array:
    return jax.lax.with_sharding_constraint(array.astype(sent_dtype), whole).astype(array.dtype)


def _gather_forward(array: Array, split: NamedSharding, whole: NamedSharding, sent_dtype: str):
    return _gather(array, split, whole, sent_dtype), None


def _gather_backward(split: NamedSharding, _whole: NamedSharding, _sent_dtype: str, _saved: None, cotangent: Array):
    # Not cast to `sent_dtype`: rounding before the sum over devices would lose small contributions.
    return (jax.lax.with_sharding_constraint(cotangent, split),)


_gather.defvjp(_gather_forward, _gather_backward)


def check_rules(rules: Rules, tree: Any, mesh: Mesh) -> None:
    """Raises `InputError` for a rule of run.sharding that matches no parameter in `tree`, or cannot split one."""
    shapes = {path_name(path): np.shape(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    for pattern, axes in rules:
        rule = f"run.sharding: the rule {(pattern, tuple(axes))}"
        matching = [shape for name, shape in shapes.items() if re.search(pattern, name) and len(shape) == len(axes)]
        if not matching:
            raise InputError(f"{rule} matches no parameter; one that exists is {next(iter(shapes.items()))}.")
        with foreign_errors(f"{rule} cannot be applied; the axes are {', '.join(AXES)}"):
            for shape in matching:  # `shard_shape` raises if the sharding does not fit
                NamedSharding(mesh, PartitionSpec(*(axis or None for axis in axes))).shard_shape(shape)


def path_name(path: tuple) -> str:
    """A key path of JAX as a string such as `params/student/transformer/...`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def place(tree: Any, sharding: Any) -> Any:
    """Places host arrays, which every process must hold whole, on devices, by one sharding or a tree of them."""

    def place_array(array: Any, sharding: NamedSharding) -> jax.Array:
        if sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        array = np.asarray(array)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(place_array, tree, jax.tree.broadcast(sharding, tree))


def place_frozen(params: FrozenParams, shardings: Mapping[str, Any], dtype: DTypeLike) -> dict[str, jax.Array]:
    """Places a frozen model's parameters on devices, one by one; if `dtype` is bfloat16, kernels are first rounded to it."""
    placed = {}
    for path, shape in frozen_shapes(params, dtype).items():
        array = params[path]
        if isinstance(array, list):
            array = np.stack([np.asarray(layer, shape.dtype) for layer in array])
        placed[path] = place(array.astype(shape.dtype, copy=False), shardings[path])
    return placed


def frozen_shapes(params: FrozenParams, dtype: DTypeLike) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of the result of `place_frozen`."""
    shapes = {}
    for path, array in params.items():
        layer = array[0] if isinstance(array, list) else array
        shape = (len(array), *layer.shape) if isinstance(array, list) else layer.shape
        is_rounded = jnp.dtype(dtype) == jnp.bfloat16 and path.endswith("/kernel")
        shapes[path] = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype if is_rounded else layer.dtype))
    return shapes


def place_batch(batch: Any, mesh: Mesh) -> Any:
    """Places a batch on the devices of the mesh. Each process passes the groups of the batch that `local_groups` gives it."""
    return jax.make_array_from_process_local_data(batch_sharding(mesh), batch)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Sharding over the leading axis: groups of tokens, or examples."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())
