"""ConGen's step between random models, for the figures of `accelerator.py`, and what times them.

JAX is imported inside the functions: the process that starts the others must not hold the accelerator.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple


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


SMALL = Size("minilm-l6", "minilm-l6", layers=1, batch=32, queue=256, product=256, sentences=200, repeats=2)
FULL = Size()


def timed(call: Callable[[], Any], repeats: int) -> float:
    """Seconds of a call, the median of `repeats`, after one that compiles."""
    import jax

    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begun)
    return sorted(times)[len(times) // 2]


class Training:
    """ConGen's step between random models on random packed sentences."""

    def __init__(self, size: Size, *, stored: bool = False, precision: str = "bfloat16", dropout: bool = True):
        import jax
        import numpy as np
        import tpu_plan

        from jaxdistill.cluster import mesh as meshes
        from jaxdistill.core import Batch
        from jaxdistill.training import step
        from jaxdistill.training.setup.build import make_step
        from jaxdistill.training.setup.objective import make_objective
        from jaxdistill.training.setup.sharding import frozen_shardings

        mesh = meshes.make_mesh()
        given = argparse.Namespace(
            objective="congen", queue_size=size.queue, sharding="", model_axis=1, remat=False, accumulate=1, stored=stored,
            teacher=size.teacher,
        )  # fmt: skip
        config = tpu_plan.config_of(given, batch_size=size.batch)
        config = replaced(config, run=replaced(config.run, precision=precision))
        if not dropout:
            config = replaced(config, student=replaced(config.student, dropout=0.0))
        objective = make_objective(config)
        teacher = random_model(size.teacher, size.layers)
        width = teacher.definition.embedding_width
        student = random_model(size.student, size.layers, width=width)
        layout, self.step = make_step(config, objective, student, teacher, mesh, live=not stored, steps=1000)
        dtype = jax.numpy.dtype(precision)
        placed = frozen_shardings(teacher, mesh, config.run.sharding)
        self.teacher = {} if stored else meshes.place_frozen(teacher.frozen_params(mesh), placed, dtype)
        draw = np.random.default_rng(0)
        seeds = unit(draw, (objective.reserve_rows, width)) if objective.reserve_rows else None
        make_state = jax.jit(
            lambda params, seeds, key: step.make_state(
                params, seeds, key, objective=objective, optimizer=layout.optimizer, sizes=layout.sizes
            ),
            out_shardings=layout.shardings,
        )
        self.state = make_state(student.params, seeds, jax.random.key(0))
        views = len(objective.student_views), len(objective.teacher_views)
        batch = Batch(
            packed(draw, size, size.batch * views[0]),
            None if stored else packed(draw, size, size.batch * views[1]),
            unit(draw, (size.batch, views[1], width)) if stored else None,
        )
        self.batch = meshes.place_batch(batch, mesh, 1)

    def run(self, size: Size) -> dict[str, Any]:
        """Seconds of tracing and compiling, and the time and the share of the peak of a step."""
        import jax

        from jaxdistill.training.flops import products_by_part

        begun = time.perf_counter()
        traced = self.step.trace(self.state, self.teacher, self.batch)
        flops = sum(part.flops for part in products_by_part(traced.jaxpr.jaxpr).values())
        lowered = traced.lower()
        lowering = time.perf_counter() - begun
        compiled = lowered.compile()
        compiling = time.perf_counter() - begun - lowering

        def one() -> jax.Array:
            self.state, metrics = compiled(self.state, self.teacher, self.batch)
            return metrics["loss"]

        seconds = timed(one, size.repeats)
        memory = compiled.memory_analysis()
        return {
            "trace_and_lower_s": round(lowering, 2),
            "compile_s": round(compiling, 2),
            "ms_per_step": 1e3 * seconds,
            "sentences_per_s": size.batch / seconds,
            "tflops_per_s": flops / seconds / 1e12,
            "tflop_per_step": flops / 1e12,
            "temporaries_gib": round(getattr(memory, "temp_size_in_bytes", 0) / 2**30, 3),
        }


def replaced(options: Any, **changed: Any) -> Any:
    import dataclasses

    return dataclasses.replace(options, **changed)


def random_model(name: str, layers: int, *, width: int = 0) -> Any:
    """A model in the shape of a public one, with random weights."""
    import dataclasses

    import jax
    import numpy as np
    import tpu_plan

    from jaxdistill.encoders.sentence import init_params

    shapes = tpu_plan.model(name, layers=layers, width=width)
    params = {path: np.asarray(array) for path, array in init_params(shapes.definition, jax.random.key(0)).items()}
    return dataclasses.replace(shapes, params=params)


def unit(draw: Any, shape: tuple[int, ...]) -> Any:
    """Random unit vectors."""
    import numpy as np

    x = draw.standard_normal(shape).astype(np.float32)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def packed(draw: Any, size: Size, sentences: int) -> Any:
    """Sentences of equal length in full rows, in one group."""
    import numpy as np

    from jaxdistill.core import Tokens

    slots = np.arange(sentences * size.tokens, dtype=np.int32)
    shape = (1, -1, size.row)
    return Tokens(
        ids=draw.integers(1000, 30000, slots.shape).astype(np.int32).reshape(shape),
        owner=(slots // size.tokens).reshape(shape),
        position=(slots % size.tokens).reshape(shape),
        first=slots[None, :: size.tokens],
    )
