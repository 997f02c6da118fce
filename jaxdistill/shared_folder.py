"""Which processes of a run see the same folder."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jaxdistill import processes
from jaxdistill.files import unwritable


@contextlib.contextmanager
def first_before_others(folder: Path) -> Iterator[None]:
    """The first process goes through the body alone, and then the others, which find in `folder` what it made; all at once
    where they do not share the folder."""
    together = is_shared(folder)
    if together and not processes.is_first():
        processes.gathered("the first one is done")
    yield
    if together and processes.is_first():
        processes.gathered("the first one is done")


def is_shared(folder: Path) -> bool:
    """Whether the run has several processes that all see the folder of the first one."""
    return processes.count() > 1 and not any(processes.gathered(folder_owner(folder)))


def folder_owner(folder: Path) -> int:
    """The number of the first process that sees the folder of this one; all must call this together."""
    name, problem = "", None
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            made = tempfile.NamedTemporaryFile(dir=folder, prefix=f".{processes.index()}.")
            name = Path(stack.enter_context(made).name).name
        except OSError as error:
            problem = error
        seen = [name and (folder / name).exists() for name in processes.gathered(name)]
        processes.gathered("all have looked")
    if problem and not any(seen):
        raise unwritable(folder, problem) from problem
    return seen.index(True)
