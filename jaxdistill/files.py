"""Writes files atomically: beside their place first, then renamed, so that a killed run leaves nothing incomplete."""

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from jaxdistill.core import InputError

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/{1,2}[^/]")
"""`gs://bucket/folder`, and what `Path` makes of it: `gs:/bucket/folder`."""


def is_remote(path: str | Path) -> bool:
    """Whether `path` is an address of an object store or a server, which this version cannot read or write."""
    return ADDRESS.match(str(path)) is not None


def local(path: str | Path, option: str) -> Path:
    """`path` with `~` expanded; raises `InputError`, which names `option`, for an address such as gs://."""
    if is_remote(path):
        raise InputError(
            f"{option}={path} is an address; give a local path, or mount it (gcsfuse, s3fs) and give that."
        )
    return Path(path).expanduser()


def write_atomic(path: Path, text: str) -> None:
    """Writes a text file; what was there before stays until the new one is complete. Raises `OSError`.

    A symbolic link stays, and the file that it leads to is written; a device or pipe is written into.
    """
    if is_special(path):
        path.write_text(text, encoding="utf-8")
        return
    path = without_links(path)
    # Not all of a long name: with what is added it must not be longer than a name may be.
    unfinished = path.with_name(f".{path.name[:40]}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def try_writing(path: Path) -> None:
    """Raises `OSError` where a file cannot be written, before minutes of work; makes its folder, and leaves no new file."""
    if is_special(path):  # the reader of a pipe would see its end
        return
    path = without_links(path)
    is_new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.open("a", encoding="utf-8").close()
    if is_new:
        path.unlink()


def refuse_overwriting(output: Path, inputs: Iterable[Path]) -> None:
    """Raises `InputError` where a file that is to be written is one of those that are read."""
    place = without_links(output)
    for path in inputs:
        if without_links(path) == place:
            raise InputError(f"{output} is one of the files that are read; name another file to write.")


def refuse_no_folder(folder: Path) -> None:
    """Raises `InputError` where a folder cannot be made, since it or one that it lies in is a file, or of another user."""
    there = local(folder, "--workdir")
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise InputError(f"--workdir={folder}: {there} is not a directory; name another folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"--workdir={folder}: {there} is not writable; name another folder.")


def is_special(path: Path) -> bool:
    """Whether there is something that is neither file nor folder: a device or a pipe, which nothing can be put in place of."""
    return path.exists() and not path.is_file() and not path.is_dir()


def without_links(path: Path) -> Path:
    """The path without symbolic links."""
    return Path(os.path.realpath(path))


def folder_digest(folder: Path, pattern: str = "*") -> str:
    """SHA-256 of the files of a folder and of those inside it, with their names, as far as these fit the pattern."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob(pattern) if path.is_file()):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder)} {content} ".encode())
    return digest.hexdigest()


def unwritable(path: Path, error: OSError) -> InputError:
    """What to say of a file whose writing failed, in one line."""
    full = "no space left on the disk; free some and give the same command again"
    reason = full if error.errno == errno.ENOSPC else error.strerror or str(error)
    return InputError(f"{path} could not be written: {reason}.")


def make_folder_atomic(
    folder: Path, fill: Callable[[Path], None], *, what: str, is_complete: Callable[[Path], bool] = Path.is_dir
) -> None:
    """Makes a folder of the cache.

    Args:
      folder: its place, named by a digest of what it will hold.
      fill: writes the content into a folder that is given another name at first.
      what: is said of it in errors.
      is_complete: whether a folder that another process put there meanwhile will do.

    Raises:
      InputError: it cannot be written.
    """
    draft = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
        fill(draft)
        os.replace(draft, folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and is_complete(folder):
            return
        raise InputError(
            f"{what} cannot be written in {folder.parent}: {error.strerror}; "
            f"free space there or choose another cache folder."
        ) from None
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
