"""Opens untrusted files: only regular ones, links only within their folder, lines and JSON of bounded size."""

import bz2
import codecs
import contextlib
import gzip
import json
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

from jaxdistill.core import InputError, error_line

LINE_BYTES = 16 << 20
"""Default maximum of a line of text or a table cell."""
JSON_BYTES = 64 << 20
"""Maximum size of a model's JSON file."""
BLOCK_BYTES = 1 << 20
"""Bytes read at a time."""
KERNEL_FOLDERS = ("/proc", "/sys")
"""Files here look regular but expose the state of processes, such as their environment."""
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}

POINTERS = {b"version https://git-lfs.github.com/spec/": "git lfs pull", b"/annex/objects/": "git annex get"}
"""First bytes of files that stand for one that was not fetched, with the command that fetches it."""
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
NO_TEXT = {
    b"\x1f\x8b": "gzip: add .gz to its name",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"BZh": "bzip2: add .bz2 to its name",
    b"\xfd7zXZ": "xz: add .xz to its name",
    b"\x28\xb5\x2f\xfd": "Zstandard: unpack it",
    b"PAR1": "Parquet: let its name end in .parquet",
    b"%PDF-": "PDF: write its text into a file, for instance with pdftotext",
    b"\x89PNG": "an image: leave it out",
    b"\xff\xd8\xff": "an image: leave it out",
}
"""First bytes of files that are not text, with what they are and what to do with them."""


@runtime_checkable
class Readable(Protocol):
    """A binary file, or a decompressing reader of one."""

    def read(self, size: int = -1, /) -> bytes: ...


class Members:
    """Decompresses all members of a file, one after another.

    The standard library's readers of bzip2 and xz silently leave out what follows a member if it is damaged at its start.
    """

    def __init__(self, file: BinaryIO, member: Callable[[], Any]):
        """
        Args:
          member: makes the decompressor of one member.
        """
        self._file, self._new, self._member = file, member, member()

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, all if negative; raises `EOFError`, `OSError` or `LZMAError` for a damaged file."""
        read, data = [], b""
        while size:
            if self._member.eof:
                if not (data := self._begin_of_next()):
                    break
                self._member = self._new()
            elif self._member.needs_input and not (data := self._file.read(BLOCK_BYTES)):
                raise EOFError("it ends within a member")
            read.append(self._member.decompress(data, size))
            size, data = size - len(read[-1]) if size > 0 else size, b""
        return b"".join(read)

    def _begin_of_next(self) -> bytes:
        """What follows a member, without padding."""
        rest = self._member.unused_data.lstrip(b"\0")
        while not rest and (block := self._file.read(BLOCK_BYTES)):
            rest = block.lstrip(b"\0")
        return rest


PACKED: dict[str, tuple[str, Callable[[BinaryIO], Readable]]] = {
    ".gz": ("gzip", lambda file: gzip.GzipFile(fileobj=file)),
    ".bz2": ("bzip2", lambda file: Members(file, bz2.BZ2Decompressor)),
    ".xz": ("xz", lambda file: Members(file, lzma.LZMADecompressor)),
}
"""Suffixes of compressed files, with the names of their formats and the functions that open them."""


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading.

    Raises:
      InputError: the file is missing, not readable, or not regular (a folder, a pipe, a device).
    """
    try:
        # Without O_NONBLOCK, opening a pipe blocks until it has a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: the name contains NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{str(path)!r} cannot be read: {reason}.") from None
    mode = stat.S_IFMT(os.fstat(handle).st_mode)
    real = os.path.realpath(path)
    if mode == stat.S_IFREG and not any(real.startswith(f"{folder}/") for folder in KERNEL_FOLDERS):
        file = os.fdopen(handle, "rb")
        if command := next((POINTERS[begin] for begin in POINTERS if file.peek(64).startswith(begin)), ""):
            file.close()
            raise InputError(f"{path} only points to a file that is not here; fetch it with {command}.")
        return file
    os.close(handle)
    raise InputError(f"{path} is {KINDS.get(mode, 'a file of the kernel')}; only regular files can be read.")


def regular(path: Path) -> Path:
    """Returns the path, for a library that opens it itself; raises `InputError` as `open_regular` does."""
    open_regular(path).close()
    return path


@contextlib.contextmanager
def opened_text(path: Path) -> Iterator[Readable]:
    """Opens a regular text file, decompressed if its name says so; turns read errors inside into `InputError`."""
    kind, unpack = PACKED.get(path.suffix.lower(), ("", None))
    try:
        with open_regular(path) as file:
            yield unpack(file) if unpack else file
    except (lzma.LZMAError, EOFError, zlib.error, OSError) as error:
        if kind and not getattr(error, "errno", None):  # gzip and bz2 raise OSError of no number for damaged content
            raise InputError(f"{path} is not a complete {kind} file ({error}); fetch it again.") from None
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def unpacked_name(path: Path | str) -> str:
    """The name of a file in lower case, without a compression's suffix."""
    name = os.path.basename(path).lower()
    return next((name.removesuffix(suffix) for suffix in PACKED if name.endswith(suffix)), name)


