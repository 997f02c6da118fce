"""Writes a model so that sentence-transformers and transformers load it.

The transformer is in the root, where `AutoModel` finds it; pooling, dense layers and normalisation each have a subfolder. Every
release of sentence-transformers since 2.0 reads this. Only linear heads need 5.4: they act on tokens, before pooling, so that
runtimes that run no module after pooling get the same vectors.

Poolings that sentence-transformers lacks (of the second-to-last layer, or that concatenate layers or take their maximum) are
written as this project's module `LayerPooling`, which sentence-transformers refuses.
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxdistill.core import InputError
from jaxdistill.encoders.architecture import Dense, EncoderDefinition
from jaxdistill.encoders.families import family, head_names
from jaxdistill.encoders.hugging_face import read_settings, tensor_names
from jaxdistill.models.checkpoints import modules, static
from jaxdistill.models.checkpoints import tokenizer as tokenizers
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.checkpoints.weights import Arrays, tensors_from_params, write_safetensors

TEXTS_OF_SPECIAL_TOKENS = {
    "unk_token": ("[UNK]", "<unk>"), "pad_token": ("[PAD]", "<pad>"), "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"), "mask_token": ("[MASK]", "<mask>"),
}  # fmt: skip
"""Maps settings of `tokenizer_config.json` to the texts that their tokens may have, the more common one first."""
PROGRAM_SETTINGS = ("name_or_path", "max_length", "stride", "pad_to_multiple_of", "local_files_only")
"""Settings of `tokenizer_config.json` that belong to the program that saved it; they are not exported."""
CLASS_SETTINGS = (*tokenizers.NORMALIZER_SETTINGS, "do_basic_tokenize", "never_split", "add_prefix_space")
"""Settings of `tokenizer_config.json` by which tokenizer classes override `tokenizer.json`; the generic class has none."""


def check_exportable(definition: EncoderDefinition) -> None:
    """Raises `InputError` for a static encoder that cannot be written as one table pooled by mean; all others can be exported."""
    is_linear = not definition.dense or definition.dense_on_tokens  # linear layers may act on the rows of a table
    has_bias = any(isinstance(layer, Dense) and layer.bias for layer in definition.dense)
    folds = definition.pooling == static.POOLING and is_linear and not has_bias
    if definition.architecture.is_static and not folds:
        raise InputError(
            "a static encoder is exported as one table, pooled by mean, without norm, bias or activation; set student.head to linear or none."
        )


def save(model: SentenceModel, folder: str | Path, *, card: str = "", keeps_form: bool = False) -> None:
    """Writes the model, and `card` as its `README.md`; raises `InputError` if the format cannot express the model. Unless `keeps_form`,
    an equivalent model is written that sentence-transformers can express: a static encoder's dense layers are folded into its table,
    and BERT's pooler becomes a dense layer with tanh on the first token."""
    check_exportable(model.definition)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not keeps_form:
        model = _portable(model)
    definition = model.definition
    if definition.architecture.is_static:
        _write_table(model, folder)
    else:
        _write_transformer(model, folder)
        _write_tokenizer_files(model, folder)
    settings = {"prompts": model.prompts, "default_prompt_name": model.default_prompt}
    if not definition.reads_pairs:
        _write_modules(definition, model.params, folder)
        settings |= {"similarity_fn_name": definition.similarity}
        write_json(folder / "config_sentence_transformers.json", settings)
    elif model.prompts:  # sentence-transformers reads a cross-encoder's prompts only beside `modules.json`
        entry = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
        write_json(folder / "modules.json", [entry])
        write_json(folder / "sentence_bert_config.json", {"transformer_task": "sequence-classification"})
        write_json(folder / "config_sentence_transformers.json", settings | {"model_type": "CrossEncoder"})
    # Programs that read a static table may know its maximum length only from here; `MAX_LENGTH` stands for none.
    truncation = {"direction": "Right", "max_length": model.max_length, "strategy": "LongestFirst", "stride": 0}
    has_limit = not definition.architecture.is_static or model.max_length < static.MAX_LENGTH
    content = json.loads(model.tokenizer.to_str()) | {"truncation": truncation if has_limit else None, "padding": None}
    (folder / "tokenizer.json").write_text(tokenizers.tokenizer_json(content, indent=2), "utf-8")
    if card:
        (folder / "README.md").write_text(card, "utf-8")


