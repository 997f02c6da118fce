"""Times several programs for the same work in turn, so that other load on the machine meets all of them alike."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

Work = Callable[[], float]
"""Does some work and returns its amount, in the unit of the benchmark."""


def rates(works: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    """Amount per second of each work in each round, A B A B; one more round before the first warms up."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            begun = time.perf_counter()
            amount = work()
            if number:
                found[name].append(amount / (time.perf_counter() - begun))
    return found


def ratio(found: Mapping[str, list[float]], ours: str, theirs: str) -> float:
    """How many times as fast `ours` is: the median over the rounds."""
    return statistics.median(a / b for a, b in zip(found[ours], found[theirs], strict=True))


def machine() -> dict[str, Any]:
    """What a timing depends on."""
    return {
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "jax": jax.__version__,
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def write(out: str, result: Mapping[str, Any]) -> None:
    """Prints the result, and writes it to the file `out` unless that is empty; `result` has a `ratio`."""
    text = json.dumps({**result, "machine": machine()}, indent=1)
    print(text)
    if out:
        Path(out).write_text(text + "\n", encoding="utf-8")
