"""Measures what is worth knowing of an accelerator in ten minutes: a line of JSON for each figure, the most valuable first.

    python benchmarks/accelerator.py --minutes=9
    python benchmarks/accelerator.py --small --only=step-live,queue     # on a CPU, to see that it runs
    python benchmarks/accelerator.py --compile_for=v5e                  # seconds of compiling, for a device that is not there

It reads no weights, no text and no network: models are random, in the shapes of public ones. Each figure has a process of its
own with a limit of time, so that one that hangs or runs out of memory costs no other. This process only imports JAX, and holds no
device. `--minutes` starts no figure that would begin after it. `train.py --compile --live`, `encode.py` and `queue_loss.py` compare
with PyTorch. `--compile_for=v5e` needs libtpu, `--compile_for=h100` JAX's CUDA plugin (`pip install jax[cuda12]`).
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tpu_plan
from interleaved import random_unit, timed
from jax.experimental import topologies
from jax.sharding import Mesh
from queue_loss import loss_and_gradient

from jaxdistill.core import Batch, Tokens
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.core.ops import ring
from jaxdistill.data.packing import pad
from jaxdistill.encoders.sentence import init_params
from jaxdistill.models import inference
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.training.build import make_objective, make_step
from jaxdistill.training.metrics import product_flops
from jaxdistill.training.plan import shapes_of, slice_named
from jaxdistill.training.sharding import frozen_shardings

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent


class Size(NamedTuple):
    """Sizes of a measurement."""

    teacher: str = "roberta-large"
    student: str = "bert-base"
    layers: int = 0
    """Layers of both; 0: all."""
    batch: int = 512
    queue: int = 65536
    tokens: int = 16
    """Tokens of each sentence."""
    row: int = 128
    """Token slots of a packed row."""
    product: int = 8192
    repeats: int = 20
    absent: bool = False
    """Compile only, for a device that is not there."""


SMALL = Size("minilm-l6", "minilm-l6", layers=1, batch=32, queue=256, product=256, repeats=2)
FULL = Size()


class Program(NamedTuple):
    """A jitted function and its arguments."""

    function: Any
    arguments: tuple
    sentences: int = 0
    """Of a call."""
    carries: bool = False
    """Its first result is its first argument in the next call."""

    def measured(self, size: Size, mesh: Mesh) -> dict[str, Any]:
        """Seconds of compiling, memory, arithmetic and, unless the device is absent, the time of a call."""
        arguments = list(self.arguments)
        with jax.set_mesh(mesh):
            traced = self.function.trace(*(shapes_of(self.arguments) if size.absent else arguments))
            flops = product_flops(traced.jaxpr.jaxpr)
            compiled, wall, processor = timed(lambda: traced.lower().compile())
            found = {
                "compile_s": wall,
                "compile_processor_s": processor,
                "temporaries_gib": compiled.memory_analysis().temp_size_in_bytes / 2**30,
                "tflop": flops / 1e12,
            }
            if size.absent:
                return found

            def call() -> Any:
                result = compiled(*arguments)
                if self.carries:
                    arguments[0] = result[0]
                return jax.block_until_ready(result)

            call()
            seconds = statistics.median(timed(call)[1] for _ in range(size.repeats))
        rates = {"sentences_per_s": self.sentences / seconds} if self.sentences else {}
        return found | {"ms": 1e3 * seconds, "tflops_per_s": flops / seconds / 1e12} | rates


Programs = Iterator[tuple[str, Program]]


def congen_step(size: Size, mesh: Mesh, *, stored: bool = False, exact: bool = False) -> Program:
    """ConGen's step between random models on random packed sentences; `exact`: in float32 and without dropout."""
    options = argparse.Namespace(
        objective="congen", queue_size=size.queue, sharding="", model_axis=1, stored=stored, teacher=size.teacher
    )
    config = tpu_plan.config_of(options, batch_size=size.batch)
    if exact:
        run = dataclasses.replace(config.run, precision="float32")
        config = dataclasses.replace(config, run=run, student=dataclasses.replace(config.student, dropout=0.0))
    objective, dtype, draw = make_objective(config), np.dtype(config.run.precision), np.random.default_rng(0)
    model = tpu_plan.model if size.absent else random_model
    teacher = model(size.teacher, layers=size.layers)
    width = teacher.definition.embedding_width
    student = model(size.student, layers=size.layers, width=width)
    program = make_step(config, objective, student, teacher, mesh, live=not stored, steps=1000)
    views = len(objective.student_views), len(objective.teacher_views)
    batch = Batch(
        packed(draw, size, size.batch * views[0]),
        None if stored else packed(draw, size, size.batch * views[1]),
        random_unit((size.batch, views[1], width)) if stored else None,
    )
    frozen = {} if stored else teacher.frozen_params(mesh)
    if size.absent:
        return Program(program.train_step, (program.like, meshes.frozen_shapes(frozen, dtype), batch))
    shardings = {} if stored else frozen_shardings(teacher, mesh, config.run.sharding)
    seeds = random_unit((objective.reserve_rows, width), seed=1)
    state = jax.jit(program.make_state, out_shardings=program.shardings)(student.params, seeds, jax.random.key(0))
    placed = meshes.place_frozen(frozen, shardings, dtype), meshes.place_batch(batch, mesh, 1)
    return Program(program.train_step, (state, *placed), sentences=size.batch, carries=True)


