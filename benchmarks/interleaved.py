"""Times several programs for the same work in turn, so that other load on the machine meets all of them alike.

PyTorch's side runs in a process of its own (`Remote`), with the allocator's settings that a user's loop has. This project's
process does not import PyTorch, whose threads make glibc open heaps that `runtime.keep_freed` does not reach.
"""

import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import numpy as np

from jaxdistill.core import InputError

LOAD_BEFORE = os.getloadavg()[0]
Value = TypeVar("Value")
Work = Callable[[], float]
"""Does some work and returns its amount, in the unit of the benchmark."""


class Rates(NamedTuple):
    """Amount per second in each round."""

    wall: list[float]
    processor: list[float]
    """Per second of the processor, over all threads of the work's process, which other work on the machine lengthens less."""

    def add(self, amount: float, wall: float, processor: float) -> None:
        """Adds a round of `amount` that took so many seconds."""
        self.wall.append(amount / wall)
        self.processor.append(amount / processor)


def timed(work: Callable[[], Value]) -> tuple[Value, float, float]:
    """What `work` returns, its seconds of wall time, and its seconds of processor time."""
    start = time.perf_counter(), time.process_time()
    value = work()
    return value, time.perf_counter() - start[0], time.process_time() - start[1]


class Remote:
    """Work that a process of its own gets by calling `make` with the arguments; `timed` runs a round of it."""

    torch: ClassVar[dict[str, Any]] = {}
    """PyTorch's version and number of threads, once a process has used it."""

    def __init__(self, make: Callable[..., Work], *arguments, **options):
        context = multiprocessing.get_context("spawn")
        self._connection, child = context.Pipe()
        context.Process(target=_serve, args=(child, make, arguments, options), daemon=True).start()
        child.close()
        self.torch.update(self._connection.recv())

    def timed(self) -> tuple[float, float, float]:
        """The amount of a round, and its seconds of wall time and of the processor; EOFError if the process has ended."""
        self._connection.send(None)
        return self._connection.recv()


def _serve(connection: Connection, make: Callable[..., Work], arguments: tuple, options: dict[str, Any]) -> None:
    work = make(*arguments, **options)
    torch = sys.modules.get("torch")
    connection.send({"torch": torch.__version__, "torch_threads": torch.get_num_threads()} if torch else {})
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        connection.send(timed(work))


def rates(works: Mapping[str, Work | Remote], rounds: int) -> dict[str, Rates]:
    """Rates of each work, A B A B; one more round before the first warms up."""
    result = {name: Rates([], []) for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            measurement = work.timed() if isinstance(work, Remote) else timed(work)
            if number:
                result[name].add(*measurement)
    return result


def ratios(rounds: Mapping[str, Rates], subject: str, baseline: str) -> dict[str, float]:
    """How many times as fast as `baseline` the `subject` is: medians over the rounds."""
    pairs = zip(rounds[subject], rounds[baseline], strict=True)
    wall, processor = (statistics.median(a / b for a, b in zip(*kind, strict=True)) for kind in pairs)
    return {"ratio": wall, "processor_ratio": processor}


def medians(rounds: Mapping[str, Rates]) -> dict[str, float]:
    """Each work's median rate."""
    return {name: statistics.median(measured.wall) for name, measured in rounds.items()}


def torch_device() -> str:
    """PyTorch's name of the device that JAX takes; InputError if PyTorch has no such device.

    Called before JAX starts, which would otherwise take most of a GPU's memory from PyTorch.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    backend = jax.default_backend()
    if backend == "gpu":
        import torch

        if torch.cuda.is_available():
            return "cuda"
    if backend != "cpu":
        raise InputError(f"JAX runs on {backend}, but PyTorch finds no such device; set JAX_PLATFORMS=cpu.")
    return "cpu"


def wait_for(device: str) -> None:
    """Waits until PyTorch's device has finished its work."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def machine() -> dict[str, Any]:
    """What a timing depends on; PyTorch's version and threads if the benchmark has it."""
    return {
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": {"before": LOAD_BEFORE, "after": os.getloadavg()[0]},
        "python": platform.python_version(),
        "jax": jax.__version__,
        **Remote.torch,
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def write(out: str, result: Mapping[str, Any]) -> None:
    """Prints the result, and writes it to the file `out` unless that is empty."""
    text = json.dumps({**result, "machine": machine()}, indent=1)
    print(text)
    if out:
        Path(out).write_text(text + "\n", encoding="utf-8")


def unit_rows(x: np.ndarray) -> np.ndarray:
    """The rows with norm 1."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def random_unit(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Random unit vectors."""
    return unit_rows(np.random.default_rng(seed).normal(size=shape).astype(np.float32))
