"""Finds a model's files and loads a sentence encoder with everything that turns text into vectors."""

import dataclasses
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import yaml
from jax.sharding import Mesh

from jaxdistill.core import ROLES, InputError, Params, error_line, errors_of
from jaxdistill.core.cluster.mesh import FrozenParams
from jaxdistill.core.files import MARK, buckets, is_remote, while_reading
from jaxdistill.core.paths import in_package, public_name
from jaxdistill.core.plugins import use as use_plugins
from jaxdistill.encoders.architecture import POOLING_HELP, Architecture, EncoderDefinition, Pooling, cache_key
from jaxdistill.encoders.families import cross_definition, family, head_names
from jaxdistill.encoders.hugging_face import QUANTISED, read_settings, refuse_others, tensor_names
from jaxdistill.encoders.sentence import param_shapes, with_stacks
from jaxdistill.models.checkpoints import static
from jaxdistill.models.checkpoints.modules import Modules, dense_names, read_modules
from jaxdistill.models.checkpoints.tokenizer import length_limit, passes_token_types, read_tokenizer
from jaxdistill.models.checkpoints.weights import Arrays, params_from_tensors, read_checkpoint, with_transposed_kernel

logger = logging.getLogger(__name__)

HUB_FILES = ["README.md", "*.json", "*.txt", "*.model", "*.safetensors", "*pytorch_model*.bin"]
"""The model card, configuration, tokenizer and weights, also in the folders of modules; no code."""
POOLER = "transformer/pooler/"
TOKEN_TYPES = "transformer/embeddings/token_type/embedding"
NO_PROMPT = "none"
TOKENISED_ROWS = 4096  # texts tokenised in one call, on all cores


def locate(spec: str) -> Path:
    """The local folder of a model. Its files are downloaded first if they are in a bucket or on the hub. `spec` is a folder,
    `package:NAME/PATH` inside an installed package, an address in a bucket, or a hub name."""
    if is_remote(spec):
        return buckets.fetched_folder(spec, HUB_FILES)
    folder = in_package(spec) if spec.startswith("package:") else Path(os.path.expanduser(spec))
    if spec and folder.is_dir():  # an empty path would be the working directory
        if (folder / "checkpoints").is_dir() and (folder / "export").is_dir():
            raise InputError(f"{spec} is the workdir of a training, not a model; its student is {folder / 'export'}.")
        return folder
    if not is_hub_model(spec):
        raise InputError(f"model folder {spec!r} does not exist; give a folder, package:NAME/PATH, or a hub name.")
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(spec, allow_patterns=HUB_FILES, ignore_patterns=["onnx/*", "openvino/*"])
        )
    except Exception as error:  # without a network, the libraries below raise errors of many types
        raise InputError(
            f"model {spec!r} is not a local folder and cannot be downloaded from the hub ({error_line(error):.200}); "
            "give a local folder, or set HF_HOME to a cache that holds it, with HF_HUB_OFFLINE=1 without network."
        ) from None


def is_hub_model(spec: str) -> bool:
    """Whether `spec` names a model on the hub: at most one slash, and no local path."""
    is_path = spec.startswith((".", "/", "~", "package:")) or spec.count("/") > 1 or Path(spec).exists()
    return bool(spec) and not is_path and not is_remote(spec)


def read_card(folder: Path, source: str) -> dict[str, tuple[str, ...]]:
    """The fields `base_models` and `languages` of a `SentenceModel`, from the model card in `folder`. For anything but an export of
    this project, the only base model is the checkpoint itself, named `source`."""
    try:
        [front_matter] = re.findall(r"\A\s*---\n(.*?)\n---", (folder / "README.md").read_text("utf-8"), re.DOTALL)
        data = dict(yaml.safe_load(front_matter))
    except Exception:  # a missing or broken card must not stop the model from loading
        data = {}

    def texts(value: Any) -> tuple[str, ...]:
        values = value if isinstance(value, list) else [value]
        return tuple(text for text in values if isinstance(text, str))

    base_models = texts(data.get("base_model")) if (folder / MARK).is_file() else ()  # only exports have `MARK`
    return {"base_models": base_models or (public_name(source),), "languages": texts(data.get("language"))}


def check_size(option: str, size: int, most: int, limit: str, *, least: int = 1) -> None:
    """Raises `InputError` unless `size`, the value of `option`, is from `least` to `most`. `limit` explains `most` in the message."""
    if not least <= size <= most:
        raise InputError(f"{option}={size} must be from {least} to {most}, {limit}.")