def _portable(model: SentenceModel) -> SentenceModel:
    """An equivalent model without dense layers on a static table, and with a dense layer for BERT's pooler unless it reads pairs."""
    definition = model.definition
    if definition.architecture.is_static:
        definition, params = static.folded(definition, model.params)
        return dataclasses.replace(model, definition=definition, params=params)
    if definition.pooling.tokens != "pooler" or definition.reads_pairs:
        return model
    params = {f"dense/0/{leaf}": model.params[f"transformer/pooler/{leaf}"] for leaf in ("kernel", "bias")}
    for index, layer in enumerate(definition.dense):  # each moves up by one, because the pooler is layer 0 now
        old_paths = modules.dense_names(index, layer)
        new_paths = modules.dense_names(index + 1, layer)
        params |= {new: model.params[old] for old, new in zip(old_paths, new_paths, strict=True)}
    width = definition.architecture.hidden_size
    dense = (Dense(in_features=width, out_features=width), *definition.dense)
    pooling = dataclasses.replace(definition.pooling, tokens="cls")
    definition = dataclasses.replace(definition, pooling=pooling, dense=dense)
    return dataclasses.replace(model, definition=definition, params=model.params | params)  # AutoModel reads the pooler


def _write_table(model: SentenceModel, folder: Path) -> None:
    """Writes a static encoder's table: in model2vec's format if its mean ignores unknown tokens, else in `StaticEmbedding`'s."""
    definition, table = model.definition, model.params[static.TABLE]
    if definition.architecture.dropped_id == static.dropped_id(model.tokenizer):
        tensors = {"embeddings": table}
        # Stores equal rows once if that halves the table. Tries one dimension first, because sorting whole rows takes seconds.
        if 2 * len(np.unique(table[:, 0])) <= len(table):
            rows, row_of_token = np.unique(table, axis=0, return_inverse=True)  # [v], in NumPy 2.0.0 [v, 1]
            if 2 * len(rows) <= len(table):
                tensors = {"embeddings": rows, "mapping": row_of_token.reshape(-1).astype(np.int32)}
        max_length = model.max_length if model.max_length < static.MAX_LENGTH else None
        config = {"model_type": "model2vec", "architectures": ["StaticModel"]}
        config |= {"hidden_dim": definition.embedding_width, "normalize": definition.normalize}
        write_json(folder / "config.json", config | {"max_length": max_length, "embedding_dtype": "float32"})
    else:
        tensors = {"embedding.weight": table}
    write_safetensors(tensors, folder / "model.safetensors")


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file; creates its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _write_transformer(model: SentenceModel, folder: Path) -> None:
    """Writes the transformer, or a cross-encoder as a classifier of one label, with its configuration."""
    definition, params = model.definition, model.params
    architecture = definition.architecture
    family_module = family(architecture.family)
    config = family_module.config(architecture)
    if definition.reads_pairs:
        prefix = family_module.PREFIXES[0]  # a classifier's names of the transformer's tensors begin with it
        names = {path: f"{prefix}{name}" for path, name in tensor_names(family_module.NAMES, params).items()}
        names |= head_names(architecture)
        config |= {
            "architectures": [entry.removesuffix("Model") + modules.CLASSIFIER for entry in config["architectures"]],
            "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},  # of the logits
            "id2label": {"0": "LABEL_0"},  # transformers counts labels by this key
            "label2id": {"LABEL_0": 0},
        }
    else:
        # NOTE: if the family has a pooler and this model has none, zeros are written: otherwise AutoModel would report missing
        # weights and initialise random ones. `NAMES` of other families leaves the pooler out.
        width = architecture.hidden_size
        zeros = {"transformer/pooler/kernel": np.zeros((width, width)), "transformer/pooler/bias": np.zeros(width)}
        params = {**zeros, **model.unread_pooler, **params}
        names = tensor_names(family_module.NAMES, params)
        if definition.pooling.averages_layers:
            config["output_hidden_states"] = True  # else sentence-transformers does not average layers
        # `do_lower_case` is False: if the original model lower-cases text, tokenizer.json now says so.
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": model.max_length, "do_lower_case": False})
    write_safetensors(tensors_from_params(params, names), folder / "model.safetensors")
    write_json(folder / "config.json", config)