def random_model(name: str, *, layers: int, width: int = 0) -> SentenceModel:
    """A model in the shape of a public one, with random weights."""
    shapes = tpu_plan.model(name, layers=layers, width=width)
    params = {path: np.asarray(array) for path, array in init_params(shapes.definition, jax.random.key(0)).items()}
    return dataclasses.replace(shapes, params=params)


def packed(draw: np.random.Generator, size: Size, sentences: int) -> Tokens:
    """Sentences of equal length in full rows, in one group."""
    slots = np.arange(sentences * size.tokens, dtype=np.int32)
    shape = (1, -1, size.row)
    return Tokens(
        ids=draw.integers(1000, 30000, slots.shape).astype(np.int32).reshape(shape),
        owner=(slots // size.tokens).reshape(shape),
        position=(slots % size.tokens).reshape(shape),
        first=slots[None, :: size.tokens],
    )


def device() -> dict[str, Any]:
    """Devices, memory and versions."""
    memory = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    return {
        "devices": [str(one.device_kind) for one in jax.devices()],
        "platform": jax.default_backend(),
        "memory_gib": round(memory / 2**30, 1),
        "versions": {name: version(name) for name in ("jax", "jaxlib", "flax", "optax")},
    }


def on_mesh(mesh: Mesh, function: Callable[..., Any]) -> Any:
    """The jitted function, whose arrays are on the mesh's device, which may be absent."""
    return jax.jit(function, out_shardings=meshes.replicated(mesh))


def peak(size: Size, mesh: Mesh) -> Programs:
    """A large bfloat16 product, whose rate other figures are a share of."""
    x = jnp.ones((size.product, size.product), jnp.bfloat16)
    multiply = on_mesh(mesh, lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32).astype(jnp.bfloat16))
    yield "product", Program(multiply, (x, x))


def steps(size: Size, mesh: Mesh, *, stored: bool = False) -> Programs:
    """ConGen with its teacher in the step, or with stored targets."""
    yield "step", congen_step(size, mesh, stored=stored)


def step_minilm(size: Size, mesh: Mesh) -> Programs:
    """Three layers of MiniLM, with stored targets and a queue of 16,384."""
    layers, batch, queue = min(size.layers or 3, 3), min(size.batch, 128), min(size.queue, 16384)
    small = size._replace(teacher="minilm-l6", student="minilm-l6", layers=layers, batch=batch, queue=queue)
    return steps(small, mesh, stored=True)


def encode(size: Size, mesh: Mesh) -> Programs:
    """`encode` with gte-small's shape: a program for each padded length."""
    dtype = np.dtype("bfloat16")
    model = (tpu_plan.model if size.absent else random_model)("gte-small", layers=size.layers)
    frozen = model.frozen_params(mesh)
    shardings = dict.fromkeys(frozen, meshes.replicated(mesh))
    params = meshes.frozen_shapes(frozen, dtype) if size.absent else meshes.place_frozen(frozen, shardings, dtype)
    for length in (length for length in inference.FEWER_LENGTHS if length <= 64):
        count = 128 * inference.SLOTS_PER_SENTENCE // length
        tokens = pad([np.zeros(length, np.int32)] * count, length=length, count=count, pad_id=0)
        embed = inference.make_embed(model.definition, mesh, dtype)
        yield f"{length} slots", Program(embed, (params, tokens), sentences=count)


def queue(size: Size, mesh: Mesh) -> Programs:
    """The queue loss, forward and backward, for several numbers of keys and sizes of their blocks."""
    width = 1024 if size.queue == FULL.queue else 64
    student, teacher = (random_unit((size.batch, views, width), seed=views) for views in (2, 1))
    for keys in (4096, 65536) if size.queue == FULL.queue else (size.queue,):
        function, state = loss_and_gradient(random_unit((keys, width)), student, teacher, precision="bfloat16")
        for block in (1024, 4096, 16384):
            ring.BLOCK_ROWS = ring.BLOCK_ROWS_OF_GPUS = block  # read when the next program is traced
            both = on_mesh(mesh, function)
            yield f"{keys} keys, blocks of {block}", Program(both, (student, state))
            both.clear_cache()


