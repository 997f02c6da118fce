"""Writes files atomically: under a temporary name, then renamed, so that a killed run leaves nothing incomplete."""

import contextlib
import errno
import fnmatch
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxdistill.core import InputError, error_line

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/{1,2}[^/]")
"""An address such as `gs://bucket/folder`, also after `Path` has shortened it to `gs:/bucket/folder`."""
UNFINISHED_SUFFIX = ".unfinished"
"""Suffix of hidden files that are being written."""


def is_remote(path: str | Path) -> bool:
    """Whether `path` is an address of an object store or server."""
    return ADDRESS.match(str(path)) is not None


def local(path: str | Path, option: str) -> Path:
    """`path` with `~` expanded; raises `InputError`, which names `option`, for an address such as gs://, or no path at all."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{option}={path!r:.60} has type {type(path).__name__}; give a path.")
    if is_remote(path):
        raise InputError(
            f"{option}={path} is an address, which this option does not accept; give a local path, or mount it (gcsfuse, s3fs)."
        )
    return Path(os.path.expanduser(path))


def matching(folder: Path, pattern: str | Path) -> list[Path]:
    """The files in `folder` that match a glob, sorted; hidden ones only if a part of the glob begins with a dot.

    `**` stands for folders at any depth. It enters linked ones too, but not a link to a folder around it.

    Raises:
      InputError: a folder cannot be read, or a match, such as a link to a file that was not fetched.
    """
    return sorted(set(_matching(folder, Path(pattern).parts)))


def _matching(path: Path, parts: Sequence[str]) -> Iterator[Path]:
    try:
        if not parts:
            yield from [] if stat.S_ISDIR(path.stat().st_mode) else [path]
        elif not glob.has_magic(parts[0]):
            yield from _matching(path / parts[0], parts[1:]) if os.path.lexists(path / parts[0]) else ()
        else:
            is_deep, names = parts[0] == "**", os.listdir(path) if path.is_dir() else ()
            yield from _matching(path, parts[1:]) if is_deep else ()
            for inner in (path / name for name in names if parts[0].startswith(".") or not name.startswith(".")):
                if is_deep and inner.is_dir():
                    leads_back = inner.is_symlink() and path.resolve().is_relative_to(inner.resolve())
                    yield from () if leads_back else _matching(inner, parts)
                elif fnmatch.fnmatch(inner.name, parts[0]) and not (is_deep and parts[1:]):
                    yield from _matching(inner, parts[1:])
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}; fetch it, or leave it out.") from None


@contextlib.contextmanager
def while_reading(path: Path | str) -> Iterator[None]:
    """Turns any error of a library, also a panic of Rust, into one line that names what was being read."""
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        advice = "is it complete? Fetch it again"
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            if file.read(40).startswith(b"version https://git-lfs.github.com/spec/"):
                advice = "it only points to a file that is not here: git lfs pull"
        raise InputError(f"{path} cannot be read ({error_line(error):.200}); {advice}.") from error


def read_json(path: Path) -> Any:
    """Parses a JSON file; raises `InputError` with the fault."""
    with while_reading(path):
        return json.loads(path.read_bytes())


def inside(root: Path, path: Path) -> Path:
    """Returns `path`; raises `InputError` if it leads out of `root`."""
    with while_reading(f"{root}: the path {path.name!r:.80}"):
        path.exists()  # a name that no file can have is an error here
        if not path.resolve().is_relative_to(root.resolve()):
            raise InputError(f"{path} leads out of the model's folder {root}; copy the folder into it if you trust it.")
    return path


def is_unfinished(path: Path) -> bool:
    """Whether it is a leftover of `drafted` in a killed program."""
    return path.name.startswith(".") and path.name.endswith(UNFINISHED_SUFFIX)


def write_atomic(path: Path, text: str) -> None:
    """Writes a text file by rename, so that readers see the old or the new content. Raises `OSError`, which names the file.

    Follows symbolic links and replaces their target. Writes to devices and pipes directly.
    """
    if is_special(path):
        path.write_text(text, encoding="utf-8")
        return
    path = without_links(path)
    try:
        with drafted(path) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        error.filename = str(path)  # a full disk gives no name, other errors give the temporary one
        raise


@contextlib.contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """Yields a hidden path beside `path` to write to, which then replaces `path`; an error changes nothing."""
    # Shortened, so that the suffix does not exceed the file system's limit on names.
    draft = path.with_name(f".{path.name[:40]}.{os.getpid()}{UNFINISHED_SUFFIX}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def try_writing(path: Path) -> None:
    """Raises `OSError` if a file cannot be written; call it before long work. Creates the folder, but leaves no file."""
    if is_special(path):  # opening and closing a pipe would signal end of file to its reader
        return
    path = without_links(path)
    is_new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.open("a", encoding="utf-8").close()
    if is_new:
        path.unlink()


def refuse_overwriting(output: Path, inputs: Iterable[Path]) -> None:
    """Raises `InputError` if the output is one of the input files, or a folder that contains one."""
    place = without_links(output)
    for path in map(without_links, inputs):
        if place in (path, *path.parents):
            what = "also an input file" if path == place else "the folder of an input file"
            raise InputError(f"{output} is {what}; choose another output.")


def refuse_no_folder(folder: Path) -> None:
    """Raises `InputError` if a folder cannot be created: a parent is a file or not writable."""
    there = local(folder, "--workdir")
    if there.is_symlink() and not there.exists():
        raise InputError(
            f"--workdir={folder} is a link to a folder that does not exist; make it, or name another folder."
        )
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise InputError(f"--workdir={folder}: {there} is not a directory; name another folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"--workdir={folder}: {there} is not writable; name another folder.")


def is_special(path: Path) -> bool:
    """Whether the path is a device or a pipe, which cannot be replaced by rename."""
    return path.exists() and not path.is_file() and not path.is_dir()


def without_links(path: Path) -> Path:
    """The path with symbolic links resolved."""
    return Path(os.path.realpath(path))


def folder_digest(folder: Path, pattern: str = "*") -> str:
    """SHA-256 of the names and contents of all files in a folder that match `pattern`, recursively."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob(pattern) if path.is_file()):
        digest.update(f"{path.relative_to(folder)} {file_digest(path)} ".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of the content of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unwritable(path: Path, error: OSError, remedy: str = "") -> InputError:
    """One-line error for a failed write; a `remedy` such as `; set X` ends it."""
    full = "no space left on the disk; free some space and run the same command again"
    reason = full if error.errno == errno.ENOSPC else error.strerror or str(error)
    return InputError(f"{path} could not be written: {reason}{remedy}.")


@contextlib.contextmanager
def writing(path: Path, remedy: str = "") -> Iterator[None]:
    """Turns an `OSError` into an `InputError` that names the path, see `unwritable`."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error, remedy) from error


def make_folder_atomic(
    folder: Path, fill: Callable[[Path], None], *, what: str, is_complete: Callable[[Path], bool] = Path.is_dir
) -> None:
    """Creates a cache folder under a temporary name, then renames it.

    Args:
      folder: final path, named by a digest of the content.
      fill: writes the content into the temporary folder.
      what: name of the content for errors.
      is_complete: whether a folder that another process has created in the meantime is usable.

    Raises:
      InputError: the folder cannot be written.
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
            f"free space there, or choose another cache folder (--config.data.cache_folder, JAXDISTILL_CACHE)."
        ) from None
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
