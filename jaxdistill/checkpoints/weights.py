"""Maps a checkpoint's tensors to parameters, and back.

Files are safetensors or PyTorch's `pytorch_model.bin`, single or sharded. Kernels are transposed, because torch stores
`[out, in]`.
"""

import errno
import json
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from jaxdistill.core import InputError
from jaxdistill.encoders.hugging_face import Part
from jaxdistill.encoders.settings import read_settings, refuse_adapter, setting
from jaxdistill.files import inside, while_reading

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""File names of weights, in the order in which they are tried."""

NARROW = {
    "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "BOOL": np.bool_,
}  # fmt: skip
"""NumPy's dtypes of names that do not say their kind and size, as F32 does."""
OUTER_PREFIXES = ("", "model.", "module.", "auto_model.", "0.auto_model.", "encoder.", "0.")
"""Prefixes that training programs add to names, before the family's own prefix."""

KNOWN_EXTRAS = re.compile(
    r"(^|\.)(position_ids|inv_freq|pooler\.(dense\.)?(weight|bias))$"
    r"|^(\w+\.)?(cls|lm_head|classifier|pre_classifier|mlp|qa_outputs|seq_relationship|vocab_\w+|fit_denses?"
    r"|discriminator_predictions|generator_predictions|generator_lm_head|linear|head|decoder|score|predictions)(\.|$)"
)
"""Tensors that a sentence encoder does not use: buffers, an unread pooler, pre-training and task heads."""