def _write_modules(definition: EncoderDefinition, params: Mapping[str, np.ndarray], folder: Path) -> None:
    """Writes `modules.json`, and each module except the first, which is in the root, into its folder."""
    pooling = definition.pooling
    width, is_static = definition.architecture.hidden_size, definition.architecture.is_static
    # A module has a kind, settings and tensors. First those of dense layers.
    dense: list[tuple[str, dict[str, Any], Arrays]] = []
    activations = {ours: theirs for theirs, ours in modules.DENSE_ACTIVATIONS.items()}
    for index, layer in enumerate(definition.dense):
        kind = "Dense" if isinstance(layer, Dense) else "LayerNorm"
        config: dict[str, Any] = {"dimension": layer.in_features}  # of a LayerNorm
        if isinstance(layer, Dense):
            config = {name: getattr(layer, name) for name in ("in_features", "out_features", "bias")}
            config["activation_function"] = activations[layer.activation]
        if definition.dense_on_tokens and not is_static:  # a static table pools by itself, before all layers
            config["module_input_name"] = modules.TOKENS
        dense.append((kind, config, tensors_from_params(params, modules.dense_names(index, layer))))
    chain = [(modules.STATIC if is_static else "Transformer", {}, {})]
    if is_static:
        chain += dense
    elif not pooling.in_sentence_transformers or pooling.tokens == "pooler":  # `save` keeps a pooler only if asked to
        chain += [(modules.LAYER_POOLING, {"pooling": str(pooling)}, {}), *dense]
    else:
        if pooling.averages_layers:
            layers = definition.architecture.layers
            chosen = pooling.indices(layers)
            config = {"word_embedding_dimension": width, "layer_start": chosen[0], "num_hidden_layers": layers}
            # One weight for each hidden state from the first chosen one to the last.
            weights = np.isin(np.arange(chosen[0], layers + 1), chosen).astype(np.float32)
            chain.append(("WeightedLayerPooling", config, {"layer_weights": weights}))
        flags = {flag: ours == pooling.tokens for flag, (_, ours) in modules.POOLINGS.items()}
        pooled_width = definition.embedding_width if definition.dense_on_tokens else width
        config = {"word_embedding_dimension": pooled_width, **flags, "include_prompt": True}
        token_pooling = ("Pooling", config, {})
        chain += [*dense, token_pooling] if definition.dense_on_tokens else [token_pooling, *dense]
    if definition.normalize:
        chain.append(("Normalize", {}, {}))
    entries = []
    for index, (kind, config, tensors) in enumerate(chain):
        package = "jaxdistill" if kind == modules.LAYER_POOLING else "sentence_transformers.models"
        path = f"{index}_{kind}" if index else ""
        entries.append({"idx": index, "name": str(index), "path": path, "type": f"{package}.{kind}"})
        if index:
            write_json(folder / path / "config.json", config)
        if tensors:
            write_safetensors(tensors, folder / path / "model.safetensors")
    write_json(folder / "modules.json", entries)


def _write_tokenizer_files(model: SentenceModel, folder: Path) -> None:
    """Writes the tokenizer's files besides `tokenizer.json`, for transformers and for programs that read only these. They name the
    class of the original model if it splits text as the tokenizer does, or else the generic class."""
    origin = model.tokenizer_folder
    for name in tokenizers.TOKENIZER_FILES:
        if (origin / name).exists() and origin.resolve() != folder.resolve():
            shutil.copyfile(origin / name, folder / name)
    config: dict[str, Any] = {}
    for setting, texts in TEXTS_OF_SPECIAL_TOKENS.items():
        if present := [text for text in texts if model.tokenizer.token_to_id(text) is not None]:
            config[setting] = present[0]
    if (origin / tokenizers.CONFIG).exists():
        config |= tokenizers.without_paths(read_settings(origin / tokenizers.CONFIG))
    config = {key: value for key, value in config.items() if key not in PROGRAM_SETTINGS}
    wordpiece_settings = tokenizers.wordpiece_settings(model.tokenizer)
    class_name = str(config.get("tokenizer_class")).removesuffix("Fast")
    keeps_class = bool(wordpiece_settings) and class_name in tokenizers.WORDPIECE_CLASSES
    if keeps_class:
        config |= wordpiece_settings
    else:
        config = {key: value for key, value in config.items() if key not in CLASS_SETTINGS}
        config |= {"tokenizer_class": tokenizers.GENERIC_CLASS, "model_input_names": ["input_ids", "attention_mask"]}
    # The generic class passes token types only if they are named; cross-encoders need them from every class.
    has_types = model.definition.architecture.token_types > 1
    if has_types and (model.definition.reads_pairs or not keeps_class):
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    write_json(folder / tokenizers.CONFIG, config | {"model_max_length": model.max_length})
