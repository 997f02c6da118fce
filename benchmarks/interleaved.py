"""Times several programs for the same work in turn, so that other load on the machine meets all of them alike."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

Work = Callable[[], float]
"""Does some work and returns its amount, in the unit of the benchmark."""


class Rates(NamedTuple):
    """Amount per second in each round."""

    wall: list[float]
    processor: list[float]
    """Per second of the processor, over all threads of this process, which other work on the machine lengthens less."""


def rates(works: Mapping[str, Work], rounds: int) -> dict[str, Rates]:
    """Rates of each work, A B A B; one more round before the first warms up."""
    found = {name: Rates([], []) for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            begun = time.perf_counter(), time.process_time()
            amount = work()
            if number:
                found[name].wall.append(amount / (time.perf_counter() - begun[0]))
                found[name].processor.append(amount / (time.process_time() - begun[1]))
    return found


def ratios(found: Mapping[str, Rates], ours: str, theirs: str) -> dict[str, float]:
    """How many times as fast `ours` is: medians over the rounds."""
    pairs = zip(found[ours], found[theirs], strict=True)
    wall, processor = (statistics.median(a / b for a, b in zip(*kind, strict=True)) for kind in pairs)
    return {"ratio": wall, "processor_ratio": processor}


def medians(found: Mapping[str, Rates]) -> dict[str, float]:
    """Each work's median rate."""
    return {name: statistics.median(each.wall) for name, each in found.items()}


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
