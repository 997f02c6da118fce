"""Plans the training of large models for TPU slices that are not there, from their shapes alone: memory, arithmetic, traffic.

    python benchmarks/tpu_plan.py --objective=congen --teacher=roberta-large --student=bert-base --slice=v5e-8
    python benchmarks/tpu_plan.py --teacher=e5-mistral-7b --student=minilm-l6 --slice=v5e-64 --sharding=fsdp

Needs libtpu, the TPU compiler, and no TPU. No weights are read or made: models have the shapes of the named checkpoints. The
step is the one that `--dry_run --compile_for` compiles. Text is stood for by full rows of token slots.
"""

import argparse
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers

from jaxdistill.config.options import Config, RunOptions
from jaxdistill.core import Batch, Objective, Tokens
from jaxdistill.core.cli import run
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.data.options import Data
from jaxdistill.encoders.architecture import Dense, EncoderDefinition, Pooling
from jaxdistill.encoders.families import bert, mistral, qwen3, roberta
from jaxdistill.encoders.sentence import param_shapes
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.teachers import Live, Stored
from jaxdistill.objectives.congen import ConGen
from jaxdistill.objectives.embedding import Embedding
from jaxdistill.training.build import make_objective, make_step
from jaxdistill.training.plan import GIB, compiled_plan, slice_named
from jaxdistill.training.sharding import frozen_shardings

QWEN3 = {"head_dim": 128, "num_key_value_heads": 8, "rope_theta": 1e6, "rms_norm_eps": 1e-6}
BERT = {"vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2}
MODELS: dict[str, tuple[Any, str, Any, Mapping]] = {
    "minilm-l6": (bert, "mean", jnp.float32, BERT
        | dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)),
    "gte-small": (bert, "mean", jnp.float32, BERT
        | dict(hidden_size=384, num_hidden_layers=12, num_attention_heads=12, intermediate_size=1536)),
    "bert-base": (bert, "mean", jnp.float32, BERT
        | dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072)),
    "roberta-large": (roberta, "mean", jnp.float32, dict(
        vocab_size=50265, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        max_position_embeddings=514, type_vocab_size=1)),
    "qwen3-embedding-0.6b": (qwen3, "last", jnp.bfloat16, QWEN3 | dict(
        vocab_size=151669, hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, intermediate_size=3072,
        max_position_embeddings=32768)),
    "e5-mistral-7b": (mistral, "last", jnp.bfloat16, dict(
        vocab_size=32000, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=14336, max_position_embeddings=32768, rope_theta=1e4, rms_norm_eps=1e-5, sliding_window=4096)),
    "qwen3-embedding-8b": (qwen3, "last", jnp.bfloat16, QWEN3 | dict(
        vocab_size=151665, hidden_size=4096, num_hidden_layers=36, num_attention_heads=32, intermediate_size=12288,
        max_position_embeddings=40960)),
}  # fmt: skip
"""Name to family, pooling, dtype of the checkpoint's file, and config.json."""


