"""Finds a model's files and loads a sentence encoder with everything that turns text into vectors."""

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jax.sharding import Mesh

from jaxdistill.core import ROLES, InputError, Params, error_line, errors_of
from jaxdistill.core.cluster.mesh import FrozenParams
from jaxdistill.core.files import MARK, buckets, is_remote, while_reading
from jaxdistill.core.paths import in_package, public_name
from jaxdistill.core.plugins import use as use_plugins
from jaxdistill.encoders.architecture import POOLING_HELP, Architecture, EncoderDefinition, Pooling, identity
from jaxdistill.encoders.families import cross_definition, family, head_names
from jaxdistill.encoders.hugging_face import QUANTISED, read_settings, refuse_others, tensor_names
from jaxdistill.encoders.sentence import param_shapes, with_stacks
from jaxdistill.models.checkpoints import static
from jaxdistill.models.checkpoints.modules import read_modules, sentence_tensors
from jaxdistill.models.checkpoints.tokenizer import gives_types, length_limit, read_tokenizer
from jaxdistill.models.checkpoints.weights import in_torch_layout, params_from_tensors, read_checkpoint

logger = logging.getLogger(__name__)

HUB_FILES = ["README.md", "*.json", "*.txt", "*.model", "*.safetensors", "*pytorch_model*.bin"]
"""The model card, configuration, tokenizer and weights, also in the folders of modules; no code."""
POOLER = "transformer/pooler/"
TOKEN_TYPES = "transformer/embeddings/token_type/embedding"
NO_PROMPT = "none"
TOKENISED_ROWS = 4096
"""Number of texts tokenised in one call, on all cores."""


def locate(spec: str) -> Path:
    """The local folder of a model; `spec` is a folder, `package:NAME/PATH` inside an installed package, an address in a bucket or a
    hub name, from which the files are downloaded."""
    if is_remote(spec):
        return buckets.fetched_folder(spec, HUB_FILES)
    folder = in_package(spec) if spec.startswith("package:") else Path(os.path.expanduser(spec))
    if spec and folder.is_dir():
        if (folder / "checkpoints").is_dir() and (folder / "export").is_dir():
            raise InputError(f"{spec} is the workdir of a training, not a model; its student is {folder / 'export'}.")
        return folder
    if not is_on_hub(spec):
        raise InputError(f"model folder {spec!r} does not exist; give a folder, package:NAME/PATH, or a hub name.")
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(spec, allow_patterns=HUB_FILES, ignore_patterns=["onnx/*", "openvino/*"])
        )
    except Exception as error:  # every library below it raises its own error without a network
        raise InputError(
            f"model {spec!r} is not a local folder and cannot be downloaded from the hub ({error_line(error):.200}); "
            "give a local folder, or set HF_HOME to a cache that holds it, with HF_HUB_OFFLINE=1 without network."
        ) from None


def is_on_hub(spec: str) -> bool:
    """Whether `locate` takes the name of a model for one on the hub."""
    is_path = spec.startswith((".", "/", "~", "package:")) or spec.count("/") > 1 or Path(spec).exists()
    return bool(spec) and not is_path and not is_remote(spec)


def read_card(folder: Path, source: str) -> dict[str, tuple[str, ...]]:
    """`base_models` and `languages` of a `SentenceModel`, from its card; only exports of this project state base models."""
    from huggingface_hub import ModelCard

    try:
        data = ModelCard.load(folder / "README.md", ignore_metadata_errors=True).data.to_dict()
    except Exception:  # whatever is in the file: loading the model needs none of it
        data = {}

    def texts(key: str) -> tuple[str, ...]:
        value = data.get(key)
        return tuple(text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str))

    base_models = texts("base_model") if (folder / MARK).is_file() else ()
    return {"base_models": base_models or (public_name(source),), "languages": texts("language")}


