"""Writes files and folders atomically: under a temporary name first, so that a killed run leaves no incomplete ones.

An output folder has a marker, a JSON file that lists the files that this package wrote with their digests. All other files belong
to the user, and stay when the folder is replaced.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdistill.core import InputError, error_line

UNFINISHED_SUFFIX = ".unfinished"
"""Suffix of hidden files and folders that are being written."""
MARK = "jaxdistill.json"
"""Marker of a folder that may be replaced; lists the files that this package wrote."""


def is_remote(path: str | Path) -> bool:
    """Whether `path` is an address such as `gs://bucket/folder`, or `gs:/bucket/folder`, to which `Path` shortens it."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/{1,2}[^/]", str(path)) is not None


def local(path: str | Path, option: str) -> Path:
    """The path that `option` names, with `~` expanded; raises `InputError` for an address such as gs://."""
    if is_remote(path):
        raise InputError(f"{option}={path} is an address, which this option does not accept; give a local path.")
    return Path(os.path.expanduser(path))


def output_file(path: str | Path, suffixes: Sequence[str]) -> Path:
    """The absolute path that the option `output` names; raises `InputError` if it ends in none of `suffixes`."""
    path = local(path, "output").resolve()
    if path.suffix not in suffixes:
        raise InputError(f"output={path} must end in {' or '.join(suffixes)}.")
    return path


@contextlib.contextmanager
def foreign_errors(what: str) -> Iterator[None]:
    """Turns any other error in the `with` block, even a panic in Rust, into an `InputError` of one line that begins with `what`."""
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic is not an `Exception`
        raise InputError(f"{what} ({error_line(error):.200}).") from error


def while_reading(path: Path | str) -> contextlib.AbstractContextManager[None]:
    """`foreign_errors` for a `with` block that reads a file."""
    return foreign_errors(f"{path} cannot be read; is it complete, and fetched (git lfs pull)?")


def read_json(path: Path) -> Any:
    """Parses a JSON file; raises `InputError` if it cannot be read."""
    with while_reading(path):
        return json.loads(path.read_bytes())


def inside(root: Path, path: Path) -> Path:
    """Returns `path`; raises `InputError` if it leads out of `root` by `..` or as an absolute path. Links are not followed: the hub's
    cache has links to files outside of the model's folder."""
    if not Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root)):
        raise InputError(f"{path} leads out of the model's folder {root}; copy it into the folder if you trust it.")
    return path


@contextlib.contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """Yields a hidden path beside `path` for a new file or folder, and renames it to `path` at the end, unless an error occurs."""
    # The name is shortened so that, with the suffix, it does not exceed the file system's limit.
    draft = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}{UNFINISHED_SUFFIX}")
    try:
        yield draft
        draft.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # without one if the disk is full
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        draft.unlink(missing_ok=True)


def write_atomic(path: Path, text: str) -> None:
    """Writes a text file by rename, so that readers see the old or the new content. Follows a symbolic link."""
    with drafted(path.resolve()) as draft:
        draft.write_text(text, encoding="utf-8")


def try_writing(path: Path) -> None:
    """Raises `InputError` if a file cannot be written; call it before long work. Creates the file's folder, but leaves no new file."""
    with writing(path):
        is_new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a", encoding="utf-8").close()
        if is_new:
            path.unlink()


def file_digest(path: Path) -> str:
    """SHA-256 of the content of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def writing(path: Path, remedy: str = "") -> Iterator[None]:
    """Turns an `OSError` in the `with` block into an `InputError` that names `path` and ends with a `remedy` such as `; set X`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} could not be written: {error.strerror or error}{remedy}.") from error


def marked_files(folder: Path) -> dict[str, str]:
    """The digests in the folder's marker, by file; empty if there is no marker, or the marker has no list of files."""
    return read_json(folder / MARK).get("files", {}) if (folder / MARK).is_file() else {}


def file_digests(folder: Path) -> dict[str, str]:
    """The digests of all files in a folder and its subfolders, by path inside it."""
    return {name: file_digest(folder / name) for name in file_names(folder)}


def changed_files(folder: Path) -> list[str]:
    """The files, of those that the folder's marker lists, that have been changed or removed."""
    present = file_digests(folder)
    return [name for name, digest in marked_files(folder).items() if present.get(name) != digest]


def refuse_foreign(folder: Path, *, advice: str = "Give another --out.") -> None:
    """Raises `InputError` if the path is a file, or a non-empty folder without a marker."""
    is_unmarked = folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file()
    if folder.is_file() or is_unmarked:
        raise InputError(f"{folder} exists and is not an export of this program; it is not overwritten. {advice}")


@contextlib.contextmanager
def replacing(folder: Path, facts: Mapping[str, Any]) -> Iterator[Path]:
    """Yields a path for a new version of `folder`, which replaces `folder` at the end; an error leaves `folder` as it was.
    Files that the user has added or edited stay, as `NAME.edited` if the new version has a file of that name. The new marker holds
    `facts` and the list of files. Raises `InputError` if `folder` is not empty and has no marker."""
    new = folder.with_name(f".{folder.name[:40]}.new{UNFINISHED_SUFFIX}")
    old = folder.with_name(f".{folder.name[:40]}.old{UNFINISHED_SUFFIX}")
    if old.is_dir() and not folder.exists():  # a program was killed between the two renames below
        old.rename(folder)
    refuse_foreign(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        yield new
        new_digests = file_digests(new)
        old_digests = marked_files(folder)
        if new_digests == old_digests and not changed_files(folder):  # the folder already is the new version
            return
        (new / MARK).write_text(json.dumps({**facts, "files": new_digests}, indent=2) + "\n", encoding="utf-8")
        # Copies the files that the user has added or edited since the old version was written.
        for name, digest in file_digests(folder).items():
            if name != MARK and digest != old_digests.get(name):
                copy = new / (f"{name}.edited" if name in new_digests else name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(folder / name, copy)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def file_names(folder: Path) -> list[str]:
    """The paths, inside a folder, of all files in it and its subfolders; sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
