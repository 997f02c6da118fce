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
"""Each rule: a regular expression on a parameter's path, and the mesh's axis that splits each of its axes, empty for none."""
FrozenParams = Mapping[str, Array | list[Array]]
"""Parameters by path; the weights of stacked layers may be a list, of which `place_frozen` makes one array."""

AXES = ("slice", "data", "model")

PEAK_FLOPS_PER_S = {
    "TPU v5 lite": 197e12, "TPU v5": 459e12, "TPU v6 lite": 918e12, "H100": 989e12, "H200": 989e12, "A100": 312e12,
}  # fmt: skip
"""Peak dense bfloat16 FLOP/s by a part of JAX's device name; the first match counts. Sources: cloud.google.com/tpu/docs/v5e, /v5p
and /v6e, read on 22 November 2026, and NVIDIA's data sheets of the SXM modules."""

QUEUE_RULE = (r"objective/.*\bring$", ("", BATCH_AXES, ""))
"""Splits each batch of a queue (`Ring` in `core/ops/ring.py`) over the devices, so that each writes its part of a new batch locally."""


def on_host(array: Array) -> np.ndarray:
    """Fetches a whole array to this host. If it is split over hosts, all processes must call this together."""
    if isinstance(array, np.ndarray) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return multihost_utils.process_allgather(array, tiled=True)


def make_mesh(*, model_axis: int = 1, slices: int = 0, devices: Sequence[Any] | None = None) -> Mesh:
    """Arranges the devices as `[slice, data, model]`; `slices` and `model_axis` are the sizes of the first and the last axis.
    `slices=0` takes the slices that the devices report; devices that report none form one."""
    slice_indices = {device: getattr(device, "slice_index", None) or 0 for device in devices or jax.devices()}
    devices = sorted(slice_indices, key=slice_indices.__getitem__)  # keeps the order of a slice's devices
    slices = slices or len({*slice_indices.values()})
    if len(devices) % (slices * model_axis):
        raise InputError(
            f"run.slices={slices} times run.model_axis={model_axis} does not divide the {len(devices)} devices; set them to "
            "divisors of their number, or --config.run.slices to 0 for the slices that TPUs report."
        )
    return Mesh(np.array(devices).reshape(slices, -1, model_axis), AXES)


def batch_devices(mesh: Mesh | AbstractMesh) -> int:
    """Number of parts into which the mesh splits a batch; the devices along `model` hold the same part."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def pack_groups(requested: int, mesh: Mesh, batch_size: int) -> int:
    """Number of groups of a batch: about `requested`, such that groups are equally large and every device holds equally many.
    Raises `InputError` if the devices do not divide the batch size."""
    devices = batch_devices(mesh)
    if batch_size % devices:
        lower = batch_size // devices * devices
        nearest = ", ".join(str(size) for size in (lower, lower + devices) if size)
        raise InputError(f"data.batch_size={batch_size} is not divisible by {devices} devices; nearest: {nearest}.")
    # The common divisor makes groups equally large. The multiple, which divides the batch size too, gives every device equally many.
    return math.lcm(math.gcd(requested, batch_size), devices)


def local_groups(mesh: Mesh, groups: int) -> Integer[np.ndarray, " local"]:
    """Indices of the groups of a batch that this process's devices hold, ascending."""
    index_of_device = batch_sharding(mesh).addressable_devices_indices_map((groups,))
    return np.unique(np.concatenate([np.arange(groups)[index] for index in index_of_device.values()]))


def shardings(tree: Any, mesh: Mesh, rules: Rules) -> Any:
    """The sharding of each leaf, by the first rule that matches its path and number of axes; replicated if none does."""

    def choose_sharding(path, leaf):
        name = path_name(path)
        for pattern, axes in (*rules, QUEUE_RULE):
            if re.search(pattern, name) and len(axes) == np.ndim(leaf):
                return NamedSharding(mesh, PartitionSpec(*(axis or None for axis in axes)))
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(choose_sharding, tree)


