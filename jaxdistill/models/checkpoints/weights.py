"""Maps a checkpoint's tensors to parameters, and back.

Files are safetensors or PyTorch's `pytorch_model.bin`, single or sharded. Kernels are transposed, because torch stores `[out, in]`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors.numpy

from jaxdistill.core import InputError
from jaxdistill.core.files import foreign_errors, inside, while_reading
from jaxdistill.encoders.hugging_face import Part, read_settings, refuse_adapter

Arrays = dict[str, np.ndarray]
"""Arrays on the host: a checkpoint's tensors by their names, or parameters by their paths."""
OUTER_PREFIXES = ("", "model.", "module.", "auto_model.", "0.auto_model.", "encoder.", "0.")
"""Prefixes that training programs add to names, before the family's own prefix."""
UNREAD = re.compile(
    r"(^|\.)(position_ids|inv_freq|pooler\.(dense\.)?(weight|bias))$"
    r"|^(\w+\.)?(cls|lm_head|classifier|pre_classifier|mlp|qa_outputs|seq_relationship|vocab_\w+|fit_denses?"
    r"|discriminator_predictions|generator_predictions|generator_lm_head|linear|head|decoder|score|predictions)(\.|$)"
)
"""Tensors that a sentence encoder does not use: buffers, an unread pooler, pre-training and task heads."""


def first_file(folder: Path, names: Sequence[str], content: str) -> Path:
    """The first of `names` that exists in `folder`; raises `InputError` if none does. `content` names what is missing in the message."""
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise InputError(f"{folder} has no {content}; looked for {', '.join(names)}.")


def read_checkpoint(folder: Path) -> Arrays:
    """All tensors of the checkpoint in `folder`, by their names in the file; raises `InputError` for a LoRA adapter, or no weights."""
    refuse_adapter(folder)
    names = [name + end for name in ("model.safetensors", "pytorch_model.bin") for end in ("", ".index.json")]
    files = [first_file(folder, names, "weights")]
    if files[0].suffix == ".json":  # an index of shards: maps each tensor to its file
        shards = sorted(set(read_settings(files[0])["weight_map"].values()))
        files = [inside(folder, folder / shard) for shard in shards]
    tensors: Arrays = {}
    for file in files:
        tensors |= read_safetensors(file) if file.suffix == ".safetensors" else read_torch_file(file)
    return tensors


def read_safetensors(path: Path) -> Arrays:
    """Memory-mapped tensors in the stored dtype, by name. safetensors' NumPy interface would copy a frozen teacher into memory."""
    with while_reading(path):
        content = np.memmap(path, np.uint8, "r")
        # The length of the JSON header in 8 bytes, the header, then the data.
        start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        entries = json.loads(content[8:start].tobytes())
        entries.pop("__metadata__", None)
        irregular = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "BOOL": np.bool_}
        tensors = {}
        for name, entry in entries.items():
            stored = entry["dtype"]
            begin, end = entry["data_offsets"]
            # NumPy counts bytes, not bits: F32 is f4.
            dtype = irregular.get(stored) or f"{stored[0].lower()}{int(stored[1:]) // 8}"
            tensors[name] = content[start + begin : start + end].view(np.dtype(dtype)).reshape(entry["shape"])
        return tensors


