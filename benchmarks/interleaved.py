"""Times several programs for the same work in turn, so that other load on the machine meets all of them alike.

PyTorch's side runs in a process of its own (`Elsewhere`), with the allocator's settings that a user's loop has. This project's
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
    begun = time.perf_counter(), time.process_time()
    value = work()
    return value, time.perf_counter() - begun[0], time.process_time() - begun[1]


class Elsewhere:
    """Work in a process of its own, which calls `make` with the arguments to get it, and waits until `timed` asks for a round."""

    torch: ClassVar[dict[str, Any]] = {}
    """PyTorch's version and number of threads, once a process has used it."""

    def __init__(self, make: Callable[..., Work], *arguments, **named):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        context.Process(target=_serve, args=(theirs, make, arguments, named), daemon=True).start()
        theirs.close()
        self.torch.update(self._connection.recv())

    def timed(self) -> tuple[float, float, float]:
        """The amount of a round, and its seconds of wall time and of the processor; EOFError if the process has ended."""
        self._connection.send(None)
        return self._connection.recv()


def _serve(connection: Connection, make: Callable[..., Work], arguments: tuple, named: dict[str, Any]) -> None:
    work = make(*arguments, **named)
    torch = sys.modules.get("torch")
    connection.send({"torch": torch.__version__, "torch_threads": torch.get_num_threads()} if torch else {})
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        connection.send(timed(work))


def rates(works: Mapping[str, Work | Elsewhere], rounds: int) -> dict[str, Rates]:
    """Rates of each work, A B A B; one more round before the first warms up."""
    found = {name: Rates([], []) for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            taken = work.timed() if isinstance(work, Elsewhere) else timed(work)
            if number:
                found[name].add(*taken)
    return found


def ratios(found: Mapping[str, Rates], ours: str, theirs: str) -> dict[str, float]:
    """How many times as fast `ours` is: medians over the rounds."""
    pairs = zip(found[ours], found[theirs], strict=True)
    wall, processor = (statistics.median(a / b for a, b in zip(*kind, strict=True)) for kind in pairs)
    return {"ratio": wall, "processor_ratio": processor}


def medians(found: Mapping[str, Rates]) -> dict[str, float]:
    """Each work's median rate."""
    return {name: statistics.median(each.wall) for name, each in found.items()}


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
    """Waits until PyTorch's device has done what it was asked to."""
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
        **Elsewhere.torch,
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
