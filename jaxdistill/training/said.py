"""Says what a training does: on standard output, and with times in the workdir's `train.log`."""

import contextlib
import logging
import logging.handlers
import pathlib
import sys
from collections.abc import Callable, Iterator

from tqdm.auto import tqdm

from jaxdistill.cli import error_of_input
from jaxdistill.cluster import processes
from jaxdistill.workdir.folder import LOG

_package = logging.getLogger("jaxdistill")
_said = _package.getChild("said")
"""Lines that are printed already, or are for the file alone."""
_said.setLevel(logging.INFO)
_said.propagate = False


def say(line: str) -> None:
    """Prints a line, above a progress bar if there is one; the first process of a run alone does."""
    if processes.is_first():
        tqdm.write(line)
        sys.stdout.flush()  # a file or a pipe would show the line much later
        _said.info(line)


def note(lines: str) -> None:
    """Keeps lines in `train.log` alone."""
    for line in lines.splitlines():
        _said.info("%s", line)


@contextlib.contextmanager
def kept(command: str) -> Iterator[Callable[[pathlib.Path], None]]:
    """Keeps what is printed and logged inside: the command first, and the error that ends it last.

    Yields a function that takes the workdir: what was said so far is appended to its `train.log`, and from then on each line
    as it comes. Until then nothing is written.
    """
    lines = logging.handlers.MemoryHandler(sys.maxsize, flushLevel=sys.maxsize)
    with contextlib.ExitStack() as ended:
        ended.callback(lines.close)
        for logger in (_package, _said):
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
            _said.error("%s", known or "failed:", exc_info=None if known else error)
            raise


class _File(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk ends the run where it writes its results; the log goes without the line."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()
