"""Reads the modules of a sentence-transformers folder besides the transformer: pooling, dense layers, length, prompts."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdistill.core import InputError, errors_of
from jaxdistill.core.files import inside, read_json
from jaxdistill.encoders.architecture import LAYER_CHOICES, MEANS, Dense, Pooling, SentenceNorm
from jaxdistill.encoders.hugging_face import read_settings, refuse_others
from jaxdistill.models.checkpoints import static
from jaxdistill.models.checkpoints.weights import read_checkpoint, read_safetensors

POOLINGS = {
    "pooling_mode_cls_token": ("cls", "cls"),
    "pooling_mode_max_tokens": ("max", "max"),
    "pooling_mode_mean_tokens": ("mean", "mean"),
    "pooling_mode_mean_sqrt_len_tokens": ("mean_sqrt_len_tokens", "mean_sqrt_len"),
    "pooling_mode_weightedmean_tokens": ("weightedmean", "weightedmean"),
    "pooling_mode_lasttoken": ("lasttoken", "last"),
}
"""Maps sentence-transformers' old flags to its newer values of `pooling_mode`, and to our names of poolings."""
CLASSIFIER = "ForSequenceClassification"  # ending of the class in `architectures` of a classifier's `config.json`
STATIC = "StaticEmbedding"  # sentence-transformers' module for a table of token vectors, see `checkpoints/static.py`
TOKENS = "token_embeddings"  # sentence-transformers' name for the vectors that pooling reads
LAYER_POOLING = "LayerPooling"  # this project's module for poolings that sentence-transformers lacks
ORDER = re.compile(
    rf"(Transformer|({STATIC}|Transformer( WeightedLayerPooling)?(( Dense)* Pooling| {LAYER_POOLING}))( Dense| LayerNorm)*)( Normalize)?"
)
"""Supported orders of modules. A linear layer commutes with a pooling that is a mean, so such a Dense may come before the pooling."""
TEXT_SETTINGS = (
    "tokenizer_args", "tokenizer_kwargs", "processor_kwargs", "config_args", "config_kwargs", "processing_kwargs",
    "model_args", "model_kwargs", "query_length", "document_length", "query_expansion", "tokenizer_name_or_path",
)  # fmt: skip
"""Settings of the Transformer module that change how sentence-transformers reads text or builds the encoder, unless False, 0 or empty."""
HARMLESS_SETTINGS = (
    "trust_remote_code", "revision", "cache_dir", "token", "local_files_only", "use_fast", "padding_side", "padding", "truncation",
    "chat_template", "attn_implementation", "torch_dtype", "dtype", "unpad_inputs", "use_memory_efficient_attention",
    "add_pooling_layer", "device_map", "low_cpu_mem_usage", "use_safetensors",
)  # fmt: skip
"""Entries of `TEXT_SETTINGS` that change no vector."""
DENSE_ACTIVATIONS = {"torch.nn.modules.linear.Identity": "identity"} | {
    f"torch.nn.modules.activation.{name}": name.lower() for name in ("Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modules:
    """What a model folder says about its modules and prompts."""

    transformer: Path  # folder of `config.json`, weights and tokenizer
    is_static: bool  # whether that folder holds a table of token vectors instead, see `checkpoints/static.py`
    pooling: Pooling | None  # None if no module pools
    dense: Sequence[tuple[Dense | SentenceNorm, Path]]  # dense layers and norms, each with its folder
    normalize: bool
    max_length: int  # maximum tokens per sentence; 0: not stated
    lower_case: bool  # whether text is lower-cased before it is tokenised
    similarity: str  # `cosine` or `dot`
    prompts: dict[str, str]
    default_prompt: str | None

    @property
    def labels(self) -> int:
        """Number of labels of the classification head; 0 if there is none, or if a module pools, which ignores the head."""
        config = read_settings(self.transformer / "config.json") if self.pooling is None else {}
        if not any(name.endswith(CLASSIFIER) for name in config.get("architectures") or ()):
            return 0
        return len(config["id2label"]) if "id2label" in config else config.get("num_labels", 2)  # as in transformers


def read_modules(folder: Path) -> Modules:
    """Reads `modules.json` and the modules that it names. A folder without it is a plain transformer, or model2vec's table. Raises
    `InputError` for modules and settings that are not implemented, and for paths outside `folder`."""
    entries = _entries(folder)
    kinds = [kind for kind, _ in entries]
    root = entries[0][1]
    file = folder / "config_sentence_transformers.json"
    general = read_settings(file) if file.exists() else {}
    readable = {"model_type": ("SentenceTransformer", "CrossEncoder"), "similarity_fn_name": ("cosine", "dot")}
    refuse_others(general, readable | {"truncate_dim": ()}, file=file)  # no value of it; `teacher.dims` truncates
    is_static = kinds[0] == STATIC
    is_cross_encoder = general.get("model_type") == "CrossEncoder"
    pooling = static.POOLING if is_static else _pooling(dict(entries))
    pools_mean = pooling is not None and pooling.tokens in MEANS
    dense = []
    for index, (kind, path) in enumerate(entries):
        if kind not in ("Dense", "LayerNorm", "Normalize"):
            continue
        layer_file = path / "config.json"
        config = {} if kind == "Normalize" and not layer_file.exists() else read_settings(layer_file)
        reads_tokens = "Pooling" in kinds[index:]  # a pooling is still to come
        names = [TOKENS if reads_tokens else "sentence_embedding"]  # the one that is allowed
        refuse_others(config, {"module_input_name": names, "module_output_name": names}, file=layer_file)
        if kind != "Normalize":
            layer = _layer(kind, config, layer_file)
            dense.append((layer, path))
            # A Dense on tokens must commute with the pooling, see `ORDER`, and say that it reads tokens: by default, it reads sentences.
            commutes = pools_mean and isinstance(layer, Dense) and layer.activation == "identity"
            if reads_tokens and not (commutes and config.get("module_input_name") == TOKENS):
                kinds[index] = f"{kind} on tokens"  # `ORDER` has no such kind, so this is refused below
    if not ORDER.fullmatch(" ".join(kinds)) or (is_cross_encoder and len(kinds) > 1):
        raise InputError(
            f"{folder}/modules.json has the modules {', '.join(kinds):.200}; Transformer or StaticEmbedding, then WeightedLayerPooling, "
            "Pooling, Dense, LayerNorm and Normalize can be read, in this order, or the single Transformer of a cross-encoder."
        )
    options = _transformer_options(root, is_cross_encoder=is_cross_encoder)
    return Modules(
        transformer=root, is_static=is_static, pooling=pooling, dense=dense, normalize="Normalize" in kinds,
        max_length=options.get("max_seq_length") or 0, lower_case=bool(options.get("do_lower_case")),
        similarity=general.get("similarity_fn_name") or "cosine",
        prompts={name: text or "" for name, text in (general.get("prompts") or {}).items()},
        default_prompt=general.get("default_prompt_name"),
    )  # fmt: skip


def _entries(folder: Path) -> list[tuple[str, Path]]:
    """The kind and the folder of each module, in order, without dropout, which has an effect in training only."""
    if (folder / "modules.json").exists():
        entries = []
        for entry in read_json(folder / "modules.json"):  # in this order; sentence-transformers ignores `idx`
            package, _, name = entry["type"].partition(".")
            # Modules of other packages keep their full names, which are in no supported order.
            kind = name.rpartition(".")[2] if package in ("sentence_transformers", "jaxdistill") else entry["type"]
            if kind != "Dropout":
                entries.append((kind, inside(folder, folder / entry.get("path", ""))))
        return entries
    weights = folder / "model.safetensors"
    if not weights.exists() or "embeddings" not in read_safetensors(weights):  # model2vec's tensor
        return [("Transformer", folder)]
    normalize = read_settings(folder / "config.json").get("normalize")
    return [(STATIC, folder), ("Normalize", folder)] if normalize else [(STATIC, folder)]


def _layer(kind: str, config: dict[str, Any], file: Path) -> Dense | SentenceNorm:
    """The layer that the settings `config` of a module describe; `kind` is `Dense` or `LayerNorm`. `file` is for errors."""
    if kind == "LayerNorm":
        return SentenceNorm(width=config["dimension"])
    refuse_others(config, {"use_residual": (False,), "activation_function": [*DENSE_ACTIVATIONS]}, file=file)
    activation = DENSE_ACTIVATIONS[config.get("activation_function", "torch.nn.modules.activation.Tanh")]
    sizes = {name: config[name] for name in ("in_features", "out_features")}
    return Dense(**sizes, bias=config.get("bias", True), activation=activation)


def _transformer_options(root: Path, *, is_cross_encoder: bool) -> dict[str, Any]:
    """The settings of the Transformer module, in `sentence_bert_config.json` or a similar name. Empty without such a file."""
    file = min(root.glob("sentence_*_config.json"), default=None)  # old releases name it by the family
    if file is None:
        return {}
    options = read_settings(file)
    task, method_output, module_output = "feature-extraction", "last_hidden_state", TOKENS
    if is_cross_encoder:
        task, method_output, module_output = "sequence-classification", "logits", "scores"
    modality = {"text": {"method": "forward", "method_output_name": method_output}}
    readable = {"transformer_task": (task,), "module_output_name": (module_output,), "modality_config": (modality,)}
    effective = {setting: _without_harmless(options.get(setting)) or None for setting in TEXT_SETTINGS}
    refuse_others(options | effective, readable | dict.fromkeys(TEXT_SETTINGS, ()), file=file)
    return options


def _without_harmless(value: object) -> object:
    """A setting's value; if it is a dict, without the entries at any depth that are null or change no vector. None if none is left."""
    if not isinstance(value, dict):
        return value
    entries = {key: _without_harmless(entry) for key, entry in value.items() if key not in HARMLESS_SETTINGS}
    return {key: entry for key, entry in entries.items() if entry is not None} or None


def _pooling(folders: Mapping[str, Path]) -> Pooling | None:
    """The pooling that the modules describe; `folders` maps their kinds to their folders. None if no module pools."""
    if LAYER_POOLING in folders:
        return Pooling.parse(read_settings(folders[LAYER_POOLING] / "config.json")["pooling"])
    if "Pooling" not in folders:
        return None
    path = folders["Pooling"] / "config.json"
    config = read_settings(path)
    refuse_others(config, {"include_prompt": (True,)}, file=path)
    modes = config.get("pooling_mode") or [mode for flag, (mode, _) in POOLINGS.items() if config.get(flag)]
    mode = modes if isinstance(modes, str) else "+".join(modes or ["mean"])
    tokens = dict(POOLINGS.values()).get(mode, mode)  # `Pooling` refuses an unknown name, and several
    layers = "last"
    averager = folders.get("WeightedLayerPooling")
    # sentence-transformers skips the mean over layers unless the transformer outputs all layers.
    if averager and read_settings(folders["Transformer"] / "config.json").get("output_hidden_states") is True:
        layers = _averaged_layers(averager)
    with errors_of(str(path)):
        return Pooling(tokens=tokens, layers=layers)


def _averaged_layers(folder: Path) -> str:
    """The entry of `LAYER_CHOICES` that a WeightedLayerPooling averages. For other weights, a text that `Pooling` refuses."""
    config = read_settings(folder / "config.json")
    depth = config.get("num_hidden_layers", 12)  # this and the next are the module's defaults
    start = config.get("layer_start", 4)
    weights = read_checkpoint(folder)["layer_weights"]  # one for each hidden state from `start` to `depth`
    averaged = tuple(start + np.flatnonzero(weights))
    if averaged and np.ptp(weights[weights != 0.0]) <= 1e-6 and len(weights) == depth + 1 - start:  # equal weights
        for choice in LAYER_CHOICES:
            # An encoder of fewer than 3 layers has no last four states; its `last4` would be `all`.
            if (choice != "last4" or depth >= 3) and Pooling(tokens="mean", layers=choice).indices(depth) == averaged:
                return choice
    return f"{weights.tolist()} from layer {start} on"


def dense_names(index: int, layer: Dense | SentenceNorm) -> dict[str, str]:
    """Maps the paths of our parameters of the dense layer `index` to the names of its tensors in sentence-transformers' file."""
    if isinstance(layer, SentenceNorm):
        return {f"dense/{index}/scale": "norm.weight", f"dense/{index}/bias": "norm.bias"}
    bias = {f"dense/{index}/bias": "linear.bias"} if layer.bias else {}
    return {f"dense/{index}/kernel": "linear.weight", **bias}
