"""Reads PyTorch's `pytorch_model.bin` without PyTorch and without trusting it.

The file is a pickle, which can run any program when unpickled plainly. This reader admits the names that rebuild
tensors and nothing else; what those names do is defined here. Tensors stay plain tuples until the pickle is done, so
that no opcode can touch an array. Both forms are read: the zip archive (PyTorch 1.6 and later) and the older sequence
of pickles followed by raw storages.
"""

import contextlib
import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from jaxdistill.core import InputError
from jaxdistill.encoders.pickle_check import PICKLE_BYTES, pickle_length
from jaxdistill.files import reading

STORAGE_DTYPES = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}
MOST_AXES = 32
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_PROTOCOL = 1001
DAMAGED = (pickle.UnpicklingError, EOFError, zipfile.BadZipFile, KeyError, IndexError, ValueError, TypeError)
DAMAGED += (
    AttributeError,
    OverflowError,
    UnicodeDecodeError,
    RuntimeError,
    struct.error,
    OSError,
    MemoryError,
    NotImplementedError,
)
"""Exceptions that a damaged file can raise."""


class Storage(NamedTuple):
    """A block of numbers in the file."""

    kind: str
    key: str
    size: int


class LazyTensor(NamedTuple):
    """A view of a storage, as the pickle describes a tensor."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch_file(path: Path) -> dict[str, np.ndarray]:
    """Tensors of a `torch.save`d state dict.

    Raises:
      InputError: the file is damaged, or asks for anything that is not a tensor.
    """
    with _reading(path) as file:
        content, storages = _read_zip(file) if _is_zip(file) else _read_legacy(file)
        return {name: _array(tensor, storages) for name, tensor in _tensors(content).items()}


def shapes_of_torch_file(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes alone, without reading the numbers; raises `InputError` as `read_torch_file`."""
    with _reading(path) as file:
        content = _zip_content(file) if _is_zip(file) else _legacy_content(file)[0]
        return {name: tensor.shape for name, tensor in _tensors(content).items()}


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        with reading.open_regular(path) as file:
            yield file
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except DAMAGED as error:
        raise InputError(
            f"{path} cannot be read, it is truncated or damaged ({error!s:.200}); fetch it again."
        ) from None


def _is_zip(file: BinaryIO) -> bool:
    is_zip = zipfile.is_zipfile(file)
    file.seek(0)
    return is_zip


