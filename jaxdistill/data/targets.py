"""Where do stored teacher targets live? Memory-mapped embeddings, made once and resumed, or the user's own vectors.

A store of targets lies in a folder named by the digest of everything that determines them (teacher's weights,
tokenizer, pooling, maximum length, precision, text), so targets of another teacher can never be read. Rows are written
in order; `progress.json` says how many are there.
"""

import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from jaxdistill.core import Embed, InputError

BLOCK_ROWS = 8192
"""Rows embedded and written at a time: what a killed run repeats at most."""

log = logging.getLogger(__name__)


class Targets:
    """Teacher embeddings of all rows of a text, complete or still being made."""

    def __init__(self, folder: Path, digest: str, rows: int, width: int, dtype: np.dtype):
        self.folder, self.digest, self.rows, self.width, self.dtype = folder, digest, rows, width, dtype
        self.done = 0
        """Rows that are there."""

    @property
    def path(self) -> Path:
        return self.folder / "targets.npy"

    @property
    def complete(self) -> bool:
        return self.done == self.rows

    @property
    def array(self) -> Float[np.ndarray, "rows e"]:
        """All targets, memory-mapped."""
        if not self.complete:
            raise InputError(f"{self.path} has {self.done} of {self.rows} rows; let the run that makes it finish.")
        return np.asarray(np.load(self.path, mmap_mode="r"))

    def append(self, block: Float[np.ndarray, "n e"]) -> None:
        """Writes the next rows behind those that are there."""
        if block.shape[1:] != (self.width,):
            raise InputError(f"the teacher's vectors have the shape {block.shape[1:]}, not ({self.width},).")
        block = block.astype(self.dtype)
        bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
        if len(bad):
            raise InputError(f"the teacher's vector of row {self.done + bad[0]} is not finite; check its weights.")
        self._write(block)
        self.done += len(block)
        self._note()

    def _write(self, block: np.ndarray) -> None:
        try:
            with open(self.path, "r+b") as file:
                file.seek(self._header_bytes() + self.done * self.width * self.dtype.itemsize)
                file.write(np.ascontiguousarray(block).tobytes())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unwritable(self.folder, error) from None

    def _header_bytes(self) -> int:
        with open(self.path, "rb") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
            return file.tell()

    def _begin(self) -> None:
        """An empty file with its header."""
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.path, "wb") as file:
                np.lib.format.write_array_header_1_0(file, header | {"shape": (self.rows, self.width)})
        except OSError as error:
            raise _unwritable(self.folder, error) from None
        self.done = 0
        self._note()

    def _description(self) -> dict:
        return {"digest": self.digest, "rows": self.rows, "width": self.width, "dtype": self.dtype.str}

    def _note(self) -> None:
        """Replaces `progress.json` in one move."""
        draft = self.folder / "progress.json.new"
        try:
            draft.write_text(json.dumps(self._description() | {"done": self.done}))
            os.replace(draft, self.folder / "progress.json")
        except OSError as error:
            raise _unwritable(self.folder, error) from None

    def _resume(self) -> bool:
        """Takes up what is there; False when it is of something else or damaged."""
        try:
            noted = json.loads((self.folder / "progress.json").read_text())
            done = int(noted.pop("done"))
            size = self._header_bytes() + done * self.width * self.dtype.itemsize
            sound = noted == self._description() and 0 <= done <= self.rows and self.path.stat().st_size >= size
        except (OSError, ValueError, KeyError, TypeError):
            return False
        self.done = done if sound else 0
        return sound


def open_targets(folder: str | Path, digest: str, rows: int, width: int, *, dtype: str = "float32") -> Targets:
    """The store of targets with that digest below `folder`: as far as it was made, or a new one.

    Args:
      folder: holds one folder for each digest.
      digest: of everything that determines the targets.
      rows, width: shape of the embeddings.
      dtype: float32 or float16.
    """
    targets = Targets(Path(folder) / digest, digest, rows, width, np.dtype(dtype))
    if targets.dtype not in (np.dtype(np.float32), np.dtype(np.float16)):
        raise InputError(f"targets are kept as float32 or float16, not {targets.dtype}.")
    existed = targets.folder.exists()
    if not targets._resume():
        if existed:
            log.warning("the targets in %s are damaged or of another shape and are made again", targets.folder)
        targets._begin()
    return targets


def fill(
    targets: Targets, embed: Embed, texts: Sequence[str], *, advance: Callable[[int], None] = lambda rows: None
) -> None:
    """Embeds the texts that are not done yet, block by block; a killed run goes on where it stopped.

    Args:
      embed: the teacher.
      texts: one for each row; may be lazy, only slices are read.
      advance: told how many rows are done, for a progress bar: first those found, then each block.
    """
    if len(texts) != targets.rows:
        raise InputError(f"{len(texts)} texts for targets of {targets.rows} rows.")
    advance(targets.done)
    while not targets.complete:
        block = texts[targets.done : min(targets.done + BLOCK_ROWS, targets.rows)]
        targets.append(np.asarray(embed(block)))
        advance(len(block))


def opened(path: str | Path) -> Float[np.ndarray, "rows e"]:
    """The user's own teacher vectors, memory-mapped and not looked into. Raises InputError: no .npy file of floats."""
    path = Path(str(path).removeprefix("vectors:")).expanduser()
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; vectors:FILE.npy names the teacher's vectors.") from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is no whole .npy file of numbers ({error}).") from None
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind != "f":
        got = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else "an archive"
        raise InputError(f"{path} holds {got}; it must be a float array [sentences, width].")
    return array


def vectors(path: str | Path, rows: int) -> Float[np.ndarray, "rows e"]:
    """As `opened`, checked: one row for each row of the text, empty rows and repeats included.

    Raises:
      InputError: also for another number of rows, or a value that is not finite (names the row).
    """
    path, array = str(path).removeprefix("vectors:"), opened(path)
    if array.shape[0] != rows or array.shape[1] < 1:
        raise InputError(
            f"{path} has {array.shape[0]} rows of {array.shape[1]}, the text has {rows}; give one vector a row."
        )
    for begin in range(0, rows, BLOCK_ROWS):
        bad = np.flatnonzero(~np.isfinite(array[begin : begin + BLOCK_ROWS]).all(axis=1))
        if len(bad):
            raise InputError(f"{path}: row {begin + bad[0]} is not finite; make that vector again.")
    return np.asarray(array)


class Selected:
    """Rows of an array by another numbering: the user's vectors by the store's rows (`store.input_row`)."""

    def __init__(self, array: Float[np.ndarray, "n e"], place: Int[np.ndarray, " rows"]):
        self._array, self._place = array, place
        self.shape = (len(place), *array.shape[1:])

    def __len__(self) -> int:
        return len(self._place)

    def __getitem__(self, rows) -> Float[np.ndarray, "..."]:
        return self._array[self._place[rows]]


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"the targets cannot be written in {folder}: {error.strerror}; free space or choose another folder."
    )
