"""Reads the modules of a sentence-transformers folder besides the transformer: pooling, dense layers, length, prompts."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

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
"""Maps sentence-transformers' old flags of poolings to its newer values of `pooling_mode`, and to our names."""
CLASSIFIER = "ForSequenceClassification"
"""Ending of a classifier's name in `architectures` of its `config.json`."""
STATIC = "StaticEmbedding"
"""sentence-transformers' module for a table of token vectors, see `static`."""
TOKENS = "token_embeddings"
"""sentence-transformers' name for the vectors that pooling reads."""
LAYER_POOLING = "LayerPooling"
"""This project's module for poolings that sentence-transformers lacks, and refuses."""
ORDER = re.compile(
    rf"(Transformer|({STATIC}|Transformer( WeightedLayerPooling)?(( Dense)* Pooling| {LAYER_POOLING}))( Dense| LayerNorm)*)( Normalize)?"
)
"""Supported orders of modules. A linear layer on tokens commutes with a pooling that is a mean, and may come before it."""
TEXT_SETTINGS = (
    "tokenizer_args", "tokenizer_kwargs", "processor_kwargs", "config_args", "config_kwargs", "processing_kwargs",
    "model_args", "model_kwargs", "query_length", "document_length", "query_expansion", "tokenizer_name_or_path",
)  # fmt: skip
"""Settings of the Transformer module that change how sentence-transformers reads text or builds the encoder."""
HARMLESS_SETTINGS = (
    "trust_remote_code", "revision", "cache_dir", "token", "local_files_only", "use_fast", "padding_side", "padding", "truncation",
    "chat_template", "attn_implementation", "torch_dtype", "dtype", "unpad_inputs", "use_memory_efficient_attention",
    "add_pooling_layer", "device_map", "low_cpu_mem_usage", "use_safetensors",
)  # fmt: skip
"""Entries of `TEXT_SETTINGS` that change no vector."""
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
    """The modules of a model folder, and its settings."""

    transformer: Path
    """Folder of `config.json`, weights and tokenizer."""
    is_static: bool
    """Whether `transformer` holds a table of token vectors instead, see `static`."""
    pooling: Pooling | None
    """None if no module pools."""
    dense: Sequence[tuple[Dense | SentenceNorm, Path]]
    """Layers, each with its folder."""
    normalize: bool
    max_length: int
    """Maximum tokens per sentence; 0: not stated."""
    lower_case: bool
    similarity: str
    prompts: dict[str, str]
    default_prompt: str | None

    @property
    def labels(self) -> int:
        """Number of labels of the classification head; 0 without one, or with a pooling, as in sentence-transformers."""
        config = read_settings(self.transformer / "config.json") if self.pooling is None else {}
        if not any(name.endswith(CLASSIFIER) for name in config.get("architectures") or ()):
            return 0
        return len(config["id2label"]) if "id2label" in config else config.get("num_labels", 2)


