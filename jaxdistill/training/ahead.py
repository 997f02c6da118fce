"""Compiles a run's step while the run's first vectors and batches are made."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from jaxdistill.core import Array, Batch, Params, Tokens, TrainState
from jaxdistill.data.packing import Shape, Shapes
from jaxdistill.training.console import say
from jaxdistill.training.run import Run


class StepPrograms:
    """A run's step, with a compiled program for each shape of its batches.

    Args:
      ahead: start compiling in threads, one for each shape but the last, which hardly any batch needs. Otherwise, and for the
        last shape, a program is compiled when a batch needs it. A process that fails waits for its threads.
    """

    def __init__(self, run: Run, *, ahead: bool):
        self._step = run.program.train_step
        self._programs: dict[Any, Future] = {}
        self._used: dict[Any, Any] = {}
        if ahead:
            batches = run.text.batches
            shapes, first = batches.usual_shapes, batches.batch_at(0)
            threads = ThreadPoolExecutor(len(shapes), "compile")
            for shape in shapes:
                batch = shaped(first, shape, batches.groups, batches.batch_size)
                compiling = threads.submit(self._compiled, run.layout.like, run.program.teacher_params, batch)
                self._programs[_shapes(batch)] = compiling
            threads.shutdown(wait=False)

    def __call__(self, state: TrainState, teacher_params: Params, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        """One step."""
        shapes = _shapes(batch)
        if shapes in self._programs:
            begun = time.monotonic()
            self._used[shapes], seconds = self._programs.pop(shapes).result()
            slots, waited = " x ".join(map(str, batch.student.ids.shape)), time.monotonic() - begun
            say(
                f"compiled the step for a batch of {slots} token slots in {seconds:.0f} s; training waited for {waited:.0f} s"
            )
        return self._used.get(shapes, self._step)(state, teacher_params, batch)

    def _compiled(self, *arguments: Any) -> tuple[Any, float]:
        begun = time.monotonic()
        return self._step.lower(*arguments).compile(), time.monotonic() - begun


def shaped(batch: Batch, shapes: Shapes, groups: int, batch_size: int) -> Batch:
    """The shapes of a batch like `batch`, with all groups, in other packed shapes: the student's and a live teacher's."""

    def tokens(like: Tokens | None, shape: Shape) -> Any:
        slots = (groups, shape.rows, shape.length)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(slots if x.ndim == 3 else (groups, x.shape[1]), x.dtype), like
        )

    targets: Any = jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), x.dtype), batch.targets)
    return Batch(tokens(batch.student, shapes[0]), tokens(batch.teacher, shapes[-1]), targets)


def _shapes(batch: Batch) -> Any:
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))