def check_size(option: str, size: int, most: int, limit: str, *, least: int = 1) -> None:
    """Raises `InputError` if `size`, the value of `option`, is not from `least` to `most`; `limit` says in words what `most` is."""
    if not least <= size <= most:
        raise InputError(f"{option}={size} must be from {least} to {most}, {limit}.")


def prompt_text(prompts: Mapping[str, str], prompt: str) -> str:
    """The text of a prompt given as one of the names in `prompts`, as `none` (an empty text), or as the text itself, in which a
    backslash and n stand for a line break (`Instruct: ...\\nQuery: `)."""
    if prompt in prompts:
        return prompts[prompt]
    if prompt.isidentifier() and prompt != NO_PROMPT:
        logger.warning(
            "prompt %r is put before every sentence as it is: the model has no prompt of this name (it has %s)",
            prompt, ", ".join(prompts) or "none",
        )  # fmt: skip
    return "" if prompt == NO_PROMPT else prompt.replace(r"\n", "\n")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SentenceModel:
    """A sentence encoder, or a cross-encoder, with its weights, tokenizer and prompts."""

    definition: EncoderDefinition
    params: dict[str, np.ndarray]
    """A flat dict by path, on the host; float32, or as stored in the file if the model is frozen."""
    tokenizer: tokenizers.Tokenizer
    """Truncates to `max_length`; does not pad."""
    max_length: int
    """Maximum tokens per sentence, special tokens included; longer ones are truncated."""
    prompts: dict[str, str]
    default_prompt: str | None
    """Name of the prompt prepended to every sentence; None: no prompt."""
    source: str
    """The model's name, or what it was made from, for logs, errors and model cards."""
    tokenizer_folder: Path
    """Folder from which an export copies `tokenizer_config.json` and similar files."""
    checkpoint_prompt: str | None = None
    """Name of the checkpoint's own default prompt; `default_prompt` is another if one was requested."""
    base_models: tuple[str, ...] = ()
    """For an export of this project, the models that it was made from; for any other checkpoint, itself."""
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
        """Yields tokenised sentences or pairs, block by block, because an encoding takes 40 times the memory of its ids.

        Without `offsets`, which is faster, the encodings have none. Raises `InputError` if the tokenizer fails or panics.
        """
        encode = self.tokenizer.encode_batch if offsets else self.tokenizer.encode_batch_fast
        for begin in range(0, len(texts), TOKENISED_ROWS):
            with while_reading(f"the text with the tokenizer of {self.source}"):
                block = encode(list(texts[begin : begin + TOKENISED_ROWS]))
            yield from block

    def digest(self) -> str:
        """SHA-256 of everything that determines the vectors or scores, except the precision."""
        sha = hashlib.sha256(identity(self.definition).encode())
        for path in sorted(self.params):
            array = np.ascontiguousarray(self.params[path], np.float32)
            sha.update(f"{path}{array.shape}".encode())
            sha.update(array.data)
        sha.update(self.tokenizer.to_str().encode())
        kind = ["scores pairs"] if self.definition.reads_pairs else []  # `identity` leaves this out
        facts = [self.max_length, self.prompts, self.default_prompt, *kind]
        sha.update(json.dumps(facts, sort_keys=True).encode())
        return sha.hexdigest()

    def with_prompt(self, prompt: str) -> "SentenceModel":
        """The same model with another default prompt: the name of one of its prompts, or a text."""
        if prompt in self.prompts:
            return dataclasses.replace(self, default_prompt=prompt)
        prompts = self.prompts | {"prompt": prompt_text(self.prompts, prompt)}
        return dataclasses.replace(self, prompts=prompts, default_prompt="prompt")

    def with_role_prompts(self, prompts: Mapping[str, str]) -> "SentenceModel":
        """The same model with other prompts for the roles in `prompts`, which maps each to the name of one of its prompts, a text or
        `none`; an empty string keeps the role's prompt."""
        texts = {role: prompt_text(self.prompts, prompt) for role, prompt in prompts.items() if prompt}
        kept = {role: self.role_prompts[role] for role in prompts}
        return dataclasses.replace(self, prompts=self.prompts | kept | texts)

    def with_architecture(self, **changes: Any) -> "SentenceModel":
        """The same model with other values of some fields of its `Architecture`."""
        architecture = dataclasses.replace(self.definition.architecture, **changes)
        return dataclasses.replace(self, definition=dataclasses.replace(self.definition, architecture=architecture))

    def as_pooled(self) -> "SentenceModel":
        """The same model without its Normalize module."""
        return dataclasses.replace(self, definition=dataclasses.replace(self.definition, normalize=False))

    def frozen_params(self, mesh: Mesh) -> FrozenParams:
        """Its parameters for `place_frozen`; except on CPUs, those of layers that are built alike are joined in lists."""
        return with_stacks(self.definition.architecture, mesh, self.params, list)

    def with_length(self, length: int) -> "SentenceModel":
        """The same model with another maximum length."""
        tokenizer = tokenizers.Tokenizer.from_str(self.tokenizer.to_str())  # other models may share it
        tokenizer.enable_truncation(length)
        return dataclasses.replace(self, tokenizer=tokenizer, max_length=length)

    def with_params(self, params: Params) -> "SentenceModel":
        """The same model with other weights, such as trained ones."""
        return dataclasses.replace(self, params={path: np.asarray(params[path], np.float32) for path in self.params})


