"""Compiles a training step with a large live teacher for a TPU slice that is not there, and prints the memory of a chip.

    python benchmarks/tpu_memory.py --teacher=qwen3-embedding-8b --slice=v5e-16 --sharding=fsdp
    python benchmarks/tpu_memory.py --teacher=qwen3-embedding-8b --slice=v5p-8 --sharding=tensor --model_axis=4

Needs libtpu, the TPU compiler, and no TPU. All arrays are shapes: no weights are read or made. The teacher has the shapes of
the named model, in bfloat16 as `--config.run.precision=auto` keeps a live teacher on a TPU; the student those of
all-MiniLM-L6-v2 with a Dense head to the teacher's width; the objective is L2 (`configs/l2.py`). The rest is what a training builds: step,
optimizer, sharding rules. Memory is the compiler's: arguments and temporaries of a step on one chip.
"""

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxdistill import mesh as meshes
from jaxdistill import objectives
from jaxdistill.cli import Parser, run
from jaxdistill.config import Optimizer
from jaxdistill.core import Batch, Params, Sizes, Tokens
from jaxdistill.encoders.architecture import Dense, EncoderDefinition, Pooling
from jaxdistill.encoders.families import bert, qwen3
from jaxdistill.encoders.sentence import param_shapes
from jaxdistill.training import optim, step
from jaxdistill.training.sharding import held_share, sharding_rules

QWEN3 = {"head_dim": 128, "num_key_value_heads": 8, "rope_theta": 1e6, "rms_norm_eps": 1e-6}
TEACHERS = {
    "qwen3-embedding-0.6b": QWEN3
    | dict(vocab_size=151669, hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, intermediate_size=3072)
    | dict(max_position_embeddings=32768),
    "qwen3-embedding-8b": QWEN3
    | dict(vocab_size=151665, hidden_size=4096, num_hidden_layers=36, num_attention_heads=32, intermediate_size=12288)
    | dict(max_position_embeddings=40960),
}
STUDENT = dict(
    vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
    max_position_embeddings=512, type_vocab_size=2,
)  # fmt: skip
SLICES = {
    "v5e-1": ("v5e:2x2", 1, 16),
    "v5e-8": ("v5e:2x4", 8, 16),
    "v5e-16": ("v5e:4x4", 16, 16),
    "v5p-8": ("v5p:2x2x1", 4, 95),
}
"""Name to topology, number of its chips that are used, and a chip's memory in GiB. `v5p-8` has 8 cores on 4 chips."""
GIB = 2**30


def main(arguments: Sequence[str]) -> None:
    parser = Parser(prog="benchmarks/tpu_memory.py", description=__doc__)
    parser.add_argument("--teacher", choices=tuple(TEACHERS), required=True)
    parser.add_argument("--slice", choices=tuple(SLICES), required=True)
    parser.add_argument("--sharding", choices=("", "fsdp", "tensor"), default="", help="as run.sharding")
    parser.add_argument("--model_axis", type=int, default=1, help="as run.model_axis")
    parser.add_argument("--sentences", type=int, default=64, help="of a group; one group for each part of the batch")
    parser.add_argument("--rows", type=int, default=8, help="of a group")
    parser.add_argument("--length", type=int, default=128, help="token slots of a row")
    given = parser.parse_args(arguments)
    topology, chips, memory_gib = SLICES[given.slice]
    mesh = meshes.make_mesh(model_axis=given.model_axis, devices=chips_of(topology)[:chips])
    begun = time.monotonic()
    lowered, shares = lowered_step(
        TEACHERS[given.teacher], mesh, given.sharding, given.sentences, given.rows, given.length
    )
    memory = lowered.compile().memory_analysis()
    arguments_gib, temporaries_gib = memory.argument_size_in_bytes / GIB, memory.temp_size_in_bytes / GIB
    new = (memory.output_size_in_bytes - memory.alias_size_in_bytes) / GIB
    batch = given.sentences * meshes.batch_devices(mesh)
    print(
        f"| {given.teacher} | {given.slice} | {given.sharding or 'none'} | {mesh.shape['data']} x {mesh.shape['model']} | {batch} | "
        f"{shares['teacher']:.1%} | {arguments_gib:.2f} | {temporaries_gib:.2f} | "
        f"{arguments_gib + temporaries_gib + new:.2f} of {memory_gib} | {time.monotonic() - begun:.0f} s |"
    )


def chips_of(topology: str) -> list[jax.Device]:
    """Chips of a slice that is not there."""
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    from jax.experimental import topologies

    return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)


def lowered_step(teacher_config: Mapping, mesh: Mesh, sharding: str, sentences: int, rows: int, length: int):
    """(the step lowered for the mesh, share of each model that a chip holds)."""
    teacher = EncoderDefinition(
        architecture=qwen3.architecture(teacher_config), pooling=Pooling.parse("last"), normalize=True
    )
    width = teacher.architecture.hidden_size
    head = Dense(in_features=STUDENT["hidden_size"], out_features=width, activation="tanh")
    student = EncoderDefinition(
        architecture=bert.architecture(STUDENT), pooling=Pooling.parse("mean"), dense=(head,), normalize=True
    )
    groups = meshes.batch_devices(mesh)
    objective, optimizer = objectives.make("embedding", {}), optim.make_optimizer(Optimizer(), 1000)
    sizes = Sizes(
        batch_size=groups * sentences, width=width, hidden=student.architecture.hidden_size,
        layers=student.architecture.layers, teacher_hidden=width, teacher_layers=teacher.architecture.layers,
    )  # fmt: skip
    make = partial(step.make_state, objective=objective, optimizer=optimizer, sizes=sizes)
    state = jax.eval_shape(make, shapes(student, jnp.float32), None, jax.eval_shape(lambda: jax.random.key(0)))
    frozen = shapes(teacher, jnp.bfloat16)
    lie = meshes.shardings(state, mesh, sharding_rules(sharding, state.params, student.architecture, mesh))
    teacher_lies = meshes.shardings(frozen, mesh, sharding_rules(sharding, frozen, teacher.architecture, mesh))
    train_step = step.make_train_step(
        student=student, teacher=teacher, objective=objective, optimizer=optimizer, mesh=mesh, shardings=lie,
        teacher_shardings=teacher_lies, compute_dtype=jnp.bfloat16, remat=False,
    )  # fmt: skip
    tokens = packed(groups, sentences, rows, length)
    shares = {"student": held_share(state.params, lie.params), "teacher": held_share(frozen, teacher_lies)}
    return train_step.lower(state, frozen, Batch(student=tokens, teacher=tokens, targets=None)), shares


def shapes(definition: EncoderDefinition, dtype) -> Params:
    """An encoder's parameters as shapes."""
    return {path: jax.ShapeDtypeStruct(shape, dtype) for path, shape in param_shapes(definition).items()}


def packed(groups: int, sentences: int, rows: int, length: int) -> Tokens:
    """A packed batch as shapes."""
    slots = jax.ShapeDtypeStruct((groups, rows, length), np.int32)
    return Tokens(slots, slots, slots, jax.ShapeDtypeStruct((groups, sentences), np.int32))


if __name__ == "__main__":
    run(main)
