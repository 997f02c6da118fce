"""Maps a checkpoint's tensors to parameters, and back.

Files are safetensors or PyTorch's `pytorch_model.bin`, single or sharded. Kernels are transposed, because torch stores
`[out, in]`.
"""

import errno
import os
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy

from jaxdistill.checkpoints.lora import with_adapter
from jaxdistill.checkpoints.safetensors_file import mapped_safetensors, read_safetensors, shapes_of_safetensors
from jaxdistill.core import InputError
from jaxdistill.encoders.architecture import SHORTEST, Architecture
from jaxdistill.encoders.hugging_face import Part
from jaxdistill.files import reading

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""File names of weights, in the order in which they are tried."""

SIZES = ("vocab_size", "hidden_size", "layers", "heads", "intermediate_size", "max_positions")
SIZES += ("token_types", "embedding_size", "relative_buckets", "head_size", "key_heads")
"""Fields of an architecture that must not exceed the sizes of the weights."""

OUTER_PREFIXES = ("", "model.", "module.", "auto_model.", "0.auto_model.", "encoder.", "0.")
"""Prefixes that training programs add to names, before the family's own prefix."""

KNOWN_EXTRAS = re.compile(
    r"(^|\.)(position_ids|inv_freq|pooler\.(dense\.)?(weight|bias))$"
    r"|^(\w+\.)?(cls|lm_head|classifier|pre_classifier|mlp|qa_outputs|seq_relationship|vocab_\w+|fit_denses?"
    r"|discriminator_predictions|generator_predictions|generator_lm_head|linear|head|decoder|score|predictions)(\.|$)"
)
"""Tensors that a sentence encoder does not use: buffers, an unread pooler, pre-training and task heads."""


def read_checkpoint(folder: Path, *, mapped: bool = False) -> dict[str, np.ndarray]:
    """All tensors of the checkpoint in `folder`, by their names in the file, with a LoRA adapter merged.

    Args:
      mapped: keep tensors of safetensors in their files until they are used.
    """
    tensors: dict[str, np.ndarray] = {}
    read = mapped_safetensors if mapped else read_safetensors
    for path in _weight_files(folder):
        tensors |= read(path) if path.suffix == ".safetensors" else read_torch_file(path)
    return with_adapter(tensors, folder)


def checkpoint_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Maps names of all tensors to shapes; reads only the files' headers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in _weight_files(folder):
        if path.suffix == ".safetensors":
            shapes |= shapes_of_safetensors(path)
        else:
            shapes |= {name: tuple(tensor.shape) for name, tensor in _torch_tensors(path).items()}
    return shapes


def read_torch_file(path: Path) -> dict[str, np.ndarray]:
    """Tensors of a `torch.save`d state dict, which PyTorch reads without running code of the file.

    Raises:
      InputError: PyTorch is not installed, or the file is damaged or asks for anything that is not a tensor.
    """
    # NumPy has no bfloat16; float32 holds all of its values.
    return {
        name: tensor.detach().float().numpy() if str(tensor.dtype) == "torch.bfloat16" else tensor.detach().numpy()
        for name, tensor in _torch_tensors(path).items()
    }


def _torch_tensors(path: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        raise InputError(
            f"{path} is a file that only PyTorch reads: pip install torch, or use a checkpoint with "
            'model.safetensors (to convert, with torch: safetensors.torch.save_file(torch.load("pytorch_model.bin"), '
            '"model.safetensors")).'
        ) from None
    with reading.open_regular(path) as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # damaged files raise errors of many kinds
            # PyTorch's own message is not shown: it advises loading the file without protection.
            asked = re.search(r"GLOBAL ([\w.]+)", str(error))
            what = (
                f"it asks for {asked[1]}, which is not a tensor"
                if asked
                else "it is truncated or damaged, or no state dict"
            )
            raise InputError(
                f"{path} cannot be read: {what}; fetch it again, or ask its author for safetensors."
            ) from None
    content = content.get("state_dict", content) if isinstance(content, dict) else content
    tensors = (
        {str(k): v for k, v in content.items() if isinstance(v, torch.Tensor)} if isinstance(content, dict) else {}
    )
    if not tensors:
        raise InputError(f"{path} holds a {type(content).__name__}, not named tensors; download it again.")
    return tensors


def check_sizes(architecture: Architecture, shapes: Mapping[str, tuple[int, ...]], *, source: str) -> None:
    """Raises `InputError` if `config.json` describes a larger encoder than the weights; call it before building one."""
    longest = max((size for shape in shapes.values() for size in shape), default=0)
    for name in SIZES:
        if name == "max_positions" and not architecture.position_table:
            continue  # rotary positions have no weights
        size, most = getattr(architecture, name), len(shapes) if name == "layers" else longest
        if size > most:
            has = f"{most:,} tensors" if name == "layers" else f"no axis longer than {most:,}"
            raise InputError(f"{source}: config.json describes {name}={size:,}, but the weights next to it have {has}.")
    if architecture.longest < SHORTEST:
        raise InputError(
            f"{source}: config.json leaves {architecture.longest:,} positions to a sentence (max_position_embeddings "
            f"{architecture.max_positions:,}, pad_token_id {architecture.pad_id:,}); at least {SHORTEST} are needed."
        )


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
      frozen: keep bfloat16 and do not copy tensors; otherwise all become float32.
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
        array = as_torch_lays_it(path, rows.astype(np.float32, copy=False))
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
    for name in WEIGHT_FILES:
        if os.path.lexists(folder / name):  # also a link to weights that were not fetched
            return _shards(folder / name) if name.endswith(".index.json") else [folder / name]
    raise InputError(f"{folder} has no weights; looked for {', '.join(WEIGHT_FILES)}.")


def _shards(index: Path) -> list[Path]:
    content = reading.read_json(index)
    try:
        names = sorted(set(content["weight_map"].values()))
    except (KeyError, AttributeError, TypeError):
        raise InputError(f"{index} is not an index of weight files: it has no readable weight_map.") from None
    for name in names:
        beside = isinstance(name, str) and Path(name).name == name
        if not beside or not reading.inside(index.parent, index.parent / name).exists():
            raise InputError(
                f"{index} names the shard {name!r:.80}, which is not next to it; download all files of the model."
            )
    return [index.parent / name for name in names]