def read_modules(folder: Path) -> Modules:
    """Reads `modules.json` and the modules that it names; a folder without it is a plain transformer, or model2vec's table.

    Raises `InputError` for modules and settings that are not implemented, and for paths outside `folder`.
    """
    entries = [("Transformer", folder)]
    weights = folder / "model.safetensors"
    if (folder / "modules.json").exists():
        entries = []
        for entry in read_json(folder / "modules.json"):  # in this order; sentence-transformers reads no `idx`
            kind = entry["type"]
            if kind.partition(".")[0] in (
                "sentence_transformers",
                "jaxdistill",
            ):  # another package's may compute anything
                kind = kind.rpartition(".")[2]
            if kind != "Dropout":  # has an effect in training only
                entries.append((kind, inside(folder, folder / entry.get("path", ""))))
    elif weights.exists() and "embeddings" in read_safetensors(weights):  # model2vec's table
        entries = [(STATIC, folder)]
        if read_settings(folder / "config.json").get("normalize"):
            entries.append(("Normalize", folder))
    kinds, root = [kind for kind, _ in entries], entries[0][1]
    file = folder / "config_sentence_transformers.json"
    general = read_settings(file) if file.exists() else {}
    readable = {"model_type": ("SentenceTransformer", "CrossEncoder"), "similarity_fn_name": ("cosine", "dot")}
    refuse_others(general, readable | {"truncate_dim": ()}, file=file)  # `teacher.dims` truncates a teacher's vectors
    is_static, is_cross = kinds[0] == STATIC, general.get("model_type") == "CrossEncoder"
    pooling = static.POOLING if is_static else _pooling(dict(entries))
    dense = []
    for index, (kind, path) in enumerate(entries):
        file = path / "config.json"
        if kind not in ("Dense", "LayerNorm", "Normalize") or (kind == "Normalize" and not file.exists()):
            continue
        config, reads_tokens = read_settings(file), "Pooling" in kinds[index:]
        names = [TOKENS if reads_tokens else "sentence_embedding"]
        refuse_others(config, {"module_input_name": names, "module_output_name": names}, file=file)
        commutes = False
        if kind == "LayerNorm":
            dense.append((SentenceNorm(width=config["dimension"]), path))
        elif kind == "Dense":
            refuse_others(config, {"use_residual": (False,), "activation_function": [*DENSE_ACTIVATIONS]}, file=file)
            activation = DENSE_ACTIVATIONS[config.get("activation_function", "torch.nn.modules.activation.Tanh")]
            sizes = {name: config[name] for name in ("in_features", "out_features")}
            dense.append((Dense(**sizes, bias=config.get("bias", True), activation=activation), path))
            is_linear_on_tokens = activation == "identity" and config.get("module_input_name") == TOKENS
            commutes = is_linear_on_tokens and pooling is not None and pooling.tokens in MEANS
        if reads_tokens and not commutes:
            kinds[index] = f"{kind} on tokens"  # in no supported order
    if not ORDER.fullmatch(" ".join(kinds)) or (is_cross and len(kinds) > 1):
        raise InputError(
            f"{folder}/modules.json has the modules {', '.join(kinds):.200}; Transformer or StaticEmbedding, then WeightedLayerPooling, "
            "Pooling, Dense, LayerNorm and Normalize can be read, in this order, or the single Transformer of a cross-encoder."
        )
    file = min(root.glob("sentence_*_config.json"), default=None)
    options = read_settings(file) if file else {}
    task, output, name = "feature-extraction", "last_hidden_state", TOKENS
    if is_cross:
        task, output, name = "sequence-classification", "logits", "scores"
    modality = {"text": {"method": "forward", "method_output_name": output}}
    readable = {"transformer_task": (task,), "module_output_name": (name,), "modality_config": (modality,)}
    readable["tokenizer_name_or_path"] = ()
    changing = {name: _changing(options.get(name)) or None for name in TEXT_SETTINGS}
    refuse_others(options | changing, readable | dict.fromkeys(TEXT_SETTINGS, ()), file=file or "")
    return Modules(
        transformer=root,
        is_static=is_static,
        pooling=pooling,
        dense=dense,
        normalize="Normalize" in kinds,
        max_length=options.get("max_seq_length") or 0,
        lower_case=bool(options.get("do_lower_case")),
        similarity=general.get("similarity_fn_name") or "cosine",
        prompts={name: text or "" for name, text in (general.get("prompts") or {}).items()},
        default_prompt=general.get("default_prompt_name"),
    )


def _changing(settings: object) -> object:
    """The entries of a `TEXT_SETTINGS` value that change vectors; None if none does."""
    if not isinstance(settings, dict):
        return settings
    changing = {key: _changing(value) for key, value in settings.items() if key not in HARMLESS_SETTINGS}
    return {key: value for key, value in changing.items() if value is not None} or None


def _pooling(folders: Mapping[str, Path]) -> Pooling | None:
    """The pooling that the modules describe, from their folders by kind; None if no module pools."""
    if LAYER_POOLING in folders:
        return Pooling.parse(read_settings(folders[LAYER_POOLING] / "config.json")["pooling"])
    if "Pooling" not in folders:
        return None
    path = folders["Pooling"] / "config.json"
    config = read_settings(path)
    refuse_others(config, {"include_prompt": (True,)}, file=path)
    modes = config.get("pooling_mode") or [mode for flag, (mode, _) in POOLINGS.items() if config.get(flag)]
    mode = modes if isinstance(modes, str) else "+".join(modes or ["mean"])
    layers = "last"
    averager = folders.get("WeightedLayerPooling")
    # sentence-transformers skips the mean over layers unless the transformer outputs all layers.
    if averager and read_settings(folders["Transformer"] / "config.json").get("output_hidden_states") is True:
        config, weights = read_settings(averager / "config.json"), read_checkpoint(averager)["layer_weights"]
        count, start = config.get("num_hidden_layers", 12), config.get("layer_start", 4)
        averaged = tuple(start + np.flatnonzero(weights))
        layers = f"{weights.tolist()} from layer {start} on"  # which `Pooling` refuses
        if averaged and np.ptp(weights[weights != 0.0]) <= 1e-6 and len(weights) == count + 1 - start:
            # An encoder of fewer than 3 layers has no last four states; its `last4` would be `all`.
            choices = [choice for choice in LAYER_CHOICES if choice != "last4" or count >= 3]
            matching = [
                choice for choice in choices if Pooling(tokens="mean", layers=choice).indices(count) == averaged
            ]
            layers = next(iter(matching), layers)
    with errors_of(str(path)):
        return Pooling(tokens=dict(POOLINGS.values()).get(mode, mode), layers=layers)


def sentence_tensors(index: int, layer: Dense | SentenceNorm) -> dict[str, str]:
    """Maps the paths of our parameters of the layer with this index to the names of the tensors in its module."""
    if isinstance(layer, SentenceNorm):
        return {f"dense/{index}/scale": "norm.weight", f"dense/{index}/bias": "norm.bias"}
    bias = {f"dense/{index}/bias": "linear.bias"} if layer.bias else {}
    return {f"dense/{index}/kernel": "linear.weight", **bias}
