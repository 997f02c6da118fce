"""Finds out which processes of a run see the same folder."""

import contextlib
import tempfile
from pathlib import Path

from jaxdistill.cluster import processes
from jaxdistill.files import unwritable


def folder_owner(folder: Path) -> int:
    """Index of the first process that sees the same folder as this one; all must call this together."""
    name, problem = "", None
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            made = tempfile.NamedTemporaryFile(dir=folder, prefix=f".{processes.index()}.")
            name = Path(stack.enter_context(made).name).name
        except OSError as error:
            problem = error
        seen = [name and (folder / name).exists() for name in processes.gathered(name)]
        processes.wait("all have looked")
    if problem and not any(seen):
        raise unwritable(folder, problem) from problem
    return seen.index(True)
