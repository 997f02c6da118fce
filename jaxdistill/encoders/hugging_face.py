"""Reads a model's JSON files, and maps what families share in `config.json` and in tensor names."""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdistill.core import InputError
from jaxdistill.core.files import read_json
from jaxdistill.encoders.architecture import Architecture, LayerKind

Settings = dict[str, Any]
"""The content of a `config.json`."""
ACTIVATIONS = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip
"""Maps Hugging Face's names of activations to ours."""
FULL, SLIDING = "full_attention", "sliding_attention"
"""Hugging Face's types of layers: attention to the whole text, or within a window."""
QUANTISED = {"quantization_config": (), "compression_config": ()}
"""For `refuse_others`: keys of checkpoints whose weights are integers or 8-bit floats, to be multiplied by scales."""
ENCODER = {"position_embedding_type": ("absolute",), "is_decoder": (False,), "is_causal": (False,)}
"""Implemented values of keys by which encoders vary, or become decoders."""
SIZES = {
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "layers": "num_hidden_layers",
    "heads": "num_attention_heads", "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
}  # fmt: skip
"""Maps fields of an architecture that all families have to their names in `config.json`."""
CLASSES = {
    "albert": "AlbertModel", "bert": "BertModel", "camembert": "CamembertModel", "distilbert": "DistilBertModel",
    "electra": "ElectraModel", "eurobert": "EuroBertModel", "gemma3_text": "Gemma3TextModel", "gte": "GteModel",
    "llama": "LlamaModel", "mistral": "MistralModel", "modernbert": "ModernBertModel", "mpnet": "MPNetModel",
    "nomic_bert": "NomicBertModel", "qwen2": "Qwen2Model", "qwen3": "Qwen3Model", "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
}  # fmt: skip
"""transformers' class of each `model_type` that is written."""


def read_settings(path: Path) -> dict[str, Any]:
    """Reads a JSON object; raises `InputError` if it cannot, with advice if the folder has only an adapter."""
    if not path.exists():
        refuse_adapter(path.parent)
    return read_json(path)


def refuse_adapter(folder: Path) -> None:
    """Raises `InputError` if the folder has an adapter; the error shows how peft merges one into its base model."""
    if (folder / "adapter_config.json").exists():
        raise InputError(
            f"{folder} has a LoRA adapter; merge it with peft and give FOLDER: "
            f"model = PeftModel.from_pretrained(AutoModel.from_pretrained(BASE_MODEL), {str(folder)!r}).merge_and_unload(); "
            "model.save_pretrained(FOLDER)"
        )


def refuse_others(
    content: Mapping[str, Any],
    readable: Mapping[str, Sequence[Any]],
    *,
    file: Path | str = "config.json",
    advice: str = "",
) -> None:
    """Raises `InputError` if a key has a value that is not implemented; ignoring it would change the vectors.

    Args:
      readable: maps keys to their implemented values; null and an absent key always count as one of them.
      advice: what to do instead, for the end of the error.
    """
    for key, values in readable.items():
        value = content.get(key)
        if value is not None and value not in values:
            shown = value.get("quant_method", value) if isinstance(value, dict) else value
            allowed = ", ".join(map(json.dumps, values or (None,)))
            raise InputError(f"{file} has {key}={json.dumps(shown):.160}; only {allowed} can be read{advice}.")


@dataclasses.dataclass(frozen=True)
class PairHead:
    """Names of the layers of a family's classification head, which cross-encoders use."""

    output: str
    hidden: str = ""
    """Empty for BERT, whose pooler is the hidden layer."""
    activation: str = "tanh"
    drops_input: bool = True
    """Whether the hidden layer's input has dropout in training."""


def sizes(config: Settings) -> dict[str, Any]:
    """The architecture's fields in `SIZES`, and `pad_id`."""
    return {ours: config[name] for ours, name in SIZES.items()} | {"pad_id": config.get("pad_token_id") or 0}


def written(a: Architecture, activation_key: str = "hidden_act") -> Settings:
    """What every family's `config.json` has: the model's class, the inverses of `sizes` and `activation`, the weights' dtype."""
    return {
        "architectures": [CLASSES[a.family]],
        "model_type": a.family,
        **{name: getattr(a, ours) for ours, name in SIZES.items()},
        "pad_token_id": a.pad_id,
        "dtype": "float32",
        activation_key: "gelu_new" if a.activation == "gelu_tanh" else a.activation,
    }


def activation(config: Settings, key: str = "hidden_act", default: str = "gelu") -> str:
    """Our name of the activation function; raises `InputError` for one that is not in `ACTIVATIONS`."""
    refuse_others(config, {key: tuple(ACTIVATIONS)})
    return ACTIVATIONS[config.get(key) or default]