class _Unpickler(pickle.Unpickler):
    """Admits tensors and ordered dictionaries; everything else is refused by name."""

    def __init__(self, file: BinaryIO | io.BytesIO):
        super().__init__(file)
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        # Functions are created for each call, because a hostile pickle can set attributes of what it is given.
        if (module, name) in (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor")):
            return lambda storage, offset, shape, strides, *_: _lazy_tensor(storage, offset, shape, strides)
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in STORAGE_DTYPES:
            return name
        raise InputError(
            f"the file asks for {module}.{name}, which is no part of a tensor: refused. Ask its author for safetensors."
        )

    def persistent_load(self, pid: Any) -> Storage:
        tag, kind, key, _, size = pid[:5]
        if tag != "storage" or kind not in STORAGE_DTYPES or not isinstance(size, int) or size < 0:
            raise InputError("the file refers to something that is not a tensor's storage: refused.")
        if len(pid) > 5 and pid[5] is not None:
            raise InputError("the file has views of storages in PyTorch's oldest form; save it again with a newer one.")
        return self.storages.setdefault(str(key), Storage(kind, str(key), size))


def _lazy_tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> LazyTensor:
    shape, strides = tuple(shape), tuple(strides)
    whole = all(type(n) is int and 0 <= n < 1 << 62 for n in (offset, *shape, *strides))
    if not (isinstance(storage, Storage) and whole and len(shape) == len(strides) <= MOST_AXES):
        raise InputError("the file describes a tensor in a way that PyTorch never does: refused.")
    return LazyTensor(storage, offset, shape, strides)


def _array(tensor: LazyTensor, storages: dict[str, bytes]) -> np.ndarray:
    dtype = STORAGE_DTYPES[tensor.storage.kind]
    data = np.frombuffer(storages[tensor.storage.key], dtype)
    count = int(np.prod(tensor.shape, dtype=object))
    last = tensor.offset + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True))
    if count and (last >= data.size or count > data.size):
        raise InputError(f"a tensor of shape {list(tensor.shape)} reaches beyond its storage; the file is damaged.")
    if not count:
        return np.zeros(tensor.shape, dtype)
    strides = [stride * dtype.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(data[tensor.offset :], tensor.shape, strides, writeable=False)


def _size_bytes(storage: Storage) -> int:
    return storage.size * STORAGE_DTYPES[storage.kind].itemsize


def _tensors(content: Any) -> dict[str, LazyTensor]:
    if not isinstance(content, dict):
        raise InputError(f"the file holds a {type(content).__name__}, not a dictionary of tensors.")
    inner = content.get("state_dict", content)
    if not isinstance(inner, dict):
        raise InputError("the file's state_dict is not a dictionary of tensors.")
    return {str(name): value for name, value in inner.items() if isinstance(value, LazyTensor)}


def _unpickled(content: bytes) -> tuple[_Unpickler, Any, int]:
    """The first pickle in `content`, with the unpickler that read it and its length."""
    length = pickle_length(content)
    unpickler = _Unpickler(io.BytesIO(content[:length]))
    return unpickler, unpickler.load(), length


def _read_zip(file: BinaryIO) -> tuple[dict, dict[str, bytes]]:
    content = _zip_content(file)
    with zipfile.ZipFile(file) as archive:
        root, storages = _root(archive), {}
        for storage in {tensor.storage for tensor in _tensors(content).values()}:
            name = f"{root}data/{storage.key}"
            if archive.getinfo(name).file_size != _size_bytes(storage):
                raise InputError(f"storage {storage.key} has another size than the file says; it is damaged.")
            storages[storage.key] = archive.read(name)
    return content, storages


def _zip_content(file: BinaryIO) -> Any:
    """The object that an archive's pickle describes; entries must be uncompressed, as torch.save writes them."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
            raise InputError("the file's archive is compressed or encrypted, which torch.save does not do: refused.")
        if sum(entry.file_size for entry in entries) > file.seek(0, io.SEEK_END):
            raise InputError("the file's archive has entries that overlap: refused.")
        root = _root(archive)
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise InputError("the file was written on a big-endian machine; save it again on another.")
        with archive.open(f"{root}data.pkl") as packed:
            return _unpickled(packed.read(PICKLE_BYTES))[1]


def _root(archive: zipfile.ZipFile) -> str:
    return [name for name in archive.namelist() if name.endswith("data.pkl")][0].removesuffix("data.pkl")


def _read_legacy(file: BinaryIO) -> tuple[dict, dict[str, bytes]]:
    content, known, keys, start = _legacy_content(file)
    storages = {}
    file.seek(start)
    for key in keys:
        (size,) = struct.unpack("<q", file.read(8))
        if key not in known or size != known[key].size:
            raise InputError(f"storage {key} is not the one that the file describes; it is damaged.")
        storages[key] = file.read(_size_bytes(known[key]))
        if len(storages[key]) != _size_bytes(known[key]):
            raise InputError(f"the file ends inside storage {key}: it is truncated; fetch it again.")
    return content, storages


def _legacy_content(file: BinaryIO) -> tuple[Any, dict[str, Storage], list[str], int]:
    """Content, storages, keys of the storages in their order, and where they begin: the fourth and fifth pickle."""
    head, start, found = file.read(PICKLE_BYTES), 0, []
    for _ in range(5):
        found.append(_unpickled(head[start:]))
        start += found[-1][2]
        if found[0][1] != LEGACY_MAGIC:
            break
    values = [value for _, value, _ in found]
    if values[:2] != [LEGACY_MAGIC, LEGACY_PROTOCOL]:
        raise InputError("this is not a file of torch.save.")
    if not values[2].get("little_endian", True):
        raise InputError("the file was written on a big-endian machine; save it again on another.")
    return values[3], found[3][0].storages, values[4], start