def read_torch_file(path: Path) -> Arrays:
    """Tensors of a state dict that `torch.save` wrote, by name; no code in the file runs."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        content = content.get("state_dict", content)
        tensors = {name: value.detach() for name, value in content.items() if isinstance(value, torch.Tensor)}
    except Exception as error:  # PyTorch's own message advises loading the file without protection
        raise InputError(
            f"{path} cannot be read: it is damaged, or holds other objects than tensors ({type(error).__name__}); fetch it again, "
            "or ask its author for safetensors."
        ) from None
    # NumPy has no bfloat16; float32 holds all of its values.
    widened = {name: tensor.float() for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16}
    return {name: tensor.numpy() for name, tensor in (tensors | widened).items()}


def params_from_tensors(
    tensors: Mapping[str, np.ndarray],
    names: Mapping[str, str | Part],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    prefixes: Sequence[str] = (),
    source: str,
    frozen: bool = False,
) -> Arrays:
    """Parameters by our paths, in float32; raises `InputError` for missing, unknown, misshapen, integer or non-finite tensors.

    Args:
      names: maps our paths to the names in a plain encoder's checkpoint, or to a part of a tensor, cut along its first axis.
      shapes: maps our paths to shapes.
      prefixes: prefixes that the family's task models put before the names.
      frozen: do not copy float32 and bfloat16 tensors, and keep their dtype.
    """
    # A whole tensor is part 0 of 1.
    parts = {path: name if isinstance(name, Part) else Part(name, 0, 1) for path, name in names.items()}
    expected = {part.name for part in parts.values()}
    candidates = [outer + inner for inner in ("", *prefixes) for outer in OUTER_PREFIXES]
    # The prefix under which the file has most of the expected names.
    prefix = max(candidates, key=lambda prefix: sum(prefix + name in tensors for name in expected))
    found = {}
    for name, tensor in tensors.items():
        # BERT's first checkpoints call LayerNorm's parameters gamma and beta.
        current_name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        found[current_name.removeprefix(prefix)] = tensor
    missing = expected - found.keys()
    unknown = {name for name in found.keys() - expected if not UNREAD.search(name)}
    if unmatched := sorted(missing or unknown):
        raise InputError(
            f"{source}: tensor {unmatched[0]} is missing from the weights, or from what config.json describes ({len(unmatched)} such)."
        )
    params = {}
    for path, part in parts.items():
        tensor = found[part.name]
        part_shape = shapes[path][::-1] if path.endswith("/kernel") else shapes[path]  # torch's kernels are [out, in]
        shape = (part.count * part_shape[0], *part_shape[1:])
        if tensor.shape != shape or tensor.dtype.kind in "iub":  # integers or booleans
            raise InputError(
                f"{source}: tensor {part.name} has {tensor.dtype} numbers of shape {list(tensor.shape)}, config.json expects floats of "
                f"shape {list(shape)}; if it is quantised, save it again after dequantize() in transformers."
            )
        array = np.split(tensor, part.count)[part.index]
        if frozen and array.dtype in (np.float32, ml_dtypes.bfloat16):
            params[path] = array.T if path.endswith("/kernel") else array
        else:
            params[path] = with_transposed_kernel(path, array.astype(np.float32))  # a copy, because the file may change
        check_finite(params[path], part.name, source)
    return params


def check_finite(tensor: np.ndarray, name: str, source: Path | str) -> None:
    """Raises `InputError` if the tensor `name` of the folder `source` has NaN or infinite values."""
    if not np.isfinite(tensor).all():
        raise InputError(f"{source}: tensor {name} has NaN or infinite values; the checkpoint is damaged.")


def tensors_from_params(params: Mapping[str, np.ndarray], names: Mapping[str, str | Part]) -> Arrays:
    """The inverse of `params_from_tensors`: tensors in float32 by the checkpoint's names, joined from their parts."""
    parts_by_name: dict[str, dict[int, np.ndarray]] = {}  # for each tensor, its parts by their indices
    for path, name in names.items():
        part = name if isinstance(name, Part) else Part(name, 0, 1)
        array = with_transposed_kernel(path, np.asarray(params[path], np.float32))
        parts_by_name.setdefault(part.name, {})[part.index] = array
    return {name: np.concatenate([parts[index] for index in sorted(parts)]) for name, parts in parts_by_name.items()}


def with_transposed_kernel(path: str, array: np.ndarray) -> np.ndarray:
    """A contiguous `array`, transposed if `path` is a kernel's: converts our layout to torch's, and back."""
    return np.ascontiguousarray(array.T if path.endswith("/kernel") else array)


def write_safetensors(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    """Writes tensors in the form that transformers and sentence-transformers read."""
    path.touch()  # with the user's default permissions; `save_file` would let only the owner read the file
    mode = path.stat().st_mode
    with foreign_errors(f"{path} could not be written"):  # its own error for a full disk is no `OSError`
        safetensors.numpy.save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(mode)