def prompt_text(prompts: Mapping[str, str], prompt: str) -> str:
    """The text of `prompt`, which is a name in `prompts`, `none` for no text, or the text itself. In a text, a backslash and n
    stand for a line break (`Instruct: ...\\nQuery: `)."""
    if prompt in prompts:
        return prompts[prompt]
    if prompt == NO_PROMPT:
        return ""
    if prompt.isidentifier():  # a single word may be a misspelt name
        logger.warning(
            "prompt %r is put before every sentence as it is: the model has no prompt of this name (it has %s)",
            prompt, ", ".join(prompts) or "none",
        )  # fmt: skip
    return prompt.replace(r"\n", "\n")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SentenceModel:
    """A sentence encoder, or a cross-encoder, with its weights, tokenizer and prompts."""

    definition: EncoderDefinition
    params: Arrays
    """A flat dict by path, on the host, in float32; of a model loaded as `frozen`, in the dtype of the file."""
    tokenizer: tokenizers.Tokenizer  # truncates to `max_length`; does not pad
    max_length: int  # maximum tokens per sentence, special tokens included
    prompts: dict[str, str]
    default_prompt: str | None  # name of the prompt prepended to every sentence; None: no prompt
    source: str  # the model's name, or what it was made from, for logs, errors and model cards
    tokenizer_folder: Path  # an export copies `tokenizer_config.json` and similar files from here
    checkpoint_prompt: str | None = None  # name of the checkpoint's default prompt, which `default_prompt` may override
    base_models: tuple[str, ...] = ()  # what an export of this project was made from; any other checkpoint: itself
    languages: tuple[str, ...] = ()
    unread_pooler: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """BERT's pooler if the pooling does not read it. Exports keep it, because a cross-encoder may start from them."""

    @property
    def prompt(self) -> str:
        """The text prepended to every sentence (for pairs: to the first one), often empty."""
        return self.prompts[self.default_prompt] if self.default_prompt else ""

    @property
    def role_prompts(self) -> dict[str, str]:
        """Maps each role to its prompt; the empty key is for sentences without a role."""
        prompts = {"": self.prompt}
        for role, names in ROLES.items():
            prompts[role] = next((self.prompts[name] for name in names if name in self.prompts), "")
        return prompts

    @property
    def parameter_count(self) -> int:
        """Number of parameters. Dense layers of a static encoder are not counted separately: exports fold them into the table."""
        if self.definition.architecture.is_static:
            return self.definition.architecture.vocab_size * self.definition.embedding_width
        return sum(array.size for array in self.params.values())

    def encodings(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], *, offsets: bool = False
    ) -> Iterator[tokenizers.Encoding]:
        """Yields tokenised sentences or pairs. They are tokenised in blocks, because an encoding takes 40 times the memory of its ids.
        They have offsets only with `offsets`, which is slower. Raises `InputError` if the tokenizer fails or panics."""
        encode = self.tokenizer.encode_batch if offsets else self.tokenizer.encode_batch_fast
        for begin in range(0, len(texts), TOKENISED_ROWS):
            with while_reading(f"the text with the tokenizer of {self.source}"):
                block = encode(list(texts[begin : begin + TOKENISED_ROWS]))
            yield from block

    def digest(self) -> str:
        """SHA-256 of everything that determines the vectors or scores, except the precision."""
        sha = hashlib.sha256(cache_key(self.definition).encode())
        for path in sorted(self.params):
            array = np.ascontiguousarray(self.params[path], np.float32)
            sha.update(f"{path}{array.shape}".encode())
            sha.update(array.data)
        sha.update(self.tokenizer.to_str().encode())
        settings: list[Any] = [self.max_length, self.prompts, self.default_prompt]
        if self.definition.reads_pairs:  # `cache_key` leaves this out
            settings.append("scores pairs")
        sha.update(json.dumps(settings, sort_keys=True).encode())
        return sha.hexdigest()

    def with_prompt(self, prompt: str) -> "SentenceModel":
        """The same model with another default prompt: the name of one of its prompts, or a text."""
        if prompt in self.prompts:
            return dataclasses.replace(self, default_prompt=prompt)
        prompts = self.prompts | {"prompt": prompt_text(self.prompts, prompt)}
        return dataclasses.replace(self, prompts=prompts, default_prompt="prompt")

    def with_role_prompts(self, prompts: Mapping[str, str]) -> "SentenceModel":
        """The same model with other prompts for some roles. `prompts` maps a role to a prompt as in `prompt_text`; an empty string
        keeps the role's present prompt."""
        # Each is stored under the role's own name, even if the checkpoint has it under another (`passage`) or lacks it.
        present = {role: self.role_prompts[role] for role in prompts}
        new = {role: prompt_text(self.prompts, prompt) for role, prompt in prompts.items() if prompt}
        return dataclasses.replace(self, prompts=self.prompts | present | new)

    def with_architecture(self, **changes: Any) -> "SentenceModel":
        """The same model with other values of some fields of its `Architecture`."""
        architecture = dataclasses.replace(self.definition.architecture, **changes)
        return dataclasses.replace(self, definition=dataclasses.replace(self.definition, architecture=architecture))

    def as_pooled(self) -> "SentenceModel":
        """The same model without its Normalize module."""
        return dataclasses.replace(self, definition=dataclasses.replace(self.definition, normalize=False))

    def frozen_params(self, mesh: Mesh) -> FrozenParams:
        """The parameters for `place_frozen`, which moves them to devices. Except on CPUs, it gets lists of repeated layers' arrays to stack."""
        return with_stacks(self.definition.architecture, mesh, self.params, list)

    def with_length(self, length: int) -> "SentenceModel":
        """The same model with another maximum length."""
        tokenizer = tokenizers.Tokenizer.from_str(self.tokenizer.to_str())  # other models may share it
        tokenizer.enable_truncation(length)
        return dataclasses.replace(self, tokenizer=tokenizer, max_length=length)

    def with_params(self, params: Params) -> "SentenceModel":
        """The same model with other weights, such as trained ones, in float32."""
        return dataclasses.replace(self, params={path: np.asarray(params[path], np.float32) for path in self.params})


