"""Merges a LoRA adapter beside a checkpoint into its weights: `weight + scale * B @ A`.

Source: Hu et al., LoRA, 2021, https://arxiv.org/abs/2106.09685; file format of the package peft.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdistill.checkpoints.safetensors_file import read_safetensors
from jaxdistill.core import InputError
from jaxdistill.encoders.settings import ADAPTER, read_settings, refuse_others, setting

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Prefix that peft adds to the names of a model's modules."""
READABLE: Mapping[str, Sequence[Any]] = {
    "peft_type": ("LORA",),
    # NOTE: pissa, olora, corda, loftq and lora_ga change the base model: its checkpoint keeps what peft subtracts.
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal", "mica"),
    "bias": ("none",),
    **dict.fromkeys(("fan_in_fan_out", "use_dora", "use_qalora", "lora_bias"), (False,)),
    **dict.fromkeys(("modules_to_save", "target_parameters"), ([],)),
    **dict.fromkeys(("rank_pattern", "alpha_pattern"), ({},)),
    **dict.fromkeys(("trainable_token_indices", "layer_replication", "alora_invocation_tokens"), ()),
    **dict.fromkeys(("use_bdlora", "arrow_config", "kasa_config", "monteclora_config"), ()),
}
"""Implemented values of peft's options that change the merged weights."""
MERGING = (
    "; merge it by peft: PeftModel.from_pretrained(AutoModel.from_pretrained(BASE_MODEL), ADAPTER).merge_and_unload()"
    ".save_pretrained(FOLDER)"
)


def with_adapter(tensors: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """The tensors with the adapter in `folder` merged; unchanged if there is none.

    Raises:
      InputError: an unsupported kind of adapter, or one that does not fit the tensors.
    """
    file = folder / ADAPTER
    if not file.exists():
        return tensors
    scale = _scale(read_settings(file), file)
    adapter = read_safetensors(folder / WEIGHTS)
    halves = {name for name in adapter if name.endswith((".lora_A.weight", ".lora_B.weight"))}
    if not halves or halves != set(adapter):
        other = min(set(adapter) - halves, default="nothing")
        raise InputError(f"{folder / WEIGHTS} has {other!s:.80}; pairs of lora_A.weight and lora_B.weight can be read.")
    changed = {}
    for module in sorted({name[: -len(".lora_A.weight")] for name in halves}):
        a, b = (adapter.get(f"{module}.lora_{half}.weight") for half in "AB")
        name = _weight_of(module, tensors, folder)
        if a is None or b is None or not _fits(a, b, tensors[name].shape):
            raise InputError(f"{folder / WEIGHTS}: {module:.80} does not fit the checkpoint's {name}.")
        update = scale * (b.astype(np.float32) @ a.astype(np.float32))
        changed[name] = (tensors[name].astype(np.float32) + update).astype(tensors[name].dtype)
    return tensors | changed


def _fits(a: np.ndarray, b: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Whether `b @ a` is defined and has this shape."""
    return a.ndim == b.ndim == 2 and a.shape[0] == b.shape[1] and (b.shape[0], a.shape[1]) == shape


def _scale(config: Mapping, file: Path) -> float:
    refuse_others(config, READABLE, file=file, advice=MERGING)
    rank, alpha = setting(config, "r", int, least=1, file=file), setting(config, "lora_alpha", float, file=file)
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _weight_of(module: str, tensors: Mapping[str, np.ndarray], folder: Path) -> str:
    """Name of the checkpoint's tensor that a module's adapter changes; either name may have prefixes that the other lacks."""
    wanted = f"{module.removeprefix(PREFIX)}.weight"
    matching = [name for name in tensors if f".{name}".endswith(f".{wanted}") or f".{wanted}".endswith(f".{name}")]
    if len(matching) != 1:
        raise InputError(f"{folder / WEIGHTS}: {module:.80} names {len(matching)} tensors of the checkpoint, not one.")
    return matching[0]
