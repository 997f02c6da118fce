"""What transformers' tokenizer classes set by themselves, whatever `tokenizer.json` says.

A class is given the vocabulary of `tokenizer.json` and builds normalizer and pre-tokenizer anew, from its settings in
`tokenizer_config.json` or from its defaults. `GENERIC` takes the file as it is.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from jaxdistill.encoders.settings import setting

GENERIC = "PreTrainedTokenizerFast"
CLASS_OF_TYPE = {
    "albert": "AlbertTokenizer",
    "camembert": "CamembertTokenizer",
    "gte": "XLMRobertaTokenizer",
    "mistral": GENERIC,
    "modernbert": GENERIC,
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
} | dict.fromkeys(("bert", "distilbert", "electra", "nomic_bert"), "BertTokenizer")
"""The class that transformers takes by `model_type` where no file names one."""
NORMALIZER_SETTINGS = {
    "do_lower_case": ("lowercase", bool, True),
    "strip_accents": ("strip_accents", bool | None, None),
    "tokenize_chinese_chars": ("handle_chinese_chars", bool, True),
}
"""Settings of WordPiece classes: the normalizer's attribute, the kind of value, and the default."""
UNREAD_SETTINGS = (*NORMALIZER_SETTINGS, "do_basic_tokenize", "never_split", "add_prefix_space")
"""Settings that `GENERIC` does not read."""

Config = Mapping[str, Any]


def class_of(config: Config, model: Config, *, file: Path) -> str:
    """The class that reads a folder's tokenizer, as transformers chooses it.

    Args:
      config: content of `tokenizer_config.json`, named `file` in errors.
      model: content of `config.json`.
    """
    registered = CLASS_OF_TYPE.get(str(model.get("model_type")))
    if registered == GENERIC:
        return GENERIC
    stated = setting(config, "tokenizer_class", str | None, None, file=file)
    stated = stated or setting(model, "tokenizer_class", str | None, None, file="config.json")
    return (stated or registered or GENERIC).removesuffix("Fast")


def apply_class(name: str, tokenizer: Tokenizer, config: Config, *, file: Path) -> None:
    """Gives the tokenizer the parts of the class `name`."""
    rules = RULES.get(name)
    if rules is not None and isinstance(tokenizer.model, rules.model):
        rules.apply(tokenizer, config, file)


def gives_types(name: str) -> bool:
    """Whether the class `name` passes token types to the model unless `model_input_names` says otherwise."""
    return name in RULES and RULES[name].typed


def wordpiece_settings(tokenizer: Tokenizer, name: str | None) -> dict[str, Any]:
    """The settings with which the class `name` normalises as the tokenizer does; empty for classes without such settings,
    and if none would."""
    rules = RULES.get((name or "").removesuffix("Fast"))
    normalizer = tokenizer.normalizer
    if (
        rules is None
        or rules.apply is not _wordpiece
        or not isinstance(normalizer, normalizers.BertNormalizer)
        or not isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
    ):
        return {}
    return {key: getattr(normalizer, attribute) for key, (attribute, _, _) in NORMALIZER_SETTINGS.items()}


def _wordpiece(tokenizer: Tokenizer, config: Config, file: Path) -> None:
    options = {
        attribute: setting(config, key, values, default, file=file)
        for key, (attribute, values, default) in NORMALIZER_SETTINGS.items()
    }
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()


def _byte_level(tokenizer: Tokenizer, config: Config, file: Path) -> None:
    space = setting(config, "add_prefix_space", bool, False, file=file)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)


def _sentencepiece(tokenizer: Tokenizer, config: Config, file: Path) -> None:
    tokenizer.normalizer = _charsmap(tokenizer)
    tokenizer.pre_tokenizer = _words(config, file)


def _albert(tokenizer: Tokenizer, config: Config, file: Path) -> None:
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not setting(config, "keep_accents", bool, False, file=file):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if setting(config, "do_lower_case", bool, True, file=file):
        steps.append(normalizers.Lowercase())
    charsmap = _charsmap(tokenizer)
    tokenizer.normalizer = normalizers.Sequence(steps if charsmap is None else [*steps, charsmap])
    tokenizer.pre_tokenizer = _words(config, file)


def _llama(tokenizer: Tokenizer, config: Config, file: Path) -> None:
    splits = _steps(tokenizer.pre_tokenizer, pre_tokenizers.Sequence)
    if any(isinstance(step, pre_tokenizers.ByteLevel) for step in splits):  # Llama 3: transformers takes `GENERIC`
        return
    space = setting(config, "add_prefix_space", bool | None, None, file=file) is not False
    first = "always" if setting(config, "legacy", bool | None, False, file=file) else "first"
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=first if space else "never", split=False)


def _charsmap(tokenizer: Tokenizer) -> normalizers.Normalizer | None:
    """SentencePiece's own normalization, if the tokenizer has it."""
    steps = _steps(tokenizer.normalizer, normalizers.Sequence)
    return next((step for step in steps if isinstance(step, normalizers.Precompiled)), None)


def _steps(part: Any, sequence: type) -> list[Any]:
    return list(part) if isinstance(part, sequence) else [part]


def _words(config: Config, file: Path) -> pre_tokenizers.PreTokenizer:
    """Words, each with the mark of the space before it."""
    scheme = "always" if setting(config, "add_prefix_space", bool, True, file=file) else "never"
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme=scheme)])


@dataclasses.dataclass(frozen=True)
class Rules:
    """What a class sets, for tokenizers of one kind of model."""

    model: type
    apply: Callable[[Tokenizer, Config, Path], None]
    typed: bool = False
    """Whether it passes token types to the model."""


RULES = (
    dict.fromkeys(
        ("BertTokenizer", "ConvBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"),
        Rules(models.WordPiece, _wordpiece, typed=True),
    )
    | dict.fromkeys(("DistilBertTokenizer", "MPNetTokenizer"), Rules(models.WordPiece, _wordpiece))
    | dict.fromkeys(("RobertaTokenizer", "GPT2Tokenizer"), Rules(models.BPE, _byte_level))
    | dict.fromkeys(("XLMRobertaTokenizer", "CamembertTokenizer"), Rules(models.Unigram, _sentencepiece))
    | {"AlbertTokenizer": Rules(models.Unigram, _albert), "LlamaTokenizer": Rules(models.BPE, _llama)}
)
"""Classes that `tokenizer.json` does not describe alone."""
