"""Measures an accelerator in ten minutes: a line of JSON for each figure, the most valuable first.

    python benchmarks/accelerator.py --minutes=9
    python benchmarks/accelerator.py --small --only=step-live,queue     # on a CPU, to see that it runs
    python benchmarks/accelerator.py --compile_for=v5e                  # seconds of compiling, for a device that is not there

It reads no weights, no text and no network: models are random, in the shapes of public ones. Each figure has a process of its
own with a limit of time, so that one that hangs or runs out of memory costs no other. This process only imports JAX, and holds no
device. `--minutes` starts no figure that would begin after it. The figures `torch-*` are the same work in PyTorch, with
`torch.compile`, autocast to bfloat16 and fused attention; they need PyTorch and sentence-transformers. `--compile_for=v5e` needs
libtpu, `--compile_for=h100` JAX's CUDA plugin (`pip install jax[cuda12]`).
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
from interleaved import random_unit, timed, torch_device, wait_for
from jax.experimental import topologies
from jax.sharding import Mesh

from jaxdistill.core import Batch, Encoded, Sizes, Tokens
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.core.ops import ring
from jaxdistill.data.packing import pad
from jaxdistill.encoders.sentence import init_params
from jaxdistill.models import inference
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.objectives.congen import ConGen
from jaxdistill.training.build import make_objective, make_step
from jaxdistill.training.metrics import product_flops
from jaxdistill.training.plan import slice_named
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
    """Whether its first result is its first argument in the next call."""

    def measured(self, size: Size, mesh: Mesh) -> dict[str, Any]:
        """Seconds of compiling, memory, arithmetic and, unless the device is absent, the time of a call."""
        arguments = list(self.arguments)
        with jax.set_mesh(mesh):
            traced = self.function.trace(*(jax.eval_shape(lambda *x: x, *self.arguments) if size.absent else arguments))
            flops = product_flops(traced.jaxpr.jaxpr)
            compiled, wall, processor = timed(lambda: traced.lower().compile())
            figures = {
                "compile_s": wall,
                "compile_processor_s": processor,
                "temporaries_gib": compiled.memory_analysis().temp_size_in_bytes / 2**30,
                "tflop": flops / 1e12,
            }
            if size.absent:
                return figures

            def call() -> Any:
                result = compiled(*arguments)
                if self.carries:
                    arguments[0] = result[0]
                return jax.block_until_ready(result)

            call()
            seconds = statistics.median(timed(call)[1] for _ in range(size.repeats))
        rates = {"sentences_per_s": self.sentences / seconds} if self.sentences else {}
        return figures | {"ms": 1e3 * seconds, "tflops_per_s": flops / seconds / 1e12} | rates


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
    program = make_step(config, objective, student, teacher, mesh, 1000)
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
    placed = meshes.place_frozen(frozen, shardings, dtype), meshes.place_batch(batch, mesh)
    return Program(program.train_step, (state, *placed), sentences=size.batch, carries=True)


def random_model(name: str, *, layers: int, width: int = 0) -> SentenceModel:
    """A model in the shape of a public one, with random weights."""
    shapes = tpu_plan.model(name, layers=layers, width=width)
    params = init_params(shapes.definition, jax.random.key(0))
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
        "devices": [str(device.device_kind) for device in jax.devices()],
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
    for length, count in encode_shapes():
        tokens = pad([np.zeros(length, np.int32)] * count, length=length, count=count, pad_id=0)
        embed = inference.make_embed(model.definition, mesh, dtype)
        yield f"{length} slots", Program(embed, (params, tokens), sentences=count)


def encode_shapes() -> list[tuple[int, int]]:
    """The padded lengths of sentences of at most 64 tokens, and the number of sentences in a call."""
    lengths = [length for length in inference.FEWER_LENGTHS if length <= 64]
    return [(length, 128 * inference.SLOTS_PER_SENTENCE // length) for length in lengths]


def queue_inputs(size: Size) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Queues of several numbers of keys, and the vectors of the student's two views and of the teacher."""
    width = 1024 if size.queue == FULL.queue else 64
    queues = [random_unit((keys, width)) for keys in ((4096, 65536) if size.queue == FULL.queue else (size.queue,))]
    student, teacher = (random_unit((size.batch, views, width), seed=views) for views in (2, 1))
    return queues, student, teacher


