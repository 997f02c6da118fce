"""Turns `run.sharding` into rules that say which axis of the mesh splits which axis of a parameter."""

import math
import re
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdistill.config.options import RunOptions, Sharding
from jaxdistill.core import InputError
from jaxdistill.core.cluster.mesh import Rules, make_mesh, path_name, shardings
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.sentence import with_stacks
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.inference import Embedder

LARGE = 2**16
"""Elements of the smallest matrix that `zero` and `fsdp` split; smaller ones are replicated."""


def sharding_rules(sharding: Sharding, params: Any, architecture: Architecture, mesh: Mesh) -> Rules:
    """The rules that `sharding` names, or `sharding` itself if it is the user's own rules; `params` may be mere shapes."""
    if sharding == "tensor":
        return tensor_rules(architecture, mesh)
    if sharding not in ("zero", "fsdp"):
        return sharding  # the user's own
    # Splits every large matrix over the data axis, along its longest axis whose size is a multiple of the devices; a matrix without
    # one is replicated. Source: Rajbhandari et al., ZeRO, arXiv 1910.02054, stage 3.
    devices = mesh.shape["data"]
    rules = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        shape = np.shape(leaf)
        divisible = [axis for axis, size in enumerate(shape) if size % devices == 0]
        if len(shape) > 1 and math.prod(shape) >= LARGE and divisible:
            longest = max(divisible, key=lambda axis: shape[axis])
            mesh_axes = tuple("data" if axis == longest else "" for axis in range(len(shape)))
            # Paths of the optimiser's moments and of the student's average end like this one, and are split like the parameter.
            rules.append((rf"(^|/){re.escape(path_name(path).removeprefix('student/'))}$", mesh_axes))
    return tuple(rules)


def frozen_shardings(model: SentenceModel, mesh: Mesh, sharding: Sharding) -> dict[str, NamedSharding]:
    """Shardings of a frozen model's parameters. A stack of layers is split as each layer would be, never
    along the stack; `zero` splits the student alone, so nothing here."""
    if sharding == "zero":
        sharding = ()
    architecture = model.definition.architecture
    per_layer = shardings(model.params, mesh, sharding_rules(sharding, model.params, architecture, mesh))
    return with_stacks(architecture, mesh, per_layer, lambda layers: NamedSharding(mesh, P(None, *layers[0].spec)))


def sharded_embedder(model: SentenceModel, run: RunOptions, *, mesh: Mesh | None = None, **options: Any) -> Embedder:
    """An `Embedder`, made with `options`, whose parameters are split as in training; `mesh` defaults to this process's devices."""
    devices = jax.local_devices()
    mesh = mesh or make_mesh(devices=devices, model_axis=math.gcd(run.model_axis, len(devices)))
    # `tensor` needs a model axis, which a process with few devices may lack.
    sharding = "fsdp" if run.sharding == "tensor" and mesh.shape["model"] == 1 else run.sharding
    return Embedder(model, mesh=mesh, shardings=frozen_shardings(model, mesh, sharding), **options)


def tensor_rules(architecture: Architecture, mesh: Mesh) -> Rules:
    """Splits attention heads, the feed-forward network and the width of the word embeddings over the model axis. A part whose size the
    devices do not divide is replicated. Each layer then sums its outputs over the devices twice.
    Source: Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3."""
    devices = mesh.shape["model"]
    if devices == 1:
        raise InputError("run.sharding=tensor splits nothing over 1 device; set --config.run.model_axis to 2 or more.")
    products: list[tuple[str, str]] = []  # patterns of successive matrix products
    if architecture.heads % devices == 0 and architecture.key_head_count % devices == 0:
        products.append(("attention/(query|key|value)", "attention/output"))
    if architecture.intermediate_size % devices == 0:
        products.append((r"layers/\d+/(gate|intermediate)", r"layers/\d+/output"))
    rules: list[tuple[str, tuple[str, ...]]] = []
    for first, second in products:  # split by outputs, then by inputs, so that only the second product communicates
        rules += [(f"{first}/kernel$", ("", "model")), (f"{first}/bias$", ("model",))]
        rules.append((f"{second}/kernel$", ("model", "")))
    if architecture.embedding_size % devices == 0:
        rules.append((r"embeddings/word/embedding$", ("", "model")))
    return tuple(rules)
