"""Prints what a training does, and logs it with times in the workdir's `train.log`."""

import contextlib
import logging
import logging.handlers
import pathlib
import sys
from collections.abc import Callable, Iterator

from tqdm.auto import tqdm

from jaxdistill.cluster import processes
from jaxdistill.signals import error_of_input
from jaxdistill.workdir.folder import LOG

_package = logging.getLogger("jaxdistill")
_printed = _package.getChild("printed")
"""Logger of lines that are printed elsewhere, or only belong in the file."""
_printed.setLevel(logging.INFO)
_printed.propagate = False


def say(line: str) -> None:
    """Prints a line, above a progress bar if there is one; in the first process of a run only."""
    if processes.is_first():
        tqdm.write(line)
        sys.stdout.flush()  # or a file or pipe would show the line much later
        _printed.info(line)


def note(lines: str) -> None:
    """Writes lines to `train.log` only."""
    for line in lines.splitlines():
        _printed.info("%s", line)


@contextlib.contextmanager
def kept(command: str) -> Iterator[Callable[[pathlib.Path], None]]:
    """Keeps everything printed and logged inside the `with` block, from the command to the error that ends it.

    Yields a function of the workdir. Calling it appends the lines so far to the workdir's `train.log`, and from then on each
    new line; before, nothing is written.
    """
    lines = logging.handlers.MemoryHandler(sys.maxsize, flushLevel=sys.maxsize)
    with contextlib.ExitStack() as ended:
        ended.callback(lines.close)
        for logger in (_package, _printed):
            logger.addHandler(lines)
            ended.callback(logger.removeHandler, lines)
        note(f"$ {command}")

        def into(workdir: pathlib.Path) -> None:
            if processes.is_first():
                file = _File(workdir / LOG, encoding="utf-8")
                file.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
                ended.callback(file.close)
                lines.setTarget(file)
                lines.flush()
                lines.capacity = 1

        try:
            yield into
        except BaseException as error:
            known = "interrupted" if isinstance(error, KeyboardInterrupt) else error_of_input(error)
            _printed.error("%s", known or "failed:", exc_info=None if known else error)
            raise


class _File(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Ignores a failed write: a full disk ends the run when it writes results, not for a line of the log."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()
