"""Reads a checkpoint's tokenizer as a `tokenizers.Tokenizer` that truncates and never pads.

`tokenizer.json` is read directly if transformers would not change it. Otherwise transformers reads the folder, because its
tokenizer classes override parts of the file by their own settings or those in `tokenizer_config.json`.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from jaxdistill.core import InputError, unknown_id
from jaxdistill.core.files import while_reading
from jaxdistill.encoders.hugging_face import read_settings, refuse_others
from jaxdistill.models.checkpoints.weights import first_file

VOCABULARIES = ("vocab.txt", "vocab.json", "sentencepiece.bpe.model")
CONFIG, SPECIAL_TOKENS, ADDED_TOKENS = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
TOKENIZER_FILES = (SPECIAL_TOKENS, ADDED_TOKENS, "merges.txt", *VOCABULARIES)
"""Files of a tokenizer besides `tokenizer.json` and `CONFIG`."""
GENERIC_CLASS = "PreTrainedTokenizerFast"  # transformers' class that uses `tokenizer.json` unchanged
TYPED_CLASSES = ("BertTokenizer", "ConvBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer")
"""Classes that pass token types to the model unless `model_input_names` says otherwise."""
WORDPIECE_CLASSES = (*TYPED_CLASSES, "DistilBertTokenizer", "MPNetTokenizer")
"""Classes that override the normalizer by `NORMALIZER_SETTINGS`."""
NORMALIZER_SETTINGS = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
"""Maps settings of `WORDPIECE_CLASSES` to the normalizer's attributes and the defaults."""
OFFSETS = sorted(range(-32, 33), key=abs)
"""Distances, in units of the last digit, from the decimal nearest to a score, in the order in which `_decimal` tries them."""


def read_tokenizer(
    folder: Path, *, vocab_size: int | None = None, lower_case: bool = False, settings: bool = True
) -> tokenizers.Tokenizer:
    """The tokenizer in `folder`, from `tokenizer.json` or older files, without padding and truncation.

    Args:
      vocab_size: rows of the word embeddings, which must include all ids; None: not checked.
      lower_case: lower-case the text first (`do_lower_case` of sentence-transformers).
      settings: whether `tokenizer_config.json` overrides `tokenizer.json`, as in transformers.
    """
    path = first_file(folder, ("tokenizer.json", *VOCABULARIES), "tokenizer")
    config = _settings(folder / CONFIG)
    refuse_others(config, {"split_special_tokens": (False,), "truncation_side": ("right",)}, file=folder / CONFIG)
    with while_reading(path):
        if path.name != "tokenizer.json":
            tokenizer = _from_transformers(folder)
        else:
            tokenizer = tokenizers.Tokenizer.from_file(str(path))
            if "truncation_side" not in config:  # transformers then uses that of tokenizer.json
                refuse_others(tokenizer.truncation or {}, {"direction": ("right",)}, file=path)
            if settings and not _is_read_unchanged(tokenizer, folder):
                tokenizer = _from_transformers(folder)
        # GTE-Qwen2's tokenizer code, which does not run here, appends an end token that tokenizer.json does not.
        has_code = "AutoTokenizer" in (config.get("auto_map") or {})
        adds_none = not tokenizer.num_special_tokens_to_add(is_pair=False)
        if settings and has_code and config.get("add_eos_token") and adds_none:
            end = _content(config["eos_token"])
            template = processors.TemplateProcessing(
                single=["$A", end], pair=["$A", end, "$B:1", f"{end}:1"], special_tokens=[(end, tokenizer.token_to_id(end))]
            )  # fmt: skip
            before = [] if tokenizer.post_processor is None else [tokenizer.post_processor]
            tokenizer.post_processor = processors.Sequence([*before, template])
        tokenizer.no_padding()
        tokenizer.no_truncation()
        _check_reads_vocabulary(tokenizer, folder)
    token, largest_id = max(tokenizer.get_vocab(with_added_tokens=True).items(), key=itemgetter(1))
    if vocab_size is not None and largest_id >= vocab_size:
        raise InputError(
            f"{folder}: the tokenizer has ids up to {largest_id} ({token!r}), but the word embeddings have {vocab_size} rows."
        )
    if lower_case:
        after = [tokenizer.normalizer] if tokenizer.normalizer else []
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *after])
    return tokenizer