def lines(path: Path, file: Readable, limit_bytes: int = LINE_BYTES) -> Iterator[tuple[int, str]]:
    r"""Yields `(number, text)` of each line, with its line end \n, \r\n or \r. Drops a byte order mark.

    Raises:
      InputError: a line is longer than the limit or not UTF-8; the error names the line.
    """
    for number, line in enumerate(_byte_lines(file, limit_bytes), start=1):
        if number == 1:
            _refuse_other_content(path, line)
        if len(line) > limit_bytes:
            raise too_long(f"{path}:{number}", limit_bytes)
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            encoding = "utf-16" if line.startswith(UTF_16) else "latin1"
            raise InputError(
                f"{path}:{number} is not UTF-8 (byte {line[error.start]:#04x} at {error.start}); "
                f"convert the file from its own encoding, for instance with iconv -f {encoding} -t utf-8."
            ) from None


def _refuse_other_content(path: Path, line: bytes) -> None:
    """Raises `InputError` if the first line shows another kind of file, or UTF-16 without a byte order mark."""
    advice = next((advice for begin, advice in NO_TEXT.items() if line.startswith(begin)), "")
    if advice and (
        b"\0" in line or not _is_utf8(line) or line.startswith(b"%PDF-")
    ):  # a PDF begins with a line of text
        raise InputError(f"{path} is not text but {advice}.")
    if 4 * line.count(0) > len(line) and not line.startswith(UTF_16):
        order = "le" if line[0] else "be"
        raise InputError(
            f"{path}:1 has a NUL in every other byte, as UTF-16 has; convert the file with iconv -f utf-16{order} -t utf-8."
        )


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def too_long(place: str, limit_bytes: int) -> InputError:
    """Error for a line or cell above the limit."""
    return InputError(f"{place} is longer than {limit_bytes:,} bytes; is this a file of text?")


def read_json(path: Path) -> Any:
    """Parses a JSON file; raises `InputError` with the fault."""
    with open_regular(path) as file:
        content = file.read(JSON_BYTES + 1)
    if len(content) > JSON_BYTES:
        raise InputError(f"{path} is larger than {JSON_BYTES:,} bytes; it is not a model's JSON file.")
    return parsed_json(content, str(path))


def parsed_json(content: str | bytes, place: str) -> Any:
    """Parses JSON; raises `InputError`, also for deep nesting and numbers with thousands of digits."""
    try:
        return json.loads(content)
    except RecursionError:
        raise InputError(f"{place} is not readable JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise InputError(f"{place} is not valid JSON ({error!s:.200}).") from None


def inside(root: Path, path: Path) -> Path:
    """Returns `path` if it lies in `root` after resolving links.

    Links from a snapshot of the hub's cache (`snapshots/REVISION`) to the `blobs` beside it are allowed.

    Raises:
      InputError: `path` lies outside.
    """
    real_root = Path(os.path.realpath(root))
    allowed = [real_root]
    if real_root.parent.name == "snapshots":
        allowed.append(real_root.parent.parent / "blobs")
    try:
        path.exists()
        real = Path(os.path.realpath(path))
    except (OSError, ValueError) as error:  # the name is too long or contains NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{root} names the path {path.name!r:.80}, which no file can have: {reason}.") from None
    if not any(real.is_relative_to(folder) for folder in allowed):
        raise InputError(
            f"{path} leads out of the model's folder {root}; copy the file into it if you trust where it comes from."
        )
    return path


@contextlib.contextmanager
def foreign_errors(what: str) -> Iterator[None]:
    """Turns any error of a native library into `InputError`, also Rust panics, which are not an `Exception`."""
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise InputError(f"{what} ({error_line(error):.200}).") from None


def _byte_lines(file: Readable, limit_bytes: int) -> Iterator[bytes]:
    """Yields lines. A line above the limit comes last, cut off where reading stopped."""
    rest = b""
    # Blocks grow with the unfinished line, so that joining them stays linear in its length.
    while block := file.read(max(BLOCK_BYTES, len(rest))):
        whole = (rest + block).splitlines(keepends=True)
        # A final \r may be the first half of \r\n.
        rest = b"" if whole[-1].endswith(b"\n") else whole.pop()
        yield from whole
        if len(rest) > limit_bytes:
            break
    if rest:
        yield rest