def queue(size: Size, mesh: Mesh) -> Programs:
    """ConGen's loss, forward and backward, for several numbers of keys and sizes of their blocks."""
    queues, student, teacher = queue_inputs(size)
    for keys in queues:
        objective = ConGen(queue_size=len(keys))
        sizes = Sizes(size.batch, keys.shape[1], 0, 0, 0, 0, jnp.dtype("bfloat16"))
        _, state = objective.init(jax.random.key(0), sizes, jnp.asarray(keys))

        def loss(vectors: jax.Array, state: Any, objective: ConGen = objective) -> tuple[jax.Array, Any]:
            losses, state, _ = objective({}, state, Encoded(vectors), Encoded(teacher))
            return jnp.mean(losses), state

        for block in (1024, 4096, 16384):
            ring.BLOCK_ROWS = ring.BLOCK_ROWS_OF_GPUS = block  # read when the next program is traced
            loss_and_gradient = on_mesh(mesh, jax.value_and_grad(loss, has_aux=True))
            yield f"{len(keys)} keys, blocks of {block}", Program(loss_and_gradient, (student, state))
            loss_and_gradient.clear_cache()


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
            gradient = on_mesh(mesh, jax.grad(total, argnums=(0, 1, 2)))
            yield f"{row} slots, {name}", Program(gradient, (x, x, x))


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
    actual, cpu = np.array(losses[jax.default_backend()]), np.array(losses["cpu"])
    return {"losses": actual.tolist(), "largest_difference": float(np.max(np.abs(actual - cpu) / np.abs(cpu)))}


def torch_step(size: Size, *, stored: bool = False) -> dict[str, Any]:
    """The step of `steps` in PyTorch, on padded batches of the same shape."""
    import torch
    from opponent import Opponent, RandomEncoder

    width = tpu_plan.MODELS[size.teacher][3]["hidden_size"]
    opponent = Opponent(
        RandomEncoder(size.student, layers=size.layers, width=width),
        teacher=None if stored else RandomEncoder(size.teacher, layers=size.layers),
        queue=random_unit((size.queue, width)), bfloat16=True, compiled=True, device=torch_device(),
    )  # fmt: skip
    batch = torch_tokens(2 * size.batch, size.tokens), torch.tensor(random_unit((size.batch, width)))
    return {"step": torch_times(lambda: opponent.step(batch), opponent.device, size, sentences=size.batch)}


def torch_encode(size: Size) -> dict[str, Any]:
    """The forward pass of sentence-transformers' `encode`, for the padded lengths of `encode`."""
    import torch
    from opponent import RandomEncoder

    device, times = torch_device(), dict[str, Any]()
    model = RandomEncoder("gte-small", layers=size.layers).to(device).eval()
    model.compile()
    for length, count in encode_shapes():
        tokens = {name: array.to(device) for name, array in torch_tokens(count, length).items()}
        with torch.inference_mode(), torch.autocast(device, dtype=torch.bfloat16):
            times[f"{length} slots"] = torch_times(lambda tokens=tokens: model(tokens), device, size, sentences=count)
    return times


def torch_queue(size: Size) -> dict[str, Any]:
    """The loss of `queue` in PyTorch."""
    import torch
    from opponent import congen_loss

    device, times = torch_device(), dict[str, Any]()
    queues, student, teacher = queue_inputs(size)
    targets = torch.tensor(teacher[:, 0], device=device)
    vectors = torch.tensor(student.swapaxes(0, 1).reshape(-1, student.shape[-1]), device=device, requires_grad=True)
    for queue in queues:
        keys = torch.cat([torch.tensor(queue, device=device, dtype=torch.bfloat16), targets.to(torch.bfloat16)])

        def call(keys: Any = keys) -> None:
            vectors.grad = None
            with torch.autocast(device, dtype=torch.bfloat16):
                congen_loss(vectors, targets, keys, temperature=0.05).backward()

        times[f"{len(queue)} keys"] = torch_times(call, device, size)
    return times