def load_model(
    spec: str, *, pooling: str = "", max_length: int = 0, prompt: str = "", frozen: bool = False, plugins: str = ""
) -> SentenceModel:
    """Loads a sentence encoder, or a cross-encoder, which is a classifier of one label. `pooling`, `max_length` and `prompt` (its name or
    text) replace the checkpoint's unless empty or 0; with a `pooling`, a cross-encoder's body is read as a sentence encoder. `frozen`,
    for a model that is not trained, keeps weights in the stored dtype. `plugins` are modules or files, separated by commas."""
    use_plugins(plugins)
    folder = locate(str(spec))
    with while_reading(folder):
        modules = read_modules(folder)
        root = modules.transformer
        if modules.is_static:
            architecture, table, tokenizer, limit = static.read(root)
            definition = _definition(architecture, modules, pooling, folder)
            params = {static.TABLE: table}
            unread_pooler = {}
        else:
            architecture = _with_positions(read_architecture(root), modules.max_length, folder)
            limit = modules.max_length or length_limit(root)
            tokenizer = read_tokenizer(root, vocab_size=architecture.vocab_size, lower_case=modules.lower_case)
            definition = _definition(architecture, modules, pooling, folder)
            params, unread_pooler = _transformer_params(definition, root, frozen=frozen)
        for index, (layer, layer_folder) in enumerate(modules.dense):
            names, shapes = dense_names(index, layer), param_shapes(definition)
            params |= params_from_tensors(read_checkpoint(layer_folder), names, shapes, source=str(layer_folder))
    longest = architecture.longest
    if max_length:
        # At least two special tokens and one other.
        check_size("max_length", max_length, longest, "the tokens that this encoder reads", least=3)
    length = max_length or min(limit or longest, longest)
    tokenizer.enable_truncation(length)
    prompts = modules.prompts
    if modules.default_prompt in ROLES:  # sentence-transformers always has the prompts of both roles
        prompts = {modules.default_prompt: ""} | prompts
    if modules.default_prompt and modules.default_prompt not in prompts:
        raise InputError(f"{folder}: default_prompt_name={modules.default_prompt!r:.60} is none of its prompts.")
    model = SentenceModel(
        definition=definition, params=params, unread_pooler=unread_pooler,
        tokenizer=tokenizer, tokenizer_folder=root, max_length=length,
        prompts=prompts, default_prompt=modules.default_prompt, checkpoint_prompt=modules.default_prompt,
        source=str(spec), **read_card(folder, str(spec)),
    )  # fmt: skip
    return model.with_prompt(prompt) if prompt else model