def attention(size: Size, mesh: Mesh) -> Programs:
    """Attention of BERT-base over 65,536 slots, forward and backward: plain, fused by XLA, and on GPUs by cuDNN."""
    heads, width, slots = 12, 64, 65536 if size.queue == FULL.queue else 1024

    def plain(query, key, value):
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32) * width**-0.5
        weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value, preferred_element_type=jnp.float32).astype(query.dtype)

    names = ("xla", "cudnn") if mesh.devices.flat[0].platform == "gpu" else ("xla",)
    ways = {name: partial(jax.nn.dot_product_attention, implementation=name) for name in names}
    for row in (64, 128, 512):
        x = jax.random.normal(jax.random.key(0), (slots // row, row, heads, width), jnp.bfloat16)
        for name, way in {"plain": plain, **ways}.items():
            total = lambda *inputs, way=way: way(*inputs).astype(jnp.float32).sum()  # noqa: E731 - differentiated below
            both = on_mesh(mesh, jax.grad(total, argnums=(0, 1, 2)))
            yield f"{row} slots, {name}", Program(both, (x, x, x))


def parity(size: Size) -> dict[str, Any]:
    """The largest relative difference of ten losses of a small step in float32 between this device and the CPU."""
    losses: dict[str, list[float]] = {}
    small = size._replace(teacher="minilm-l6", student="minilm-l6", layers=2, batch=32, queue=256)
    for platform in (jax.default_backend(), "cpu"):
        program = congen_step(small, meshes.make_mesh(devices=jax.devices(platform)[:1]), exact=True)
        (state, *rest), losses[platform] = program.arguments, []
        for _ in range(10):
            state, metrics = program.function(state, *rest)
            losses[platform].append(float(metrics["loss"]))
    here, there = np.array(losses[jax.default_backend()]), np.array(losses["cpu"])
    return {"losses": here.tolist(), "largest_difference": float(np.max(np.abs(here - there) / np.abs(there)))}


FIGURES: dict[str, tuple[int, Callable[[Size, Mesh], Programs] | None]] = {
    "device": (60, None),
    "peak": (60, peak),
    "step-live": (150, steps),
    "step-stored": (120, partial(steps, stored=True)),
    "step-minilm": (90, step_minilm),
    "encode": (120, encode),
    "queue": (120, queue),
    "attention": (120, attention),
    "parity": (120, None),
}
"""Limit in seconds and JAX programs of each figure, in the order of their value."""


def measured(name: str, size: Size, target: str) -> dict[str, Any]:
    """A figure: its programs' times or, with a target, the seconds of compiling them for it."""
    programs = FIGURES[name][1]
    if programs is None:
        return device() if name == "device" else parity(size)
    mesh = absent_mesh(target) if target else meshes.make_mesh(devices=jax.devices()[:1])
    size, found = size._replace(absent=bool(target)), dict[str, Any]()
    for each, program in programs(size, mesh):
        try:
            found[each] = {name: float(f"{value:.4g}") for name, value in program.measured(size, mesh).items()}
        except Exception as error:  # what this device lacks costs no other program
            found[each] = f"{type(error).__name__}: {error!s:.200}"
    return found


def absent_mesh(name: str) -> Mesh:
    """One device for which the compiler is installed."""
    if name == "v5e":
        return slice_named("v5e-1").mesh()
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    properties = (HERE / "h100.txtpb").read_text()
    topology = topologies.get_topology_desc(name, "cuda", topology="1x1x1", target_config=properties)
    return meshes.make_mesh(devices=topology.devices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="no figure begins later")
    parser.add_argument("--small", action="store_true", help="sizes that a CPU can do")
    parser.add_argument("--only", default="", help=f"figures, separated by commas: {', '.join(FIGURES)}")
    parser.add_argument(
        "--compile_for", choices=("v5e", "h100"), default="", help="compile only; without limits of time"
    )
    parser.add_argument("--figure", choices=list(FIGURES), default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(FIGURES)
    if unknown := set(names) - FIGURES.keys():
        parser.error(f"unknown figure {min(unknown)}; there are {', '.join(FIGURES)}")
    if options.figure:
        print(json.dumps(measured(options.figure, SMALL if options.small else FULL, options.compile_for)))
        return
    if options.compile_for:  # the cache cannot load programs for absent devices
        os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
        names = [name for name in names if FIGURES[name][1]]
    begun = time.monotonic()
    for name in names:
        left = 60 * options.minutes - (time.monotonic() - begun)
        limit_s = 3600 if options.compile_for else min(FIGURES[name][0], left)
        figure = in_new_process(name, limit_s) if limit_s > 0 else {"error": "left out: no time"}
        print(json.dumps({"figure": name} | figure), flush=True)


def in_new_process(name: str, limit_s: float) -> dict[str, Any]:
    """The figure, measured in a process of its own with this one's options, or the error that it ended with."""
    command = [sys.executable, __file__, *sys.argv[1:], f"--figure={name}"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")])}
    begun = time.monotonic()
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {limit_s:.0f} s"}
    spent = {"process_s": round(time.monotonic() - begun, 1)}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"error": (done.stderr.strip() or done.stdout.strip())[-500:]} | spent
    return json.loads(lines[-1]) | spent


if __name__ == "__main__":
    main()