def torch_tokens(sentences: int, length: int) -> dict[str, Any]:
    """Random sentences of equal length."""
    import torch

    ids = torch.tensor(np.random.default_rng(0).integers(1000, 30000, (sentences, length)))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def torch_times(call: Callable[[], object], device: str, size: Size, sentences: int = 0) -> dict[str, float]:
    """Seconds of the first call, which compiles, and the time of a later one."""

    def finished() -> None:
        call()
        wait_for(device)

    _, first_call_s, _ = timed(finished)
    finished()
    seconds = statistics.median(timed(finished)[1] for _ in range(size.repeats))
    rates = {"sentences_per_s": sentences / seconds} if sentences else {}
    return rounded({"first_call_s": first_call_s, "ms": 1e3 * seconds} | rates)


def rounded(values: dict[str, float]) -> dict[str, float]:
    """The values to four digits."""
    return {name: float(f"{value:.4g}") for name, value in values.items()}


class Figure(NamedTuple):
    """Something to measure, in a process of its own."""

    limit_s: int
    programs: Callable[[Size, Mesh], Programs] | None = None
    """Its JAX programs."""
    measure: Callable[[Size], dict[str, Any]] | None = None
    """Measures something that is not a JAX program."""


FIGURES = {
    "device": Figure(60, measure=lambda size: device()),
    "peak": Figure(60, peak),
    "step-live": Figure(150, steps),
    "torch-step-live": Figure(150, measure=torch_step),
    "step-stored": Figure(120, partial(steps, stored=True)),
    "torch-step-stored": Figure(120, measure=partial(torch_step, stored=True)),
    "step-minilm": Figure(90, step_minilm),
    "encode": Figure(120, encode),
    "torch-encode": Figure(120, measure=torch_encode),
    "queue": Figure(120, queue),
    "torch-queue": Figure(60, measure=torch_queue),
    "attention": Figure(120, attention),
    "parity": Figure(120, measure=parity),
}
"""Figures in the order of their value."""


def measured(name: str, size: Size, target: str) -> dict[str, Any]:
    """A figure: its programs' times or, with a target, the seconds of compiling them for it."""
    figure = FIGURES[name]
    if figure.measure:
        return figure.measure(size)
    assert figure.programs is not None
    mesh = absent_mesh(target) if target else meshes.make_mesh(devices=jax.devices()[:1])
    size, result = size._replace(absent=bool(target)), dict[str, Any]()
    for program_name, program in figure.programs(size, mesh):
        try:
            result[program_name] = rounded(program.measured(size, mesh))
        except Exception as error:  # what this device lacks costs no other program
            result[program_name] = f"{type(error).__name__}: {error!s:.200}"
    return result


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
        names = [name for name in names if FIGURES[name].programs]
    start = time.monotonic()
    for name in names:
        remaining_s = 60 * options.minutes - (time.monotonic() - start)
        limit_s = 3600 if options.compile_for else min(FIGURES[name].limit_s, remaining_s)
        figure = in_new_process(name, limit_s) if limit_s > 0 else {"error": "left out: no time"}
        print(json.dumps({"figure": name} | figure), flush=True)


def in_new_process(name: str, limit_s: float) -> dict[str, Any]:
    """The figure, measured in a process of its own with this one's options, or the error that it ended with."""
    command = [sys.executable, __file__, *sys.argv[1:], f"--figure={name}"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")])}
    start = time.monotonic()
    try:
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {limit_s:.0f} s"}
    spent = {"process_s": round(time.monotonic() - start, 1)}
    lines = [line for line in completed.stdout.splitlines() if line.startswith("{")]
    if completed.returncode or not lines:
        return {"error": (completed.stderr.strip() or completed.stdout.strip())[-500:]} | spent
    return json.loads(lines[-1]) | spent


if __name__ == "__main__":
    main()