def load_model(
    spec: str, *, pooling: str = "", max_length: int = 0, prompt: str = "", frozen: bool = False, plugins: str = ""
) -> SentenceModel:
    """Loads a sentence encoder, or a cross-encoder, which is a classifier of one label.

    Args:
      spec: a Hugging Face or sentence-transformers folder, `package:NAME/PATH`, or a hub name.
      pooling: such as `mean` or `cls`; required if the checkpoint does not state one, otherwise overrides it. A cross-encoder's
        body is then read as a sentence encoder.
      max_length: maximum tokens per sentence; 0: the checkpoint's.
      prompt: the default prompt: the name of one of the checkpoint's prompts, or the text itself.
      frozen: for a model that is not trained: weights stay in the stored dtype.
      plugins: modules or files with the user's own encoder families, see `core/plugins.py`.
    """
    use_plugins(plugins)
    folder = locate(str(spec))
    with while_reading(folder):
        modules = read_modules(folder)
        root = modules.transformer
        if modules.is_static:
            architecture, table, tokenizer, limit = static.read(root)
            params = {static.TABLE: table}
        else:
            architecture, params = read_architecture(root), {}
            limit = modules.max_length or length_limit(root)
            # Without a table of positions, a text may be longer than config.json says.
            if modules.max_length > architecture.longest and not architecture.position_table:
                if architecture.family == "nomic_bert":  # its own code stretches the positions of longer texts
                    logger.warning("%s: texts are cut at %d tokens", folder, architecture.longest)
                else:
                    architecture = dataclasses.replace(architecture, max_positions=modules.max_length)
            tokenizer = read_tokenizer(root, vocab_size=architecture.vocab_size, lower_case=modules.lower_case)
        # Only now: of a family that cannot be read, the pooling does not matter.
        labels = modules.labels
        chosen = Pooling.parse(pooling) if pooling else modules.pooling
        own = f"head of {labels} label(s)" if labels else modules.pooling
        if pooling and own not in (None, chosen):
            logger.warning("%s: pooling=%s instead of the checkpoint's own %s", folder, pooling, own)
        if chosen is None and labels > 1:
            raise InputError(f"{folder} is a classifier with {labels} labels; a cross-encoder has one. Name a pooling.")
        if chosen is None and not labels:
            raise InputError(
                f"{folder} does not say how to pool token vectors; set student.pooling, teacher.pooling or --pooling: {POOLING_HELP}."
            )
        if chosen is None:
            definition = cross_definition(architecture)
        else:
            definition = EncoderDefinition(
                architecture=dataclasses.replace(architecture, pooler=chosen.tokens == "pooler"),
                pooling=chosen,
                dense=tuple(layer for layer, _ in modules.dense),
                normalize=modules.normalize,
                similarity=modules.similarity,
            )
        unread_pooler = {}
        if not modules.is_static:
            params, unread_pooler = _transformer_params(definition, root, frozen=frozen)
        for index, (layer, layer_folder) in enumerate(modules.dense):
            tensors, names = read_checkpoint(layer_folder), sentence_tensors(index, layer)
            params |= params_from_tensors(tensors, names, param_shapes(definition), source=str(layer_folder))
    longest = architecture.longest
    if max_length:
        # At least one token between the special ones.
        check_size("max_length", max_length, longest, "the tokens that this encoder reads", least=3)
    length = max_length or min(limit or longest, longest)
    tokenizer.enable_truncation(length)
    default = modules.default_prompt
    model = SentenceModel(
        definition=definition,
        params=params,
        tokenizer=tokenizer,
        max_length=length,
        # sentence-transformers always has the prompts of both roles.
        prompts={default: ""} | modules.prompts if default in ROLES else modules.prompts,
        default_prompt=default,
        source=str(spec),
        tokenizer_folder=root,
        checkpoint_prompt=default,
        unread_pooler=unread_pooler,
        **read_card(folder, str(spec)),
    )
    return model.with_prompt(prompt) if prompt else model