def main(arguments: Sequence[str]) -> None:
    args = options().parse_args(arguments)
    target = slice_named(args.slice)
    mesh = target.mesh(model_axis=args.model_axis, slices=args.slices)
    config = config_of(args, batch_size=args.sentences * meshes.batch_devices(mesh))
    objective = make_objective(config)
    teacher = model(args.teacher)
    width = teacher.definition.embedding_width
    student = model(args.student, width=width)
    program = make_step(config, objective, student, teacher, mesh, 1000)
    frozen = {} if args.stored else meshes.frozen_shapes(teacher.frozen_params(mesh), jnp.bfloat16)
    batch = batch_of(args, objective, meshes.batch_devices(mesh), width)
    start = time.process_time()
    lines, _ = compiled_plan(target, program.train_step, program.like, frozen, batch, batch_size=config.data.batch_size)
    print(f"{' '.join(arguments)}: {time.process_time() - start:.0f} s of processor time")
    print("\n".join(lines))
    share = held_share(frozen, {} if args.stored else frozen_shardings(teacher, mesh, config.run.sharding))
    state = zip(jax.tree.leaves(program.like.objective), jax.tree.leaves(program.shardings.objective), strict=True)
    queue = sum(math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf, sharding in state)
    print(f"a chip holds {share:.1%} of the live teacher's parameters and {queue / GIB:.2f} GiB of queue")


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/tpu_plan.py", description=__doc__)
    parser.add_argument("--teacher", choices=tuple(MODELS), required=True)
    parser.add_argument("--student", choices=tuple(MODELS), default="minilm-l6")
    parser.add_argument("--objective", choices=("l2", "congen"), default="l2")
    parser.add_argument("--slice", required=True, help="such as v5e-16")
    parser.add_argument("--sharding", choices=("", "zero", "fsdp", "tensor"), default="", help="as run.sharding")
    parser.add_argument("--model_axis", type=int, default=1, help="as run.model_axis")
    parser.add_argument("--slices", type=int, default=0, help="as run.slices")
    parser.add_argument("--stored", action="store_true", help="stored targets: the teacher is not in the step")
    parser.add_argument("--queue_size", type=int, default=65536, help="of ConGen")
    parser.add_argument("--sentences", type=int, default=64, help="of each part of the batch")
    parser.add_argument("--rows", type=int, default=8, help="that hold these sentences in one view")
    parser.add_argument("--length", type=int, default=128, help="token slots of a row")
    return parser


def config_of(args: Any, batch_size: int) -> Config:
    """The options of the run."""
    options = RunOptions(precision="bfloat16", sharding=args.sharding or (), model_axis=args.model_axis)
    objective = ConGen(queue_size=args.queue_size) if args.objective == "congen" else Embedding()
    teacher = (Stored if args.stored else Live)(model=args.teacher)
    return Config(objective=objective, data=Data(batch_size=batch_size), teacher=teacher, run=options)


def model(name: str, *, layers: int = 0, width: int = 0) -> SentenceModel:
    """A model of shapes without weights, of its first layers alone if `layers`, with a head to `width` if it is not 0."""
    family, pooling, dtype, settings = MODELS[name]
    architecture = family.architecture(settings | ({"num_hidden_layers": layers} if layers else {}))
    head = Dense(in_features=architecture.hidden_size, out_features=width, activation="tanh")
    definition = EncoderDefinition(
        architecture=architecture, pooling=Pooling.parse(pooling), dense=(head,) if width else (), normalize=True
    )
    return SentenceModel(
        definition=definition,
        params={path: jax.ShapeDtypeStruct(shape, dtype) for path, shape in param_shapes(definition).items()},
        tokenizer=tokenizers.Tokenizer(tokenizers.models.WordLevel()),
        max_length=architecture.longest,
        prompts={},
        default_prompt=None,
        source=name,
        tokenizer_folder=pathlib.Path(),
    )


def held_share(tree: Any, shardings: Any) -> float:
    """The fraction of a tree's numbers that one device holds; 0 for an empty tree."""
    leaves = list(zip(jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True))
    held = sum(math.prod(sharding.shard_shape(np.shape(leaf))) for leaf, sharding in leaves)
    return held / max(sum(math.prod(np.shape(leaf)) for leaf, _ in leaves), 1)


def batch_of(args: Any, objective: Objective, parts: int, width: int) -> Batch:
    """A packed batch as shapes."""

    def packed(views: int) -> Tokens:
        slots = jax.ShapeDtypeStruct((parts, views * args.rows, args.length), np.int32)
        first = jax.ShapeDtypeStruct((parts, views * args.sentences), np.int32)
        return Tokens(slots, slots, slots, first)

    student, views = packed(len(objective.student_views)), len(objective.teacher_views)
    stored = jax.ShapeDtypeStruct((parts * args.sentences, views, width), np.float32)
    return Batch(student, None if args.stored else packed(views), stored if args.stored else None)


if __name__ == "__main__":
    run(main)
