"""Replaces an output folder atomically, and keeps files that the user has added to it.

Such a folder has a marker, a JSON file that lists the files written here with their digests. All other files belong to
the user. The new version is written to a uniquely named working folder beside the old one, and replaces it by two
renames. A lock in the working folder tells one in use from a leftover of a killed program.
"""

import contextlib
import glob
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from jaxdistill.core import InputError
from jaxdistill.files import file_digest

MARK = "jaxdistill.json"
"""Marker of a folder that may be replaced; lists the files that this package wrote."""
WORKING = ".jaxdistill-working"
"""Suffix of a working folder's name."""
LOCK, NEW, OLD = "jaxdistill.lock", "new", "old"
"""Names in a working folder: its lock, the new version, and the old version that it replaces."""

log = logging.getLogger(__name__)


def refuse_foreign(folder: Path, *, advice: str = "Give another --out.") -> None:
    """Raises `InputError` if the path is a file, or a non-empty folder without a marker."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file()):
        raise InputError(f"{folder} exists and is not an export of this program; it is not overwritten. {advice}")


@contextlib.contextmanager
def replacing(folder: Path, facts: Mapping[str, Any]) -> Iterator[Path]:
    """Yields a path for the new version of `folder`, which then replaces it; keeps the user's own files.

    If `folder` already holds the same files, it is left unchanged. An error changes nothing.

    Args:
      facts: entries of the marker besides the list of files.

    Raises:
      InputError: `folder` is not empty and has no marker.
      OSError: the folder cannot be written.
    """
    refuse_foreign(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(folder)
    working = Path(tempfile.mkdtemp(prefix=f".{folder.name[:40]}.", suffix=WORKING, dir=folder.parent))
    new, old, lock = working / NEW, working / OLD, FileLock(working / LOCK)
    try:
        lock.acquire(timeout=0)
        yield new
        before, digests = marked_files(folder), _digests(new)
        if before == digests and all(is_unchanged(folder / name, digest) for name, digest in before.items()):
            return
        (new / MARK).write_text(json.dumps({**facts, "files": digests}, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            _keep_users_files(folder, new, before)
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
    finally:
        lock.release()
        shutil.rmtree(working, ignore_errors=True)


def _keep_users_files(folder: Path, new: Path, before: Mapping[str, str]) -> None:
    """Copies files that the user added to `folder` into `new`, and files that the user changed as `NAME.edited`."""
    for name in _names(folder):
        if name == MARK or is_unchanged(folder / name, before.get(name, "")):
            continue
        kept = new / name
        while os.path.lexists(kept):
            kept = kept.with_name(f"{kept.name}.edited")
        if kept.name != Path(name).name:
            log.warning("%s was edited after the export; your version is now %s", folder / name, kept.name)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / name, kept, follow_symlinks=False)


def _clear_leftovers(folder: Path) -> None:
    """Removes working folders of killed programs. If a program died between the two renames, restores the old version."""
    for working in folder.parent.glob(f".{glob.escape(folder.name[:40])}.*{WORKING}"):
        if not (working / LOCK).is_file():  # another program may just have created the folder
            continue
        lock = FileLock(working / LOCK)
        with contextlib.suppress(Timeout, OSError):
            lock.acquire(timeout=0)
            if (working / OLD).is_dir() and not folder.exists():
                (working / OLD).rename(folder)
            lock.release()
            shutil.rmtree(working, ignore_errors=True)


def marked_files(folder: Path) -> dict[str, str]:
    """Digests of the files that the folder's marker lists; empty without a marker or a list."""
    path = folder / MARK
    return listed(path.read_bytes()) if path.is_file() else {}


def listed(marker: bytes) -> dict[str, str]:
    """File digests listed in the content of a marker; empty without a list."""
    try:
        return dict(json.loads(marker)["files"])
    except (ValueError, KeyError, TypeError):
        return {}


def is_unchanged(path: Path, digest: str) -> bool:
    """Whether the file exists and still has this digest."""
    return path.is_file() and not path.is_symlink() and file_digest(path) == digest


def _digests(folder: Path) -> dict[str, str]:
    return {name: file_digest(folder / name) for name in _names(folder)}


def _names(folder: Path) -> list[str]:
    """All files and links inside a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