def read_checkpoint(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of the checkpoint in `folder`, by their names in the file; raises `InputError` if it has a LoRA adapter."""
    refuse_adapter(folder)
    tensors: dict[str, np.ndarray] = {}
    for path in _weight_files(folder):
        tensors |= read_safetensors(path) if path.suffix == ".safetensors" else read_torch_file(path)
    return tensors


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Maps names to tensors in the stored dtype, which stay in the file until they are used: safetensors' own interface copies them."""
    with while_reading(path):
        safetensors.safe_open(path, "np")  # checks that the header describes the file
        content = np.memmap(path, np.uint8, "r")
        start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        entries = json.loads(content[8:start].tobytes())
        entries.pop("__metadata__", None)
        return {name: _tensor(content[start:], **entry) for name, entry in entries.items()}


def _tensor(data: np.ndarray, *, dtype: str, shape: list[int], data_offsets: list[int]) -> np.ndarray:
    own = NARROW.get(dtype) or f"{dtype[0].lower()}{int(dtype[1:]) // 8}"
    return data[slice(*data_offsets)].view(np.dtype(own)).reshape(shape)


def read_torch_file(path: Path) -> dict[str, np.ndarray]:
    """Tensors of a `torch.save`d state dict, which PyTorch reads without running code of the file.

    Raises:
      InputError: PyTorch is not installed, or the file is damaged or asks for anything that is not a tensor.
    """
    try:
        import torch
    except ImportError:
        raise InputError(
            f"{path} is a file that only PyTorch reads: pip install torch, or use a checkpoint with "
            'model.safetensors (to convert, with torch: safetensors.torch.save_file(torch.load("pytorch_model.bin"), '
            '"model.safetensors")).'
        ) from None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise errors of many kinds
        # PyTorch's own message is not shown: it advises loading the file without protection.
        name = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = (
            f"it asks for {name[1]}, which is not a tensor" if name else "it is truncated or damaged, or no state dict"
        )
        raise InputError(f"{path} cannot be read: {what}; fetch it again, or ask its author for safetensors.") from None
    content = content.get("state_dict", content) if isinstance(content, dict) else {}
    tensors = {str(name): value.detach() for name, value in content.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise InputError(f"{path} holds no named tensors; download it again.")
    # NumPy has no bfloat16; float32 holds all of its values.
    return {name: (one.float() if one.dtype == torch.bfloat16 else one).numpy() for name, one in tensors.items()}


def params_from_tensors(
    tensors: Mapping[str, np.ndarray],
    names: Mapping[str, str | Part],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    prefixes: Sequence[str] = (),
    source: str,
    frozen: bool = False,
) -> dict[str, np.ndarray]:
    """Parameters by our paths; raises `InputError` for missing or unknown tensors, wrong shapes and NaN.

    Args:
      tensors: the checkpoint's tensors.
      names: maps our paths to names in a plain encoder's checkpoint, or to parts of tensors.
      shapes: maps our paths to shapes.
      prefixes: prefixes of names in the family's task models.
      source: the folder, for errors.
      frozen: keep bfloat16 and do not copy tensors; otherwise all become float32 in memory.
    """
    tensors = _without_prefix(tensors, set(_tensor_names(names)), prefixes)
    params = {
        path: _parameter(tensors, name, path, shapes[path], source=source, frozen=frozen)
        for path, name in names.items()
    }
    unknown = sorted(name for name in tensors.keys() - set(_tensor_names(names)) if not KNOWN_EXTRAS.search(name))
    if unknown:
        raise InputError(
            f"{source}: config.json has no place for tensor {unknown[0]} ({len(unknown)} such);"
            " it must describe the weights next to it."
        )
    return params


def tensors_from_params(params: Mapping[str, np.ndarray], names: Mapping[str, str | Part]) -> dict[str, np.ndarray]:
    """The inverse of `params_from_tensors`: tensors by the checkpoint's names."""
    parts: dict[str, dict[int, np.ndarray]] = {}
    for path, name in names.items():
        tensor, index = (name.name, name.index) if isinstance(name, Part) else (name, 0)
        parts.setdefault(tensor, {})[index] = as_torch_lays_it(path, np.asarray(params[path], np.float32))
    return {
        name: np.concatenate([rows[index] for index in sorted(rows)]) if len(rows) > 1 else rows[0]
        for name, rows in parts.items()
    }


def _tensor_names(names: Mapping[str, str | Part]) -> list[str]:
    return [name.name if isinstance(name, Part) else name for name in names.values()]


def as_torch_lays_it(path: str, array: np.ndarray) -> np.ndarray:
    """A parameter in torch's layout, or back: kernels are transposed."""
    return np.ascontiguousarray(array.T if path.endswith("/kernel") else array)


def write_safetensors(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    """Writes tensors in the form that transformers and sentence-transformers read; raises `OSError`."""
    path.touch()  # with the user's default permissions; safetensors itself would let only the owner read the file
    mode = path.stat().st_mode
    try:
        safetensors.numpy.save_file(dict(tensors), path, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:  # the number of the system's error is in its text alone
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from None
    path.chmod(mode)


def _parameter(tensors, where: str | Part, path: str, shape: tuple[int, ...], source: str, frozen: bool):
    name, index, count = (where.name, where.index, where.count) if isinstance(where, Part) else (where, 0, 1)
    if name not in tensors:
        raise InputError(f"{source}: tensor {name} is missing from the weights; the checkpoint is incomplete.")
    tensor = tensors[name]
    expected = shape[::-1] if path.endswith("/kernel") else shape
    expected = (count * expected[0], *expected[1:])
    if tensor.shape != expected:
        raise InputError(
            f"{source}: tensor {name} has shape {list(tensor.shape)}, expected {list(expected)} by config.json."
        )
    if tensor.dtype.kind in "iub":
        raise InputError(
            f"{source}: tensor {name} has {tensor.dtype} numbers; only weights of floats can be read: dequantize() the model in "
            "transformers and save it again."
        )
    rows = np.split(tensor, count)[index]
    if frozen and rows.dtype in (np.float32, ml_dtypes.bfloat16):
        array = rows.T if path.endswith("/kernel") else rows
    else:
        array = as_torch_lays_it(path, rows.astype(np.float32))  # a copy: the file may change
    if not np.isfinite(array).all():
        raise InputError(f"{source}: tensor {name} has NaN or infinite values; the checkpoint is damaged.")
    return array


def _without_prefix(tensors, wanted: Set[str], prefixes: Sequence[str]) -> dict[str, np.ndarray]:
    tried = [outer + inner for inner in ("", *prefixes) for outer in OUTER_PREFIXES]
    prefix = max(tried, key=lambda prefix: sum(prefix + name in tensors for name in wanted))
    modern = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    # BERT's first checkpoints call LayerNorm's parameters gamma and beta.
    return {re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name)): t for name, t in modern.items()}


def _weight_files(folder: Path) -> list[Path]:
    """A checkpoint's weight files: a single one, or the shards that an index lists."""
    for path in (folder / name for name in WEIGHT_FILES):
        if path.name.endswith(".index.json") and path.exists():
            names = setting(read_settings(path), "weight_map", dict, file=path).values()
            return [inside(folder, folder / name) for name in sorted(set(map(str, names)))]
        if path.exists():
            return [path]
    raise InputError(f"{folder} has no weights; looked for {', '.join(WEIGHT_FILES)}.")
