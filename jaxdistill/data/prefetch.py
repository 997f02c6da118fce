"""Prepares the batches of the next steps while the devices compute."""

import threading
from collections.abc import Generator
from queue import Full, Queue

from jaxdistill.core import Batch
from jaxdistill.data.batches import Batches


def prefetch(batches: Batches, start: int, stop: int, depth: int = 2) -> Generator[Batch]:
    """Yields the batches of steps `start` to `stop - 1`; one thread prepares `depth` batches ahead."""
    queue: Queue = Queue(maxsize=depth)
    ended = threading.Event()

    def put(item) -> None:
        # With a timeout, so that the thread notices when the consumer has stopped and the queue stays full.
        while not ended.is_set():
            try:
                return queue.put(item, timeout=0.1)
            except Full:
                continue

    def work() -> None:
        try:
            for step in range(start, stop):
                if ended.is_set():
                    return
                put((batches.batch_at(step), None))
        except BaseException as error:  # raised again in the consumer's thread
            put((None, error))

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        for _ in range(start, stop):
            batch, error = queue.get()
            if error is not None:
                raise error
            yield batch
    finally:
        ended.set()
        thread.join()