def read_architecture(folder: Path) -> Architecture:
    """The architecture that the `config.json` in `folder` describes."""
    config = read_settings(folder / "config.json")
    with errors_of(str(folder)), while_reading("config.json"):
        refuse_others(config, QUANTISED, advice=": dequantize() the model in transformers and save it again")
        return family(config["model_type"]).architecture(config)


def _transformer_params(
    definition: EncoderDefinition, folder: Path, *, frozen: bool
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The parameters of a transformer, with a cross-encoder's head, and those of a pooler that the definition does not use."""
    tensors, shapes, source = read_checkpoint(folder), param_shapes(definition), str(folder)
    module, width = family(definition.architecture.family), definition.architecture.hidden_size
    names = tensor_names(module.NAMES, shapes)
    params = params_from_tensors(tensors, names, shapes, prefixes=module.PREFIXES, source=source, frozen=frozen)
    if definition.pooling.tokens == "pooler" and POOLER + "kernel" not in params:
        raise InputError(f"{folder}: pooling pooler needs a pooler, which this checkpoint lacks.")
    if definition.reads_pairs:
        names = head_names(definition.architecture)
        head = {name: tensor for name, tensor in tensors.items() if name in names.values()}
        params |= params_from_tensors(head, names, shapes, source=source)
        if len(params.get(TOKEN_TYPES, ())) > 1 and not gives_types(folder):
            logger.warning("%s: both sentences of a pair are of token type 0, as tokenizer_config.json says", folder)
            params[TOKEN_TYPES] = np.repeat(params[TOKEN_TYPES][:1], len(params[TOKEN_TYPES]), axis=0)
    if POOLER + "kernel" in params:  # the definition reads it
        return params, {}
    pooler = {}
    for name, tensor in tensors.items():
        for path, suffix, shape in ((POOLER + "kernel", "weight", (width, width)), (POOLER + "bias", "bias", (width,))):
            if name.endswith(f"pooler.dense.{suffix}") and tensor.shape == shape:  # under any prefix
                pooler[path] = in_torch_layout(path, tensor.astype(np.float32))
    # Exports write a kernel of zeros for a missing pooler, see `_write_transformer`.
    is_trained = len(pooler) == 2 and np.any(pooler[POOLER + "kernel"])
    return params, pooler if is_trained else {}
