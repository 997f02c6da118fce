"""The whole training step, compiled for a mesh from shapes alone."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxdistill.config.options import Optimizer
from jaxdistill.core import Batch, Sizes, Tokens
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.encoders.architecture import Architecture, EncoderDefinition, Pooling
from jaxdistill.encoders.sentence import embed, param_shapes, with_stacks
from jaxdistill.training import optim, step

ADAMW = Optimizer(
    learning_rate=1e-3, schedule="linear", warmup_fraction=0.1, weight_decay=0.01, b1=0.9, b2=0.999, eps=1e-8,
    bias_correction=True, eps_before_correction=False, clip_norm=1.0, warmup_steps=0, decay="matrices",
)  # fmt: skip
BYTES = {"f32": 4, "s32": 4, "u32": 4, "bf16": 2, "pred": 1, "f16": 2, "s64": 8, "u8": 1, "s8": 1}
COLLECTIVES = "all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all|ragged-all-to-all"


def definition(*, width: int = 32, layers: int = 1) -> EncoderDefinition:
    return EncoderDefinition(
        architecture=Architecture(
            family="bert", vocab_size=128, hidden_size=width, layers=layers, heads=2, intermediate_size=2 * width,
            max_positions=32, token_types=2,
        ),
        pooling=Pooling.parse("mean"),
        normalize=True,
    )  # fmt: skip


def sizes(batch_size: int) -> Sizes:
    return Sizes(batch_size=batch_size, width=32, hidden=32, layers=1, teacher_hidden=32, teacher_layers=2)


def tokens(groups: int, sentences: int, rows: int = 2, length: int = 32) -> Tokens:
    shape = (groups, rows, length)
    return Tokens(*(jax.ShapeDtypeStruct(s, jnp.int32) for s in (shape, shape, shape, (groups, sentences))))


def train_step(
    mesh,
    objective,
    *,
    batch_size: int,
    groups: int,
    teacher_layers: int = 2,
    compute_dtype=jnp.float32,
    remat: bool = False,
):
    """(the jitted step, its arguments as shapes)."""
    student, teacher = definition(), definition(layers=teacher_layers)
    optimizer = optim.make_optimizer(ADAMW, 100)
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in param_shapes(student).items()}
    of_teacher = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in param_shapes(teacher).items()}
    of_teacher = meshes.frozen_shapes(with_stacks(teacher.architecture, mesh, of_teacher, list), compute_dtype)
    seeds = jax.ShapeDtypeStruct((objective.queue_size, 32), jnp.float32)
    make = partial(step.make_state, objective=objective, optimizer=optimizer, sizes=sizes(batch_size))
    like = jax.eval_shape(make, shapes, seeds, jax.eval_shape(lambda: jax.random.key(0)))
    shardings = meshes.shardings(like, mesh, ())
    forward = step.Forward(
        student, teacher, objective, shardings.params["student"], meshes.shardings(of_teacher, mesh, ()), compute_dtype, remat
    )  # fmt: skip
    jitted = step.make_train_step(forward, optimizer=optimizer, mesh=mesh, shardings=shardings)
    b = batch_size // groups
    return jitted, (like, of_teacher, Batch(tokens(groups, 2 * b), tokens(groups, b), None))


def gradient_of_an_encoder(mesh, *, rows: int, slots: int, compute_dtype):
    """The gradient of an encoder's vectors on the mesh, lowered from shapes."""
    model = definition()
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in param_shapes(model).items()}

    def total(params, batch):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return jnp.sum(embed(model, params, batch, compute_dtype=compute_dtype))

    placed = (meshes.replicated(mesh), meshes.batch_sharding(mesh))
    batch = tokens(meshes.batch_devices(mesh), 4, rows=rows, length=slots)
    return jax.jit(jax.grad(total), in_shardings=placed).lower(shapes, batch)


def moved_bytes(compiled) -> dict[str, int]:
    """Bytes that each kind of collective of a compiled program returns, on one device."""
    total: dict[str, int] = {}
    for shapes, kind in re.findall(rf"= (.*?) ({COLLECTIVES})(?:-start)?\(", compiled.as_text()):
        for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
            size = int(np.prod([int(d) for d in dims.split(",") if d], initial=1))
            total[kind] = total.get(kind, 0) + BYTES[dtype] * size
    return total
