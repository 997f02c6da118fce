"""ConGen's step between random models, for the figures of `accelerator.py`, and what times programs."""

import argparse
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import tpu_plan
from jax.sharding import Mesh

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.cluster import mesh as meshes
from jaxdistill.core import Batch, Tokens
from jaxdistill.encoders.sentence import init_params
from jaxdistill.training import step
from jaxdistill.training.build import make_step
from jaxdistill.training.metrics import product_flops
from jaxdistill.training.objective import make_objective
from jaxdistill.training.plan import shapes_of
from jaxdistill.training.sharding import frozen_shardings


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
    sentences: int = 20_000
    repeats: int = 20
    absent: bool = False
    """Compile only, for a device that is not here."""


SMALL = Size("minilm-l6", "minilm-l6", layers=1, batch=32, queue=256, product=256, sentences=200, repeats=2)
FULL = Size()


def timed(call: Callable[[], Any], repeats: int) -> float:
    """Seconds of a call, the median of `repeats`, after one that compiles."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begun)
    return sorted(times)[len(times) // 2]


class Program(NamedTuple):
    """A jitted function and its arguments."""

    function: Any
    arguments: tuple
    sentences: int = 0
    """Of a call."""
    carries: bool = False
    """Its first result is its first argument in the next call."""

    def measured(self, size: Size, mesh: Mesh) -> dict[str, Any]:
        """Seconds of compiling for the mesh and, unless its device is absent, the time of a call."""
        arguments = list(self.arguments)
        with jax.set_mesh(mesh):
            traced = self.function.trace(*(shapes_of(self.arguments) if size.absent else arguments))
            flops = product_flops(traced.jaxpr.jaxpr)
            wall, processor = time.perf_counter(), time.process_time()
            compiled = traced.lower().compile()
            found = {
                "compile_s": time.perf_counter() - wall,
                "compile_processor_s": time.process_time() - processor,
                "temporaries_gib": compiled.memory_analysis().temp_size_in_bytes / 2**30,
                "tflop": flops / 1e12,
            }

            def call() -> Any:
                result = compiled(*arguments)
                if self.carries:
                    arguments[0] = result[0]
                return result

            if size.absent:
                return found
            seconds = timed(call, size.repeats)
        rates = {"sentences_per_s": self.sentences / seconds} if self.sentences else {}
        return found | {"ms": 1e3 * seconds, "tflops_per_s": flops / seconds / 1e12} | rates


def congen_step(size: Size, mesh: Mesh, *, stored: bool = False, exact: bool = False) -> Program:
    """ConGen's step between random models on random packed sentences; of shapes alone if its device is absent.

    Args:
      exact: in float32, and without dropout.
    """
    options = argparse.Namespace(
        objective="congen", queue_size=size.queue, sharding="", model_axis=1, remat=False, accumulate=1, stored=stored,
        teacher=size.teacher,
    )  # fmt: skip
    config = tpu_plan.config_of(options, batch_size=size.batch)
    if exact:
        run = dataclasses.replace(config.run, precision="float32")
        config = dataclasses.replace(config, run=run, student=dataclasses.replace(config.student, dropout=0.0))
    objective, dtype, draw = make_objective(config), np.dtype(config.run.precision), np.random.default_rng(0)
    model = tpu_plan.model if size.absent else random_model
    teacher = model(size.teacher, layers=size.layers)
    width = teacher.definition.embedding_width
    student = model(size.student, layers=size.layers, width=width)
    layout, train_step = make_step(config, objective, student, teacher, mesh, live=not stored, steps=1000)
    views = len(objective.student_views), len(objective.teacher_views)
    batch = Batch(
        packed(draw, size, size.batch * views[0]),
        None if stored else packed(draw, size, size.batch * views[1]),
        unit(draw, (size.batch, views[1], width)) if stored else None,
    )
    frozen = {} if stored else teacher.frozen_params(mesh)
    if size.absent:
        return Program(train_step, (layout.like, meshes.frozen_shapes(frozen, dtype), batch))
    shardings = {} if stored else frozen_shardings(teacher, mesh, config.run.sharding)
    make_state = partial(step.make_state, objective=objective, optimizer=layout.optimizer, sizes=layout.sizes)
    seeds = unit(draw, (objective.reserve_rows, width))
    state = jax.jit(make_state, out_shardings=layout.shardings)(student.params, seeds, jax.random.key(0))
    placed = meshes.place_frozen(frozen, shardings, dtype), meshes.place_batch(batch, mesh, 1)
    return Program(train_step, (state, *placed), sentences=size.batch, carries=True)


def random_model(name: str, *, layers: int, width: int = 0) -> SentenceModel:
    """A model in the shape of a public one, with random weights."""
    shapes = tpu_plan.model(name, layers=layers, width=width)
    params = {path: np.asarray(array) for path, array in init_params(shapes.definition, jax.random.key(0)).items()}
    return dataclasses.replace(shapes, params=params)


def unit(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Random unit vectors."""
    x = draw.standard_normal(shape).astype(np.float32)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


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