def length_limit(folder: Path) -> int:
    """The tokenizer's `model_max_length`, called `max_len` in old files; 0 if it has none."""
    config = _settings(folder / CONFIG)
    limit = config.get("model_max_length", config.get("max_len")) or 0
    return int(limit) if limit < 10**6 else 0  # transformers writes 1e30 for no limit


def passes_token_types(folder: Path) -> bool:
    """Whether transformers, with the tokenizer in `folder`, passes token types to the model."""
    input_names = _settings(folder / CONFIG).get("model_input_names")
    if input_names is not None:
        return "token_type_ids" in input_names
    return _class_of(folder) in (None, *TYPED_CLASSES)  # None: transformers takes the model type's class, often BERT's


def _settings(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if the file does not exist."""
    return read_settings(path) if path.exists() else {}


def _class_of(folder: Path) -> str | None:
    """The tokenizer class that the folder names, without the suffix `Fast`; None if it names none."""
    name = _settings(folder / CONFIG).get("tokenizer_class") or _settings(folder / "config.json").get("tokenizer_class")
    return name and name.removesuffix("Fast")


def _is_read_unchanged(tokenizer: tokenizers.Tokenizer, folder: Path) -> bool:
    """Whether transformers would use `tokenizer`, as read from `tokenizer.json`, unchanged; False if in doubt."""
    # For this family, transformers ignores the class that the files name, and uses one that splits text differently.
    if _settings(folder / "config.json").get("model_type") == "qwen2":
        return False
    config = _settings(folder / CONFIG)
    special = _settings(folder / SPECIAL_TOKENS)
    decoder = config.get("added_tokens_decoder")
    added = _settings(folder / ADDED_TOKENS) if decoder is None else {token["content"] for token in decoder.values()}
    present = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    if not {*named_tokens(folder), *added} <= present:  # transformers would add the missing ones
        return False
    class_name = _class_of(folder) or WORDPIECE_CLASSES[0]  # a file without a class has to pass the checks of BERT's
    if class_name not in WORDPIECE_CLASSES:
        return class_name == GENERIC_CLASS.removesuffix("Fast")
    stated = {key: config.get(key, default) for key, (_, default) in NORMALIZER_SETTINGS.items()}
    if wordpiece_settings(tokenizer) != stated:
        return False
    # These classes use the [CLS], [SEP] and [UNK] that the files beside tokenizer.json name, whatever it says.
    empty = tokenizer.encode("")  # [CLS] and [SEP], and padding where tokenizer.json has it
    used = [token for token, is_read in zip(empty.tokens, empty.attention_mask, strict=True) if is_read]
    named = []
    for key, default in {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}.items():
        named.append({_content(file[key]) for file in (config, special) if file.get(key)} or {default})
    return named == [{token} for token in (*used, tokenizer.model.unk_token)]  # also unequal if the two files disagree


def wordpiece_settings(tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    """The settings with which `WORDPIECE_CLASSES` split text as the tokenizer does; empty if they cannot."""
    model, normalizer = tokenizer.model, tokenizer.normalizer
    if not (
        isinstance(model, models.WordPiece)
        and isinstance(normalizer, normalizers.BertNormalizer)
        and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
    ):
        return {}
    # The classes have no settings for these three, and always use these values.
    if (model.continuing_subword_prefix, model.max_input_chars_per_word, normalizer.clean_text) != ("##", 100, True):
        return {}
    return {key: getattr(normalizer, attribute) for key, (attribute, _) in NORMALIZER_SETTINGS.items()}


def named_tokens(folder: Path) -> set[str]:
    """Special tokens, such as `[PAD]`, that the settings beside `tokenizer.json` name; transformers never splits them."""
    tokens: list[Any] = []
    for settings in (_settings(folder / CONFIG), _settings(folder / SPECIAL_TOKENS)):
        tokens += [value for key, value in settings.items() if key.endswith("_token")]
        for key in ("additional_special_tokens", "extra_special_tokens"):
            more = settings.get(key) or []
            tokens += more.values() if isinstance(more, dict) else more
    return {text for text in map(_content, tokens) if isinstance(text, str)}


def _content(token: Any) -> Any:
    """The text of a special token; settings hold it as a string, or as a dict with `content`."""
    return token.get("content") if isinstance(token, dict) else token


def _check_reads_vocabulary(tokenizer: tokenizers.Tokenizer, folder: Path) -> None:
    """Raises `InputError` if the tokenizer knows at most half of a sample of its own vocabulary's words. This happens if the
    settings name another class than the one that made the vocabulary."""
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    entries = [tokenizer.id_to_token(id) or "" for id in range(0, size, max(1, size // 200))]  # about 200 of the ids
    words = [entry.removeprefix("##").strip("\u2581\u0120") for entry in entries]  # without marks of spaces
    words = [word for word in words if word.isalnum()]
    # SentencePiece puts U+2581, its mark of a space, before an unknown word too.
    ids_of_unknown_words = {unknown_id(tokenizer), tokenizer.token_to_id("\u2581")}
    encodings = tokenizer.encode_batch(words, add_special_tokens=False)
    known = sum(not ids_of_unknown_words.issuperset(encoding.ids) for encoding in encodings)
    if known <= len(words) / 2:
        raise InputError(
            f"{folder}: the tokenizer knows {known} of {len(words)} words of its own vocabulary; correct tokenizer_class in {CONFIG}."
        )


def _from_transformers(folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer as transformers reads it, from a copy of the folder with only the tokenizer's files."""
    from transformers import AutoTokenizer  # slow to import

    with tempfile.TemporaryDirectory(prefix="jaxdistill-tokenizer-") as temporary:
        files = {name for name in ("tokenizer.json", *TOKENIZER_FILES, "config.json") if (folder / name).exists()}
        for name in files:
            shutil.copyfile(folder / name, Path(temporary) / name)
        config = without_paths(_settings(folder / CONFIG))
        is_bert = _settings(folder / "config.json").get("model_type") == "bert"
        has_only_pieces = not files & {"tokenizer.json", "vocab.txt", "vocab.json"}
        if has_only_pieces and is_bert and _class_of(folder) in (None, *TYPED_CLASSES):
            config["tokenizer_class"] = "XLMRobertaTokenizer"  # BERT's class does not read SentencePiece files
        (Path(temporary) / CONFIG).write_text(json.dumps(config), encoding="utf-8")
        loaded = AutoTokenizer.from_pretrained(temporary, local_files_only=True, trust_remote_code=False)
    return loaded.backend_tokenizer


def without_paths(config: dict[str, Any]) -> dict[str, Any]:
    """A `tokenizer_config.json` without the entries that let transformers open other files or run code."""
    return {key: value for key, value in config.items() if key != "auto_map" and not key.endswith("_file")}


def tokenizer_json(content: Mapping[str, Any], indent: int | None = None) -> str:
    """The content of a `tokenizer.json` as text, from which the tokenizers library reads exactly the same scores of pieces."""
    model = content["model"]
    if model["type"] != "Unigram":
        return json.dumps(content, indent=indent, ensure_ascii=False)
    # `json` has no hook for floats: scores are written as strings between marks, then marks and quotes are removed.
    mark = "\ufdd0"  # a noncharacter, which Unicode reserves for a program's internal use
    vocab = [[piece, f"{mark}{_decimal(score)}{mark}"] for piece, score in model["vocab"]]
    text = json.dumps({**content, "model": {**model, "vocab": vocab}}, indent=indent, ensure_ascii=False)
    return re.sub(f'"{mark}(.*?){mark}"', r"\1", text)


def _decimal(value: float) -> str:
    """A decimal that the tokenizers library reads as exactly this float. The library parses the digits (64 bits) as a float and
    divides by a power of ten, so it rounds twice; a score that is off by one bit may change how a text is split."""
    exact = Decimal(abs(value))
    for places in range(15, 20):
        nearest = int((exact * 10**places).to_integral_value())
        for digits in (nearest + offset for offset in OFFSETS):
            if 0 <= digits < 2**64 and float(digits) / 10.0**places == abs(value):
                return f"{'-' if value < 0 else ''}{digits}e-{places}"
    return repr(value)
