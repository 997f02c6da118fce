"""How do a checkpoint's tensors become our parameters, and back?

Files may be safetensors or PyTorch's `pytorch_model.bin`, whole or in shards. Kernels are transposed on the way: torch
keeps `[out, in]`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401  (lets safetensors return bfloat16 as NumPy arrays)
import numpy as np
import safetensors
import safetensors.numpy

from jaxdistill.core import InputError
from jaxdistill.encoders.torch_file import read_torch_file

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Names under which weights are looked for, in this order."""

OUTER_PREFIXES = ("", "model.", "module.", "auto_model.", "0.auto_model.", "encoder.", "0.")
"""What training programs put before the names, ahead of the family's own prefix."""

KNOWN_EXTRAS = re.compile(
    r"(^|\.)(position_ids|pooler\.dense\.(weight|bias))$"
    r"|^(\w+\.)?(cls|lm_head|classifier|pre_classifier|mlp|qa_outputs|seq_relationship|vocab_\w+|fit_denses?"
    r"|discriminator_predictions|generator_predictions|generator_lm_head|linear)(\.|$)"
)
"""Tensors that a sentence encoder does not use: buffers, an unread pooler, heads of pre-training and of tasks."""


def read_checkpoint(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of the checkpoint in `folder`, by the names that they have in the file."""
    for name in WEIGHT_FILES:
        path = folder / name
        if path.exists():
            return _read_shards(path) if name.endswith(".index.json") else _read_file(path)
    raise InputError(f"{folder} has no weights; looked for {', '.join(WEIGHT_FILES)}.")


def params_from_tensors(
    tensors: Mapping[str, np.ndarray],
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    prefixes: Sequence[str] = (),
    source: str,
) -> dict[str, np.ndarray]:
    """Parameters by our paths, float32, checked: nothing missing, no other shape, no NaN, nothing unknown left over.

    Args:
      tensors: as read.
      names: our path to the tensor's name in a plain encoder's checkpoint.
      shapes: our path to the parameter's shape.
      prefixes: what the family's task models put before the names.
      source: the folder, for messages.
    """
    tensors = _without_prefix(tensors, next(iter(names.values())), prefixes)
    params = {path: _parameter(tensors, name, path, shapes[path], source) for path, name in names.items()}
    unknown = sorted(name for name in tensors.keys() - set(names.values()) if not KNOWN_EXTRAS.search(name))
    if unknown:
        raise InputError(
            f"{source}: config.json leaves no place for tensor {unknown[0]} ({len(unknown)} such);"
            " it must describe the weights beside it."
        )
    return params


def tensors_from_params(params: Mapping[str, np.ndarray], names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The inverse: tensors by a checkpoint's names."""
    return {name: as_torch_lays_it(path, np.asarray(params[path], np.float32)) for path, name in names.items()}


def as_torch_lays_it(path: str, array: np.ndarray) -> np.ndarray:
    """A parameter in torch's layout, or back: kernels are transposed."""
    return np.ascontiguousarray(array.T if path.endswith("/kernel") else array)


def write_safetensors(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    """Writes tensors so that transformers and sentence-transformers read them."""
    path.touch()  # with the user's usual permissions, where safetensors alone would let only the owner read
    mode = path.stat().st_mode
    safetensors.numpy.save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(mode)


def _parameter(tensors, name: str, path: str, shape: tuple[int, ...], source: str) -> np.ndarray:
    if name not in tensors:
        raise InputError(f"{source}: tensor {name} is missing from the weights; the checkpoint is incomplete.")
    tensor = tensors[name]
    expected = shape[::-1] if path.endswith("/kernel") else shape
    if tensor.shape != expected:
        raise InputError(
            f"{source}: tensor {name} has shape {list(tensor.shape)}, expected {list(expected)} by config.json."
        )
    array = as_torch_lays_it(path, tensor.astype(np.float32))
    if not np.isfinite(array).all():
        raise InputError(f"{source}: tensor {name} has NaN or infinite values; the checkpoint is damaged.")
    return array


def _without_prefix(tensors, anchor: str, prefixes: Sequence[str]) -> dict[str, np.ndarray]:
    for prefix in (outer + inner for inner in ("", *prefixes) for outer in OUTER_PREFIXES):
        if prefix + anchor in tensors:
            break
    else:
        prefix = ""
    modern = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    # BERT's first checkpoints call LayerNorm's parameters gamma and beta.
    return {re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name)): t for name, t in modern.items()}


def _read_file(path: Path) -> dict[str, np.ndarray]:
    if path.suffix != ".safetensors":
        return read_torch_file(path)
    try:
        return safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(f"{path} cannot be read, it is truncated or damaged ({error}); fetch it again.") from None


def _read_shards(index: Path) -> dict[str, np.ndarray]:
    try:
        files = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InputError(f"{index} is not an index of weight files: it has no readable weight_map.") from None
    tensors: dict[str, np.ndarray] = {}
    for name in files:
        path = index.parent / name
        if Path(name).name != name or not path.exists():
            raise InputError(f"{index} names the shard {name!r}, which is not beside it; fetch all files of the model.")
        tensors |= _read_file(path)
    return tensors
