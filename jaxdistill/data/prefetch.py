"""Prepares the batches of the next steps while the devices compute."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

from jaxdistill.core import Batch
from jaxdistill.data.batches import Batches

DEPTH = 2
"""Number of batches that are prepared ahead."""


def prefetch(batches: Batches, start: int, stop: int) -> Generator[Batch]:
    """Yields the batches of steps `start` to `stop - 1`, which one thread prepares."""
    thread = ThreadPoolExecutor(1, "prefetch")
    try:
        ahead = deque(thread.submit(batches.batch_at, step) for step in range(start, min(start + DEPTH, stop)))
        for step in range(start + DEPTH, stop + DEPTH):
            batch = ahead.popleft().result()
            if step < stop:
                ahead.append(thread.submit(batches.batch_at, step))
            yield batch
    finally:
        thread.shutdown(cancel_futures=True)
