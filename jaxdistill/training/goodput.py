"""Measures how a training spends its time, and what share of the devices' peak its steps use."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax

from jaxdistill.cluster.mesh import peak_flops_per_s
from jaxdistill.training.flops import products_by_part

ACTIVITIES = ("compile", "data", "steps", "evaluation", "checkpoints")


class Goodput:
    """Seconds that one process's host spends on each activity.

    Devices work while the host prepares, so `data` is the time that the host waits for a batch, and `steps` the time that
    it waits for devices, or starts and ends a profiler trace. `compile` is tracing and compiling a step of a new shape;
    executing it counts as `steps`. `checkpoints` includes making or restoring the first state.

    Operations are counted in the traced step, so recomputation by remat or a gradient cache counts too.
    """

    def __init__(self) -> None:
        self.total: dict[str, float] = dict.fromkeys(ACTIVITIES, 0.0)
        """Seconds since the training began, by activity."""
        self.last: dict[str, float] = dict.fromkeys(ACTIVITIES, 0.0)
        """Seconds of the latest occurrence, by activity."""
        self._reported = dict(self.total)
        self._flops = 0.0
        self._flops_of: dict[Any, float] = {}

    @contextlib.contextmanager
    def spent(self, activity: str) -> Iterator[None]:
        """Counts the time inside the `with` block as spent on the activity."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.last[activity] = time.monotonic() - begun
            self.total[activity] += self.last[activity]

    @contextlib.contextmanager
    def step(self, train_step: Any, *arguments: Any) -> Iterator[None]:
        """Counts the time inside the `with` block, and the operations of a step with these arguments."""
        shape = tuple(leaf.shape for leaf in jax.tree.leaves(arguments[-1]))
        new = shape not in self._flops_of
        if new:  # steps that run while the host compiles would take no time
            with self.spent("steps"):
                jax.block_until_ready(arguments)
        with self.spent("compile" if new else "steps"):
            if new:
                products = products_by_part(train_step.trace(*arguments).jaxpr.jaxpr)  # jit keeps the trace
                self._flops_of[shape] = sum(product.flops for product in products.values())
            yield
        self._flops += self._flops_of[shape]

    def taken(self) -> dict[str, float]:
        """Metrics of the time since the last call; `goodput` is the share of `steps` since the training began."""
        since = {name: seconds - self._reported[name] for name, seconds in self.total.items()}
        rate = self._flops / max(since["data"] + since["steps"], 1e-9) / jax.device_count()
        self._reported, self._flops = dict(self.total), 0.0
        scalars = {f"seconds/{name}": seconds for name, seconds in since.items()}
        scalars |= {"goodput": self.total["steps"] / max(sum(self.total.values()), 1e-9), "tflops_per_s": rate / 1e12}
        peak = peak_flops_per_s(jax.devices()[0].device_kind)
        return scalars | ({"utilisation": rate / peak} if peak else {})
