"""Writes a model so that sentence-transformers and transformers load it.

The transformer is in the root, where `AutoModel` finds it; pooling, dense layers and normalisation each have a subfolder. Every
release of sentence-transformers since 2.0 reads this, except linear heads, which need 5.4: they act on tokens, before pooling,
because runtimes that run no module after pooling then get the same vectors.

Poolings that sentence-transformers lacks (of the second-to-last layer, or that concatenate layers or take their maximum) are a
module of this project instead, which sentence-transformers refuses.
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxdistill.core import InputError, unknown_id
from jaxdistill.encoders.architecture import Dense, EncoderDefinition
from jaxdistill.encoders.families import family, head_names
from jaxdistill.encoders.hugging_face import read_settings, tensor_names
from jaxdistill.models.checkpoints import modules, static
from jaxdistill.models.checkpoints import tokenizer as tokenizers
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.checkpoints.weights import tensors_from_params, write_safetensors

SPECIAL_TOKENS = {
    "unk_token": ("[UNK]", "<unk>"),
    "pad_token": ("[PAD]", "<pad>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}
PROGRAM_SETTINGS = ("name_or_path", "max_length", "stride", "pad_to_multiple_of", "local_files_only")
"""Settings of `tokenizer_config.json` that belong to the program that saved it and must not be exported."""


def check_exportable(definition: EncoderDefinition) -> None:
    """Raises `InputError` if the pooling or the layers of a static encoder do not fold into its table; all else is exportable."""
    linear = all(isinstance(one, Dense) and not one.bias and one.activation == "identity" for one in definition.dense)
    if definition.architecture.is_static and not (definition.pooling == static.POOLING and linear):
        raise InputError(
            "a static encoder is exported as one table, which holds no pooling but mean, no norm, bias or activation; set student.head to "
            "linear or none."
        )


def exported(
    definition: EncoderDefinition, params: dict[str, np.ndarray]
) -> tuple[EncoderDefinition, dict[str, np.ndarray]]:
    """An equivalent definition that the format can express: BERT's pooler becomes a dense layer with tanh on the first token."""
    if definition.pooling.tokens != "pooler":
        return definition, params
    width = definition.architecture.hidden_size
    moved = {f"dense/0/{part}": params[f"transformer/pooler/{part}"] for part in ("kernel", "bias")}
    for index, part in enumerate(definition.dense):
        paths = zip(modules.sentence_tensors(index, part), modules.sentence_tensors(index + 1, part), strict=True)
        moved |= {after: params[before] for before, after in paths}
    dense = (Dense(in_features=width, out_features=width), *definition.dense)
    pooling = dataclasses.replace(definition.pooling, tokens="cls")
    return dataclasses.replace(definition, pooling=pooling, dense=dense), params | moved


