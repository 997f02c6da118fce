"""What does a sentence-transformers folder say besides the transformer: pooling, dense layers, length, prompts?"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxdistill.core import InputError
from jaxdistill.encoders.architecture import LAYER_CHOICES, Dense, Pooling
from jaxdistill.encoders.weights import read_checkpoint

POOLING_MODES = {"cls": "cls", "max": "max", "mean": "mean"}
"""Values of `pooling_mode` that can be read, to ours."""
OLD_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
DENSE_ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modules:
    """A model folder, read."""

    transformer: Path
    """Folder of `config.json`, weights and tokenizer."""
    pooling: Pooling | None = None
    dense: tuple[Dense, ...] = ()
    dense_folders: tuple[Path, ...] = ()
    normalize: bool = False
    max_length: int = 0
    """0: not said."""
    lower_case: bool = False
    """Whether text is lower-cased before the tokenizer sees it."""
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str | None = None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file that must be there."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing; the folder is not a complete model.") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not valid JSON ({error}).") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, not a {type(content).__name__}.")
    return content


def read_modules(folder: Path) -> Modules:
    """Reads `modules.json` and what it names; a folder without it is a plain transformer."""
    entries = _entries(folder)
    kinds = [entry["type"].rsplit(".", 1)[-1] for entry in entries]
    paths = [folder / entry.get("path", "") for entry in entries]
    dense_folders = tuple(path for kind, path in zip(kinds, paths, strict=True) if kind == "Dense")
    _check_order(kinds, folder)
    places = dict(zip(kinds, paths, strict=True))
    general = folder / "config_sentence_transformers.json"
    general = read_json(general) if general.exists() else {}
    length = _transformer_options(paths[0])
    return Modules(
        transformer=paths[0],
        pooling=_pooling(places["Pooling"], places.get("WeightedLayerPooling")) if "Pooling" in places else None,
        dense=tuple(_dense(path / "config.json") for path in dense_folders),
        dense_folders=dense_folders,
        normalize="Normalize" in kinds,
        max_length=length.get("max_seq_length") or 0,
        lower_case=bool(length.get("do_lower_case")),
        prompts=dict(general.get("prompts") or {}),
        default_prompt=general.get("default_prompt_name"),
    )


def _entries(folder: Path) -> list[dict[str, Any]]:
    path = folder / "modules.json"
    if not path.exists():
        return [{"type": "Transformer", "path": ""}]
    try:
        entries = sorted(json.loads(path.read_text("utf-8")), key=lambda entry: entry["idx"])
        if entries and all(isinstance(entry["type"], str) for entry in entries):
            return entries
    except (ValueError, TypeError, KeyError):
        pass
    raise InputError(f"{path} is not a list of modules with idx, path and type.")


def _check_order(kinds: list[str], folder: Path) -> None:
    for kind in kinds:
        if kind not in ("Transformer", "WeightedLayerPooling", "Pooling", "Dense", "Normalize"):
            raise InputError(
                f"{folder}/modules.json has a module of type {kind};"
                " Transformer, WeightedLayerPooling, Pooling, Dense and Normalize can be read."
            )
    body = kinds[:-1] if kinds[-1] == "Normalize" else kinds
    body = body[:1] + body[2:] if body[1:2] == ["WeightedLayerPooling"] and len(body) > 2 else body
    expected = ["Transformer"] + ["Pooling"] * (len(body) > 1) + ["Dense"] * (len(body) - 2)
    if body != expected:
        raise InputError(
            f"{folder}/modules.json has the order {', '.join(kinds)};"
            " Transformer, perhaps WeightedLayerPooling, Pooling, any number of Dense and at most one Normalize at the end"
            " can be read."
        )


def _transformer_options(folder: Path) -> dict[str, Any]:
    for path in sorted(folder.glob("sentence_*_config.json")):
        return read_json(path)
    return {}


def _pooling(folder: Path, layers_folder: Path | None) -> Pooling:
    path = folder / "config.json"
    config = read_json(path)
    modes = config.get("pooling_mode", [mode for flag, mode in OLD_POOLING_FLAGS.items() if config.get(flag)])
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        raise InputError(
            f"{path} asks for pooling {' + '.join(modes) or 'by nothing'}; one of cls, mean, max can be read."
        )
    if config.get("include_prompt") is False:
        raise InputError(f"{path} has include_prompt=false: pooling without the prompt's tokens is not supported.")
    return Pooling(tokens=POOLING_MODES[modes[0]], layers=_layers(layers_folder) if layers_folder else "last")


def _layers(folder: Path) -> str:
    """Which of our choices of layers a WeightedLayerPooling averages."""
    config = read_json(folder / "config.json")
    layers, start = config.get("num_hidden_layers", 12), config.get("layer_start", 4)
    weights = read_checkpoint(folder).get("layer_weights", np.zeros(0))
    if len(weights) == layers + 1 - start and weights.any() and np.ptp(weights[weights != 0.0]) <= 1e-6:
        averaged = tuple(start + np.flatnonzero(weights))
        for choice in LAYER_CHOICES:
            possible = choice != "last4" or layers >= 3
            if possible and Pooling(tokens="mean", layers=choice).indices(layers) == averaged:
                return choice
    raise InputError(
        f"{folder} weighs layers as {weights.tolist()} from {start} on; plain means of {', '.join(LAYER_CHOICES)} can be read."
    )


def _dense(path: Path) -> Dense:
    config = read_json(path)
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in DENSE_ACTIVATIONS:
        raise InputError(f"{path} has activation {activation}; can be read: {', '.join(DENSE_ACTIVATIONS)}.")
    try:
        return Dense(
            in_features=config["in_features"],
            out_features=config["out_features"],
            bias=config.get("bias", True),
            activation=DENSE_ACTIVATIONS[activation],
        )
    except KeyError as error:
        raise InputError(f"{path} has no {error}.") from None
