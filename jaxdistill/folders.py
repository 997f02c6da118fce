"""Replaces a folder of ours whole or not at all, and keeps what the user has put into it.

A folder of ours has a mark, a JSON file that lists its files with their digests. Whatever else lies in it belongs to the
user. The new folder is filled in a working folder beside the old one, whose name nobody else uses, and takes its place in
two renames. The lock in a working folder tells one that a killed program left from one that is in use.
"""

import contextlib
import glob
import hashlib
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

MARK = "jaxdistill.json"
"""The file that says that a folder is ours and may be replaced, and which of its files are ours."""
WORKING = ".jaxdistill-working"
"""How the name of a working folder ends."""
LOCK, NEW, OLD = "jaxdistill.lock", "new", "old"
"""In a working folder: what marks it as ours, the folder that is being filled, and the one that it replaces."""

log = logging.getLogger(__name__)


def refuse_foreign(folder: Path, *, advice: str = "Give another --out.") -> None:
    """Raises `InputError` if there is a file or a folder with anything in it that is not ours."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file()):
        raise InputError(f"{folder} exists and is not an export of this program; it is left alone. {advice}")


@contextlib.contextmanager
def replacing(folder: Path, facts: Mapping[str, Any]) -> Iterator[Path]:
    """Gives the path of a folder to make and fill; it takes the place of `folder` at the end, with the user's own files.

    Where `folder` already holds the same files, it stays as it is. After an error nothing is changed.

    Args:
      facts: what the mark says besides the list of files.

    Raises:
      InputError: `folder` holds something that is not ours.
      OSError: it cannot be written.
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
        _complete(new, facts)
        if not _holds_the_same(folder, new):
            _keep_users_files(folder, new)
            _swap(working, folder)
    finally:
        lock.release()
        shutil.rmtree(working, ignore_errors=True)


def _complete(new: Path, facts: Mapping[str, Any]) -> None:
    """Writes the mark."""
    (new / MARK).write_text(json.dumps({**facts, "files": _digests(new)}, indent=2) + "\n", encoding="utf-8")


def _holds_the_same(folder: Path, new: Path) -> bool:
    """Whether all files of `new` are there already, none of them changed."""
    listed, wanted = _listed(folder), _listed(new)
    return listed == wanted and all(_is_ours(folder / name, content) for name, content in wanted.items())


def _keep_users_files(folder: Path, new: Path) -> None:
    """Copies into `new` what the user put into `folder` or changed there; a changed file as `NAME.edited`."""
    if not folder.is_dir():
        return
    listed, ours = _listed(folder), _digests(new)
    for name in _names(folder):
        if name == MARK or (name in listed and _is_ours(folder / name, listed[name])):
            continue
        if name in ours and not listed:  # an export of an earlier version, which has no list
            continue
        kept = new / name
        while os.path.lexists(kept):
            kept = kept.with_name(f"{kept.name}.edited")
        if kept.name != Path(name).name:
            log.warning("%s was changed since it was written; the changed one is now %s", folder / name, kept.name)
        kept.parent.mkdir(parents=True, exist_ok=True)
        _copy(folder / name, kept)


def _copy(origin: Path, target: Path) -> None:
    """The same file under another name: as a hard link where the disk has them, which takes no room."""
    try:
        os.link(origin, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(origin, target, follow_symlinks=False)


def _swap(working: Path, folder: Path) -> None:
    """Gives the new folder its name; the old one goes last, so that one of the two always exists."""
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
    """Removes working folders of killed programs; one that died between the two renames has the folder itself."""
    for working in folder.parent.glob(f".{glob.escape(folder.name[:40])}.*{WORKING}"):
        lock = FileLock(working / LOCK)
        try:
            if not (working / LOCK).is_file():
                continue
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            continue
        if (working / OLD).is_dir() and not folder.exists():
            (working / OLD).rename(folder)
        lock.release()
        shutil.rmtree(working, ignore_errors=True)


def _listed(folder: Path) -> dict[str, str]:
    """Files to digests as the folder's mark has them; empty without a mark, or with one that lists none."""
    try:
        return dict(json.loads((folder / MARK).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _digests(folder: Path) -> dict[str, str]:
    return {name: _digest(folder / name) for name in _names(folder)}


def _names(folder: Path) -> list[str]:
    """All files and links inside a folder."""
    found = []
    for root, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        found += [os.path.relpath(os.path.join(root, name), folder) for name in [*files, *links]]
    return sorted(found)


def _is_ours(path: Path, content: str) -> bool:
    return path.is_file() and not path.is_symlink() and _digest(path) == content


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