def save(model: SentenceModel, folder: str | Path, *, card: str = "", keeps_form: bool = False) -> None:
    """Writes the model, and `card` as its `README.md`; raises `InputError` if the format cannot express the model.

    `keeps_form`: write the model's parameters unchanged. Otherwise, a static encoder's dense layers are folded into its table, and
    BERT's pooler becomes a dense layer.
    """
    folder, definition, params = Path(folder), model.definition, model.params
    check_exportable(definition)
    folder.mkdir(parents=True, exist_ok=True)
    truncation = {"direction": "Right", "max_length": model.max_length, "strategy": "LongestFirst", "stride": 0}
    if definition.architecture.is_static:
        if not keeps_form:
            params = {static.TABLE: static.folded(definition, params)}
            architecture = dataclasses.replace(definition.architecture, hidden_size=definition.embedding_width)
            definition = dataclasses.replace(definition, architecture=architecture, dense=())
        _write_table(model, definition, params[static.TABLE], folder)
        # Packages that read a table take its maximum length only from tokenizer.json.
        truncation = None if model.max_length >= static.MAX_LENGTH else truncation
    else:
        if not (keeps_form or definition.reads_pairs):
            definition, params = exported(definition, params)
        _write_transformer(model, definition, params, folder)
        _write_tokenizer_files(model, folder)
    if not definition.reads_pairs:
        _write_modules(definition, params, folder)
        settings = {"prompts": model.prompts, "default_prompt_name": model.default_prompt}
        write_json(
            folder / "config_sentence_transformers.json", settings | {"similarity_fn_name": definition.similarity}
        )
    content = json.loads(model.tokenizer.to_str()) | {"truncation": truncation, "padding": None}
    (folder / "tokenizer.json").write_text(tokenizers.tokenizer_json(content, indent=2), "utf-8")
    if card:
        (folder / "README.md").write_text(card, "utf-8")


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file; creates its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _write_transformer(
    model: SentenceModel, definition: EncoderDefinition, params: Mapping[str, np.ndarray], folder: Path
) -> None:
    """Writes the transformer, or a cross-encoder as a classifier of one label, with its configuration."""
    architecture, module = definition.architecture, family(definition.architecture.family)
    config, width = module.config(architecture), architecture.hidden_size
    if definition.reads_pairs:
        names = {path: f"{module.PREFIXES[0]}{name}" for path, name in tensor_names(module.NAMES, params).items()}
        names |= head_names(architecture)
        kinds = [name.removesuffix("Model") + modules.CLASSIFIER for name in config["architectures"]]
        sigmoid = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
        config |= {"architectures": kinds, "sentence_transformers": sigmoid}
        config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    else:
        # NOTE: if the family has a pooler and this model has none, zeros are written: otherwise AutoModel would report missing
        # weights and initialise random ones.
        zeros = {"transformer/pooler/kernel": np.zeros((width, width)), "transformer/pooler/bias": np.zeros(width)}
        params = {**zeros, **model.unread_pooler, **params}
        names = tensor_names(module.NAMES, params)
        # Makes the Transformer module output all layers, which the mean over layers needs.
        config |= {"output_hidden_states": True} if definition.pooling.averages_layers else {}
        # Lower-casing that the original's sentence_bert_config.json asked for is now part of tokenizer.json.
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": model.max_length, "do_lower_case": False})
    write_safetensors(tensors_from_params(params, names), folder / "model.safetensors")
    write_json(folder / "config.json", config)


def _write_table(
    model: SentenceModel, definition: EncoderDefinition, table: Float[np.ndarray, "v d"], folder: Path
) -> None:
    """Writes a table that sentence-transformers reads: in model2vec's format, unless the mean includes unknown tokens.

    In model2vec's format, tokens that share a row name it by `mapping`, if that makes the file smaller.
    """
    unknown = unknown_id(model.tokenizer)
    of_model2vec = definition.architecture.dropped_id == (-1 if unknown is None else unknown)
    tensors = {"embeddings" if of_model2vec else "embedding.weight": table}
    # Counted by the first dimension before: sorting whole rows takes seconds for a large vocabulary, and few tables share rows.
    if of_model2vec and 2 * len(np.unique(table[:, 0])) <= len(table):
        rows, mapping = np.unique(table, axis=0, return_inverse=True)
        if 2 * len(rows) <= len(table):
            tensors = {"embeddings": rows, "mapping": mapping.reshape(-1).astype(np.int32)}
    write_safetensors(tensors, folder / "model.safetensors")
    if of_model2vec:
        config = {
            "model_type": static.MODEL2VEC,
            "architectures": ["StaticModel"],
            "hidden_dim": definition.embedding_width,
            "normalize": definition.normalize,
            "max_length": model.max_length if model.max_length < static.MAX_LENGTH else None,
            "embedding_dtype": "float32",
        }
        write_json(folder / "config.json", config)


Part = tuple[str, dict[str, Any], dict[str, np.ndarray]]
"""Kind, config.json and tensors of a module."""


