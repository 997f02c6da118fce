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
    lock = FileLock(working / LOCK)
    try:
        lock.acquire(timeout=0)
        new = working / NEW
        yield new
        (new / MARK).write_text(json.dumps({**facts, "files": _digests(new)}, indent=2) + "\n", encoding="utf-8")
        if not _holds_the_same(folder, new):
            _keep_users_files(folder, new)
            _swap(working, folder)
    finally:
        lock.release()
        shutil.rmtree(working, ignore_errors=True)


def _holds_the_same(folder: Path, new: Path) -> bool:
    """Whether `folder` already holds all files of `new`, unchanged."""
    listed, wanted = _listed(folder), _listed(new)
    return listed == wanted and all(_is_ours(folder / name, content) for name, content in wanted.items())


def _keep_users_files(folder: Path, new: Path) -> None:
    """Copies files that the user added to `folder` into `new`, and files that the user changed as `NAME.edited`."""
    if not folder.is_dir():
        return
    listed, ours = _listed(folder), _digests(new)
    for name in _names(folder):
        if name == MARK or (name in listed and _is_ours(folder / name, listed[name])):
            continue
        if name in ours and not listed:  # an earlier version's export, whose marker has no list
            continue
        kept = new / name
        while os.path.lexists(kept):
            kept = kept.with_name(f"{kept.name}.edited")
        if kept.name != Path(name).name:
            log.warning("%s was edited after the export; your version is now %s", folder / name, kept.name)
        kept.parent.mkdir(parents=True, exist_ok=True)
        _copy(folder / name, kept)


def _copy(origin: Path, target: Path) -> None:
    """Copies a file, as a hard link where the file system supports it."""
    try:
        os.link(origin, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(origin, target, follow_symlinks=False)


def _swap(working: Path, folder: Path) -> None:
    """Renames the new folder into place. The old one is deleted last, so one of the two always exists."""
    old = working / OLD
    if folder.exists():
        folder.rename(old)
    try:
        (working / NEW).rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise


def _clear_leftovers(folder: Path) -> None:
    """Removes working folders of killed programs. If a program died between the two renames, restores the old
    version."""
    for working in folder.parent.glob(f".{glob.escape(folder.name[:40])}.*{WORKING}"):
        lock = FileLock(working / LOCK)
        try:
            # Without a lock file, another program may just have created the folder.
            if not (working / LOCK).is_file():
                continue
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            continue
        # The lock is free, so its program is dead; an old version without a new one means it died between the renames.
        if (working / OLD).is_dir() and not folder.exists():
            (working / OLD).rename(folder)
        lock.release()
        shutil.rmtree(working, ignore_errors=True)


def _listed(folder: Path) -> dict[str, str]:
    """File digests listed in the folder's marker; empty without a marker or a list."""
    try:
        return listed((folder / MARK).read_bytes())
    except OSError:
        return {}


def listed(marker: bytes) -> dict[str, str]:
    """File digests listed in the content of a marker; empty without a list."""
    try:
        return dict(json.loads(marker)["files"])
    except (ValueError, KeyError, TypeError):
        return {}


def _digests(folder: Path) -> dict[str, str]:
    return {name: file_digest(folder / name) for name in _names(folder)}


def _names(folder: Path) -> list[str]:
    """All files and links inside a folder."""
    names = []
    for root, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        names += [os.path.relpath(os.path.join(root, name), folder) for name in [*files, *links]]
    return sorted(names)


def _is_ours(path: Path, content: str) -> bool:
    return path.is_file() and not path.is_symlink() and file_digest(path) == content
