"""Processes of a run as threads of one, which agree as those do."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

from jaxdistill.core import InputError
from jaxdistill.core.cluster import processes


class Processes:
    """Each thread of `run` is a process."""

    def __init__(self, total):
        self._here, self._values = threading.local(), [None] * total
        self._barrier = threading.Barrier(total, timeout=20)

    def replace(self, monkeypatch):
        """Puts the methods below in the place of the module's functions."""
        for name in ("gathered", "wait", "count", "index", "is_first"):
            monkeypatch.setattr(processes, name, getattr(self, name))

    def run(self, work):
        def of(number):
            self._here.number = number
            try:
                return work()
            except InputError as error:  # ends all
                self._barrier.abort()
                return error
            except threading.BrokenBarrierError as error:
                return error

        with ThreadPoolExecutor(self.count()) as threads:
            return list(threads.map(of, range(self.count())))

    def gathered(self, value):
        self._values[self.index()] = json.loads(json.dumps(value))
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found

    def wait(self, what):
        self.gathered(what)

    def count(self):
        return len(self._values)

    def index(self):
        return self._here.number

    def is_first(self):
        return self.index() == 0