def _with_positions(architecture: Architecture, length: int, folder: Path) -> Architecture:
    """The architecture for texts of `length` tokens, which may be more than `config.json` says unless there is a table of positions."""
    if architecture.position_table or length <= architecture.longest:
        return architecture
    if architecture.family == "nomic_bert":  # its own code rescales the positions of longer texts; ours cannot
        logger.warning("%s: texts are cut at %d tokens", folder, architecture.longest)
        return architecture
    return dataclasses.replace(architecture, max_positions=length)


def _definition(architecture: Architecture, modules: Modules, pooling: str, folder: Path) -> EncoderDefinition:
    """The encoder that `modules` describe. A `pooling` that is not empty replaces theirs, or their classification head."""
    chosen = Pooling.parse(pooling) if pooling else modules.pooling
    labels = modules.labels
    stated = f"head of {labels} label(s)" if labels else modules.pooling
    if pooling and stated is not None and stated != chosen:
        logger.warning("%s: pooling=%s instead of the checkpoint's own %s", folder, pooling, stated)
    if chosen is not None:
        architecture = dataclasses.replace(architecture, pooler=chosen.tokens == "pooler")
        return EncoderDefinition(
            architecture=architecture, pooling=chosen, dense=tuple(layer for layer, _ in modules.dense),
            normalize=modules.normalize, similarity=modules.similarity,
        )  # fmt: skip
    if labels == 1:
        return cross_definition(architecture)
    if labels > 1:
        raise InputError(f"{folder} is a classifier with {labels} labels; a cross-encoder has one. Name a pooling.")
    raise InputError(
        f"{folder} does not say how to pool token vectors; set student.pooling, teacher.pooling or --pooling: {POOLING_HELP}."
    )


def read_architecture(folder: Path) -> Architecture:
    """The architecture that the `config.json` in `folder` describes."""
    config = read_settings(folder / "config.json")
    with errors_of(str(folder)), while_reading("config.json"):
        refuse_others(config, QUANTISED, advice=": dequantize() the model in transformers and save it again")
        return family(config["model_type"]).architecture(config)


def _transformer_params(definition: EncoderDefinition, folder: Path, *, frozen: bool) -> tuple[Arrays, Arrays]:
    """The parameters of a transformer, with a cross-encoder's head, and those of a pooler that the definition does not use."""
    tensors = read_checkpoint(folder)
    shapes = param_shapes(definition)
    module = family(definition.architecture.family)
    names = tensor_names(module.NAMES, shapes)
    params = params_from_tensors(tensors, names, shapes, prefixes=module.PREFIXES, source=str(folder), frozen=frozen)
    if definition.pooling.tokens == "pooler" and POOLER + "kernel" not in params:
        raise InputError(f"{folder}: pooling pooler needs a pooler, which this checkpoint lacks.")
    if definition.reads_pairs:
        # The head's names have no prefix, so it is read apart, and without the body's tensors, which would be refused as unknown.
        names_of_head = head_names(definition.architecture)
        head = {name: tensor for name, tensor in tensors.items() if name in names_of_head.values()}
        params |= params_from_tensors(head, names_of_head, shapes, source=str(folder))
        if len(params.get(TOKEN_TYPES, ())) > 1 and not passes_token_types(folder):
            logger.warning("%s: both sentences of a pair are of token type 0, as tokenizer_config.json says", folder)
            params[TOKEN_TYPES] = np.repeat(params[TOKEN_TYPES][:1], len(params[TOKEN_TYPES]), axis=0)
    uses_pooler = POOLER + "kernel" in params
    return params, {} if uses_pooler else _trained_pooler(tensors, definition.architecture.hidden_size)


def _trained_pooler(tensors: Mapping[str, np.ndarray], width: int) -> Arrays:
    """BERT's pooler in a checkpoint, under any prefix. Empty if it is missing, or zero: exports write zeros in place of a missing pooler."""
    pooler = {}
    for name, tensor in tensors.items():
        for path, suffix, shape in ((POOLER + "kernel", "weight", (width, width)), (POOLER + "bias", "bias", (width,))):
            if name.endswith(f"pooler.dense.{suffix}") and tensor.shape == shape:
                pooler[path] = with_transposed_kernel(path, tensor.astype(np.float32))
    return pooler if len(pooler) == 2 and np.any(pooler[POOLER + "kernel"]) else {}