def unsharded(params: Params, shardings: Mapping[str, NamedSharding], dtype: DTypeLike) -> Params:
    """Inside a jitted function, gathers the parameters that the mesh's axis `data` splits, so that each device has them whole.
    Without this, the compiler splits hidden states by width where a matrix is split over the batch's devices, and reshards them in
    every product. Kernels are sent in `dtype`, to which products round them anyway; gradients are summed in float32.
    A step calls this with all parameters, of which stacks of layers stay split, and again inside the loop over layers, with the
    parameters of one layer, which lack the leading axis of the stack."""
    gathered = dict(params)
    for path, array in params.items():
        spec = shardings[path].spec
        mesh = shardings[path].mesh
        is_stack = path.startswith(STACKED) and array.ndim == len(spec)
        if "data" not in spec or is_stack:
            continue
        if path.startswith(STACKED):  # one layer of a stack
            spec = spec[1:]
        split = NamedSharding(mesh, PartitionSpec(*spec))
        whole = NamedSharding(mesh, PartitionSpec(*(None if axis == "data" else axis for axis in spec)))
        # Biases, norms and tables stay float32: unlike kernels, they are not rounded when they are used.
        sent_dtype = jnp.dtype(dtype if path.endswith("/kernel") else array.dtype)
        gathered[path] = _gather(array, split, whole, sent_dtype.name)
    return gathered


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(array: Array, split: NamedSharding, whole: NamedSharding, sent_dtype: str) -> Array:
    """Changes the sharding of an array from `split` to `whole`, sending `sent_dtype`; the gradient goes back in its own dtype."""
    return jax.lax.with_sharding_constraint(array.astype(sent_dtype), whole).astype(array.dtype)


def _gather_backward(split: NamedSharding, _whole: NamedSharding, _sent_dtype: str, _saved: None, cotangent: Array):
    # Not cast to `sent_dtype`: rounding before the sum over devices would lose small contributions.
    return (jax.lax.with_sharding_constraint(cotangent, split),)


_gather.defvjp(lambda *arguments: (_gather(*arguments), None), _gather_backward)


def check_rules(rules: Rules, tree: Any, mesh: Mesh) -> None:
    """Raises `InputError` for a rule of `run.sharding` that matches no parameter in `tree`, or cannot split one that it matches."""
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
    """Places a tree of host arrays on devices, by one sharding or a tree of them. Every process must hold the whole arrays."""

    def place_array(array: Any, sharding: NamedSharding) -> jax.Array:
        if sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        array = np.asarray(array)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(place_array, tree, jax.tree.broadcast(sharding, tree))


def place_frozen(params: FrozenParams, shardings: Mapping[str, Any], dtype: DTypeLike) -> dict[str, jax.Array]:
    """Places a frozen model's parameters on devices, one by one to save host memory; if `dtype` is bfloat16, rounds kernels to it."""
    placed = {}
    for path, shape in frozen_shapes(params, dtype).items():
        array = params[path]
        if isinstance(array, list):
            array = np.stack([np.asarray(layer, shape.dtype) for layer in array])
        placed[path] = place(array.astype(shape.dtype, copy=False), shardings[path])
    return placed


def frozen_shapes(params: FrozenParams, dtype: DTypeLike) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of the arrays that `place_frozen` returns for the same `params` and `dtype`."""
    shapes = {}
    for path, array in params.items():
        layer = array[0] if isinstance(array, list) else array
        shape = (len(array), *layer.shape) if isinstance(array, list) else layer.shape
        is_rounded = jnp.dtype(dtype) == jnp.bfloat16 and path.endswith("/kernel")
        shapes[path] = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype if is_rounded else layer.dtype))
    return shapes


def place_batch(batch: Any, mesh: Mesh) -> Any:
    """Places a batch on the devices of the mesh. Each process passes only its groups of the batch, those of `local_groups`."""
    return jax.make_array_from_process_local_data(batch_sharding(mesh), batch)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch's arrays: the leading axis, of groups or examples, is split over the devices."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())