def rotary(config: Settings, default_theta: float, *, layer_type: str = "", theta_key: str = "rope_theta") -> LayerKind:
    """A kind of layer with the config's rotary positions, and without a window.

    Args:
      config: has `rope_parameters` (shared by all layers, or per type of layer), or the older keys `theta_key` and
        `rope_scaling`. As in transformers, a `rope_scaling` beside `rope_parameters` replaces shared parameters and
        merges into per-type ones.
      default_theta: base of a config that has none.
      layer_type: type of the layers, if the family has parameters per type.
    """
    parameters: dict[str, Any] = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    is_shared = bool(parameters) and not parameters.keys() & {FULL, SLIDING}
    if layer_type and not is_shared:
        parameters = (parameters.get(layer_type) or {}) | scaling
    else:
        parameters = scaling or parameters
    theta = parameters.get("rope_theta", config.get(theta_key, default_theta))
    rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
    is_readable = rope_type in ("default", "linear", "llama3") and parameters.get("partial_rotary_factor", 1.0) == 1.0
    if not is_readable or (layer_type and is_shared):
        layers = f"for {FULL} and {SLIDING} each" if layer_type else "for all layers"
        raise InputError(
            f"config.json has rotary positions {rope_type!r} ({parameters!s:.160}); "
            f"give default, linear or llama3 ones {layers}."
        )
    divisor = 1.0 if rope_type == "default" else parameters["factor"]
    kind = LayerKind(theta=float(theta), divisor=float(divisor))
    if rope_type == "llama3":  # blends the frequencies between two wavelengths
        trained = parameters["original_max_position_embeddings"]
        low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
        kind = dataclasses.replace(kind, kept_below=trained / high, divided_above=trained / low)
    return kind


def rope_parameters(kind: LayerKind) -> dict[str, Any]:
    """The inverse of `rotary`: `rope_parameters` of a kind of layer."""
    if kind.divided_above:
        trained = math.ceil(kind.divided_above)  # any length: the factors turn it into the two wavelengths again
        return {
            "rope_theta": kind.theta,
            "rope_type": "llama3",
            "factor": kind.divisor,
            "original_max_position_embeddings": trained,
            "low_freq_factor": trained / kind.divided_above,
            "high_freq_factor": trained / kind.kept_below,
        }
    if kind.divisor != 1.0:
        return {"rope_theta": kind.theta, "rope_type": "linear", "factor": kind.divisor}
    return {"rope_theta": kind.theta, "rope_type": "default"}


def layer_types(config: Settings, default: Sequence[str]) -> list[str]:
    """`full_attention` or `sliding_attention` for each layer; `default` if the config has no `layer_types`."""
    types = config.get("layer_types") or list(default)
    for layer_type in types:
        refuse_others({"layer_types": layer_type}, {"layer_types": (FULL, SLIDING)})
    return types


def written_layer_types(architecture: Architecture) -> list[str]:
    """The inverse of `layer_types`."""
    return [SLIDING if kind.window else FULL for kind in architecture.kinds]


def written_windows(architecture: Architecture) -> Settings:
    """The inverse of `with_windows`; `sliding_window` is None if no layer has a window."""
    window = max(kind.window for kind in architecture.kinds)
    width = window + int(architecture.causal) if window else None
    return {"sliding_window": width, "layer_types": written_layer_types(architecture)}


def with_windows(plain: Architecture, config: Settings, default_types: Sequence[str]) -> Architecture:
    """`plain` with the config's window in layers of type `sliding_attention`."""
    width = config.get("sliding_window", 4096)
    window = 0 if width is None else width - int(plain.causal)  # a causal window counts the token itself
    types = layer_types(config, default_types)
    kinds = tuple(dataclasses.replace(plain.kind(0), window=window if each == SLIDING else 0) for each in types)
    return dataclasses.replace(plain, kinds=kinds)


def head_sizes(config: Settings) -> dict[str, int]:
    """`head_size` and `key_heads` of an architecture; 0 if they follow from its width and heads."""
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or 0
    key_heads = config.get("num_key_value_heads") or heads
    return {
        "head_size": 0 if head_size * heads == config["hidden_size"] else head_size,
        "key_heads": 0 if key_heads == heads else key_heads,
    }


@dataclasses.dataclass(frozen=True)
class Part:
    """One of several parameters that a checkpoint concatenates in one tensor."""

    name: str
    index: int
    count: int
    """Number of parts, all with the same number of rows."""


def tensor_names(table: Mapping[str, str | Part], paths: Iterable[str]) -> dict[str, str | Part]:
    """Maps our parameters to the checkpoint's tensors; leaves out parameters whose layer is not in `table`.

    Args:
      table: maps our layers to the checkpoint's, such as `layers/*/output` to `encoder.layer.*.dense`; `*` is an index.
      paths: our parameters, such as `transformer/layers/3/output/kernel`.
    """
    names: dict[str, str | Part] = {}
    for path in paths:
        layer, _, leaf = path.removeprefix("transformer/").rpartition("/")
        index = layer.split("/")[1] if layer.startswith("layers/") else ""
        name = table.get(layer.replace(f"layers/{index}", "layers/*"))
        suffix = "bias" if leaf == "bias" else "weight"
        if isinstance(name, Part):
            names[path] = dataclasses.replace(name, name=f"{name.name.replace('*', index)}.{suffix}")
        elif name is not None:
            names[path] = f"{name.replace('*', index)}.{suffix}"
    return names
