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
"""For `refuse_others`: keys of quantised checkpoints, for which no value is implemented."""
ENCODER = {"position_embedding_type": ("absolute",), "is_decoder": (False,), "is_causal": (False,)}
"""For `refuse_others`: implemented values of keys that change an encoder's attention, or make it a decoder."""
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


def read_settings(path: Path) -> Settings:
    """Reads a JSON object; raises `InputError` if the file is damaged or missing, such as from the folder of a LoRA adapter."""
    if not path.exists():
        refuse_adapter(path.parent)
    return read_json(path)


def refuse_adapter(folder: Path) -> None:
    """Raises `InputError` if the folder has a LoRA adapter, with the code that merges it into its base model."""
    if (folder / "adapter_config.json").exists():
        raise InputError(
            f"{folder} has a LoRA adapter; merge it with peft and give FOLDER: "
            f"model = PeftModel.from_pretrained(AutoModel.from_pretrained(BASE_MODEL), {str(folder)!r}).merge_and_unload(); "
            "model.save_pretrained(FOLDER)"
        )


def refuse_others(
    content: Settings, readable: Mapping[str, Sequence[Any]], *, file: Path | str = "config.json", advice: str = ""
) -> None:
    """Raises `InputError` if a key has a value that is not implemented; ignoring it would change the vectors.

    Args:
      readable: maps keys to their implemented values, besides null and the key's absence, which are always accepted.
      advice: what to do instead, for the end of the error.
    """
    for key, implemented in readable.items():
        value = content.get(key)
        if value is None or value in implemented:
            continue
        # A dict is a `quantization_config`, of which the method says enough.
        shown = value.get("quant_method", value) if isinstance(value, dict) else value
        allowed = ", ".join(map(json.dumps, implemented)) or "null"
        raise InputError(f"{file} has {key}={json.dumps(shown):.160}; only {allowed} can be read{advice}.")


@dataclasses.dataclass(frozen=True)
class PairHead:
    """The layers of a family's classification head, which cross-encoders use, by their names in the checkpoint."""

    output: str
    hidden: str = ""
    """Empty for BERT, whose pooler is the hidden layer."""
    activation: str = "tanh"
    drops_input: bool = True
    """Whether the hidden layer's input has dropout in training."""


def sizes(config: Settings) -> dict[str, Any]:
    """Reads the architecture's fields in `SIZES`, which the config must have, and `pad_id`, 0 if it is null or absent."""
    return {field: config[key] for field, key in SIZES.items()} | {"pad_id": config.get("pad_token_id") or 0}


def common_settings(architecture: Architecture, activation_key: str = "hidden_act") -> Settings:
    """The settings of a `config.json` that all families write; the inverse of `sizes` and `activation`."""
    activation = architecture.activation
    return {
        "architectures": [CLASSES[architecture.family]],
        "model_type": architecture.family,
        **{key: getattr(architecture, field) for field, key in SIZES.items()},
        "pad_token_id": architecture.pad_id,
        "dtype": "float32",
        activation_key: "gelu_new" if activation == "gelu_tanh" else activation,
    }


def activation(config: Settings, key: str = "hidden_act", default: str = "gelu") -> str:
    """Reads the activation function, as `Architecture` names it; raises `InputError` if it is not in `ACTIVATIONS`."""
    refuse_others(config, {key: tuple(ACTIVATIONS)})
    return ACTIVATIONS[config.get(key) or default]


def rotary(config: Settings, default_theta: float, *, layer_type: str = "", theta_key: str = "rope_theta") -> LayerKind:
    """Reads the rotary positions of a kind of layer, without its window; raises `InputError` if they are not implemented.

    Args:
      config: has `rope_parameters` (shared by all layers, or per type of layer), or the older keys `theta_key` and
        `rope_scaling`. As in transformers, the latter replaces shared `rope_parameters`, and merges into per-type ones.
      default_theta: base of a config that has none.
      layer_type: `FULL` or `SLIDING`, if the family has parameters per type; empty: parameters are shared.
    """
    parameters: dict[str, Any] = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    is_shared = bool(parameters) and parameters.keys().isdisjoint({FULL, SLIDING})
    if layer_type and not is_shared:
        parameters = (parameters.get(layer_type) or {}) | scaling
    else:
        parameters = scaling or parameters
    rope_type = parameters.get("rope_type") or parameters.get("type") or "default"  # `type` is the older key
    is_implemented = rope_type in ("default", "linear", "llama3")
    rotates_whole_head = parameters.get("partial_rotary_factor", 1.0) == 1.0
    lacks_types = bool(layer_type) and is_shared  # the family has parameters per type of layer, the config has one set
    if lacks_types or not (is_implemented and rotates_whole_head):
        layers = f"for {FULL} and {SLIDING} each" if layer_type else "for all layers"
        raise InputError(
            f"config.json has rotary positions {rope_type!r} ({parameters!s:.160}); "
            f"give default, linear or llama3 ones {layers}."
        )
    theta = parameters.get("rope_theta", config.get(theta_key, default_theta))
    divisor = 1.0 if rope_type == "default" else parameters["factor"]
    kind = LayerKind(theta=float(theta), divisor=float(divisor))
    if rope_type == "llama3":  # the two wavelengths are the length of training texts divided by a factor
        trained_length = parameters["original_max_position_embeddings"]
        kept_below = trained_length / parameters["high_freq_factor"]
        divided_above = trained_length / parameters["low_freq_factor"]
        kind = dataclasses.replace(kind, kept_below=kept_below, divided_above=divided_above)
    return kind