def _write_modules(definition: EncoderDefinition, params: Mapping[str, np.ndarray], folder: Path) -> None:
    """Writes `modules.json` and every module but the first, which is in the root, into its own folder."""
    pooling, width, layers = definition.pooling, definition.architecture.hidden_size, definition.architecture.layers
    is_static = definition.architecture.is_static
    is_standard = pooling.in_sentence_transformers and pooling.tokens != "pooler"
    on_tokens = is_standard and definition.dense_on_tokens and not is_static
    parts: list[Part] = [(modules.STATIC if is_static else "Transformer", {}, {})]
    dense: list[Part] = []
    if pooling.averages_layers:
        chosen = pooling.indices(layers)
        config = {"word_embedding_dimension": width, "layer_start": chosen[0], "num_hidden_layers": layers}
        weights = np.isin(np.arange(chosen[0], layers + 1), chosen).astype(np.float32)
        parts.append(("WeightedLayerPooling", config, {"layer_weights": weights}))
    if is_standard and not is_static:
        modes = modules.OLD_POOLING_FLAGS.items()
        flags = {flag: modules.POOLING_MODES[mode] == pooling.tokens for flag, mode in modes}
        pooled = definition.embedding_width if on_tokens else width
        parts.append(("Pooling", {"word_embedding_dimension": pooled, **flags, "include_prompt": True}, {}))
    elif not is_static:
        parts.append((modules.LAYER_POOLING, {"pooling": str(pooling)}, {}))
    activations = {ours: theirs for theirs, ours in modules.DENSE_ACTIVATIONS.items()}
    for index, part in enumerate(definition.dense):
        kind, config = "LayerNorm", {"dimension": part.in_features}
        if isinstance(part, Dense):
            kind, config = "Dense", {name: getattr(part, name) for name in ("in_features", "out_features", "bias")}
            config |= {"activation_function": activations[part.activation]}
        config |= {"module_input_name": modules.TOKENS} if on_tokens else {}
        dense.append((kind, config, tensors_from_params(params, modules.sentence_tensors(index, part))))
    pooled_at = len(parts) - 1 if on_tokens else len(parts)  # layers on tokens come before the pooling
    parts[pooled_at:pooled_at] = dense
    parts += [("Normalize", {}, {})] if definition.normalize else []
    entries = []
    for index, (kind, config, tensors) in enumerate(parts):
        package = "jaxdistill" if kind == modules.LAYER_POOLING else "sentence_transformers.models"
        path = f"{index}_{kind}" if index else ""
        entries.append({"idx": index, "name": str(index), "path": path, "type": f"{package}.{kind}"})
        if index:
            write_json(folder / path / "config.json", config)
        if tensors:
            write_safetensors(tensors, folder / path / "model.safetensors")
    write_json(folder / "modules.json", entries)


def _write_tokenizer_files(model: SentenceModel, folder: Path) -> None:
    """Writes the tokenizer's files besides `tokenizer.json`, for transformers."""
    origin, tokenizer = model.tokenizer_folder, model.tokenizer
    for name in tokenizers.TOKENIZER_FILES:
        if (origin / name).exists() and origin.resolve() != folder.resolve():
            shutil.copyfile(origin / name, folder / name)
    config: dict[str, Any] = {
        role: text
        for role, texts in SPECIAL_TOKENS.items()
        for text in texts[::-1]  # reversed: the first one that exists wins
        if tokenizer.token_to_id(text) is not None
    }
    config |= read_settings(origin / tokenizers.CONFIG) if (origin / tokenizers.CONFIG).exists() else {}
    config = {key: value for key, value in tokenizers.without_paths(config).items() if key not in PROGRAM_SETTINGS}
    typed = model.definition.architecture.token_types > 1
    if normalizer := tokenizers.wordpiece_settings(tokenizer, config.get("tokenizer_class")):
        config |= normalizer
        typed = typed and model.definition.reads_pairs
    else:
        config = {key: value for key, value in config.items() if key not in tokenizers.UNREAD_SETTINGS}
        config |= {"tokenizer_class": tokenizers.GENERIC, "model_input_names": ["input_ids", "attention_mask"]}
    if typed:  # the generic class passes token types to the model only if they are named
        config |= {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    write_json(folder / tokenizers.CONFIG, config | {"model_max_length": model.max_length})