def rope_parameters(kind: LayerKind) -> dict[str, Any]:
    """The value of `rope_parameters` from which `rotary` reads `kind`."""
    if kind.divided_above:
        trained_length = math.ceil(kind.divided_above)  # an arbitrary length: only its quotients by the factors matter
        scaling = {
            "rope_type": "llama3",
            "factor": kind.divisor,
            "original_max_position_embeddings": trained_length,
            "low_freq_factor": trained_length / kind.divided_above,
            "high_freq_factor": trained_length / kind.kept_below,
        }
    elif kind.divisor != 1.0:
        scaling = {"rope_type": "linear", "factor": kind.divisor}
    else:
        scaling = {"rope_type": "default"}
    return {"rope_theta": kind.theta, **scaling}


def layer_types(config: Settings, default: Sequence[str]) -> list[str]:
    """Reads each layer's type, `FULL` or `SLIDING` (else `InputError`); without `layer_types` in the config, they are `default`."""
    types = config.get("layer_types") or list(default)
    if len(types) != config["num_hidden_layers"] or not {*types} <= {FULL, SLIDING}:
        raise InputError(f"layer_types={types!s:.160} of config.json must be {FULL} or {SLIDING} for each layer.")
    return types


def written_layer_types(architecture: Architecture) -> list[str]:
    """The value of `layer_types` in a `config.json`."""
    return [SLIDING if kind.window else FULL for kind in architecture.kinds]


def written_windows(architecture: Architecture) -> Settings:
    """The settings that `with_windows` reads. `sliding_window` counts the token itself if causal; None: no layer has a window."""
    window = max(kind.window for kind in architecture.kinds)
    width = window + int(architecture.causal) if window else None
    return {"sliding_window": width, "layer_types": written_layer_types(architecture)}


def with_windows(architecture: Architecture, config: Settings, default_types: Sequence[str]) -> Architecture:
    """A copy with the config's window in layers of type `SLIDING`; `default_types` are the types if the config has none."""
    width = config.get("sliding_window", 4096)
    window = 0 if width is None else width - int(architecture.causal)  # a causal `width` counts the token itself
    full = architecture.kind(0)  # all layers are of one kind so far
    sliding = dataclasses.replace(full, window=window)
    kinds = tuple(sliding if layer_type == SLIDING else full for layer_type in layer_types(config, default_types))
    return dataclasses.replace(architecture, kinds=kinds)


def head_sizes(config: Settings) -> dict[str, int]:
    """Reads `head_size` and `key_heads`; 0 where they equal what `Architecture` derives from its width and heads."""
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
    """Maps parameters to the tensors of a checkpoint; leaves out parameters whose module is not in `table`.

    Args:
      table: maps modules to the checkpoint's, such as `layers/*/output` to `encoder.layer.*.dense`; `*` is a layer's index.
      paths: the parameters' paths, such as `transformer/layers/3/output/kernel`.
    """
    names: dict[str, str | Part] = {}
    for path in paths:
        module, _, leaf = path.removeprefix("transformer/").rpartition("/")  # `layers/3/output` and `kernel`
        layer = module.split("/")[1] if module.startswith("layers/") else ""
        entry = table.get(module.replace(f"layers/{layer}", "layers/*"))
        suffix = "bias" if leaf == "bias" else "weight"
        if isinstance(entry, Part):
            names[path] = dataclasses.replace(entry, name=f"{entry.name.replace('*', layer)}.{suffix}")
        elif entry is not None:
            names[path] = f"{entry.replace('*', layer)}.{suffix}"
    return names
