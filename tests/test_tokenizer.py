"""Tokenizers are read as transformers reads them: `tokenizer_config.json` may say otherwise than `tokenizer.json`."""

import json
import struct

import pytest
import tokenizers
from test_trim import MAKERS
from tokenizers import models, normalizers, pre_tokenizers
from transformers import convert_slow_tokenizer

from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.checkpoints.tokenizer import read_tokenizer

import encoder_cases as cases
import tiny_text
from tiny_models import SPECIAL, tiny_model, tiny_tokenizer

TEXTS = ["The Cat sleeps", "THE dog, rain", "thé câT 中文", "cat <x> dog"]
ADDED = {"added_tokens_decoder": {"99": {"content": "<x>", "special": True, "lstrip": True}}}


def transformers_ids(folder, texts=TEXTS):
    from transformers import AutoTokenizer

    return [AutoTokenizer.from_pretrained(folder)(text)["input_ids"] for text in texts]


def read_ids(folder, texts=TEXTS):
    tokenizer = read_tokenizer(folder, vocab_size=None, lower_case=False)
    return [tokenizer.encode(text).ids for text in texts]


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("bert", {"tokenizer_class": "BertTokenizer"}),
        ("bert", {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False}),
        ("bert", {"do_lower_case": False, "strip_accents": True}),
        ("distilbert", {}),
        ("mpnet", {"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": False}),
        ("modernbert", {"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
        ("bert", {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}),
        ("bert", {"tokenizer_class": "BertTokenizer", **ADDED}),
        ("klue", {"do_lower_case": False}),
        ("bert", {"sep_token": {"__type": "AddedToken", "content": "[MASK]"}}),
        ("bert", {"unk_token": "[MASK]"}),
    ],
)
def test_the_normalizer_is_that_of_the_class_and_its_settings(tmp_path, family, config, lower):
    tiny_tokenizer(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["normalizer"] |= {"lowercase": lower, "strip_accents": None if lower else False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(SPECIAL | config))
    klue = {"model_type": "roberta", "tokenizer_class": "BertTokenizer"}
    (tmp_path / "config.json").write_text(json.dumps(klue if family == "klue" else {"model_type": family}))
    actual = read_ids(tmp_path)
    assert actual == transformers_ids(tmp_path)
    assert len({tuple(ids) for ids in actual}) == len(TEXTS)


@pytest.mark.parametrize(
    ("part", "change"),
    [("post_processor", None), ("model", {"max_input_chars_per_word": 5}), ("normalizer", {"clean_text": False})],
)
def test_berts_class_overrides_parts_that_no_setting_names(tmp_path, part, change):
    tiny_tokenizer(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    cases.edit_json(tmp_path / "tokenizer.json", **{part: change and content[part] | change})
    texts = [*TEXTS, "sleeping", "ca\x00t"]
    before = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert read_ids(tmp_path, texts) == transformers_ids(tmp_path, texts) != [before.encode(text).ids for text in texts]


def unlisted(folder):
    """As a file trained without transformers may be: special tokens are entries, but no added tokens."""
    tiny_tokenizer(folder)
    cases.edit_json(folder / "tokenizer.json", added_tokens=[])


def saved(source, folder):
    tokenizer, config = source if isinstance(source, tuple) else (source, {})
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


MADE = (tiny_text.word_piece, tiny_text.byte_level, tiny_text.sentence_piece, tiny_text.untrimmed, *MAKERS.values())
FORMS = {make.__name__: make for make in (tiny_tokenizer, unlisted, cases.write_tokenizer, cases.write_letters)}
FORMS |= {make.__name__: lambda folder, make=make: saved(make(), folder) for make in MADE}
"""Writes every form of a tokenizer that the tests have."""
QUERY = {"content": "[QRY] ", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
NAMING = {
    "additional_special_tokens": ["[DOC]", "[QRY] "],
    "extra_special_tokens": [{"__type": "AddedToken"} | QUERY],
    "extra_special_tokens by name": {"extra_special_tokens": {"query_token": "[QRY] "}},
    "query_token": "[QRY] ",
    "mask_token": "[QRY] ",
    "special_tokens_map.json": {"additional_special_tokens": ["[QRY] "], "mask_token": QUERY},
    "added_tokens.json": {"[QRY] ": 4},
    "none": {},
}
"""Ways to name a special token that `tokenizer.json` lacks."""


@pytest.mark.parametrize(
    ("form", "naming"),
    [(form, naming) for form in FORMS for naming in NAMING if form == "tiny_tokenizer" or naming == "query_token"],
)
def test_special_tokens_have_the_ids_that_transformers_gives_them(tmp_path, form, naming):
    FORMS[form](tmp_path)
    path, content = tmp_path / "tokenizer_config.json", NAMING[naming]
    if naming.endswith(".json"):
        (tmp_path / naming).write_text(json.dumps(content))
    else:
        cases.edit_json(path, **(content if isinstance(content, dict) else {naming: content}))
    added_tokens = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    specials = {"[DOC]", "[QRY] ", "[MASK]", *(token["content"] for token in added_tokens)}
    texts = [text for token in specials for text in (f"{token}the cat", f"a {token} the", f"a{token}{token}  cat")]
    assert read_ids(tmp_path, texts) == transformers_ids(tmp_path, texts)


def test_qwen2_has_its_own_class_whatever_the_files_name(tmp_path):
    """It composes letters, and splits numbers into digits."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = {token: index for index, token in enumerate(["<|endoftext|>", *alphabet, "12"])}
    tokenizer = tokenizers.Tokenizer(models.BPE(entries, [("1", "2")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    texts = ["a 12", "e\u0301"]
    assert read_ids(tmp_path, texts) == transformers_ids(tmp_path, texts)


def write_sentencepiece(folder):
    """A model whose map of characters lowers T, the only one that it changes: a trie of 256 units, then T's replacement."""
    units = [0] * 256
    units[ord("T")] = ord("T") | 1 << 8 | (ord("T") ^ 255) << 10
    model = convert_slow_tokenizer.import_protobuf().ModelProto()
    for number, piece in enumerate(["<unk>", "<s>", "</s>", "\u2581", "\u2581the", "cat", *"abcdehinost"]):
        model.pieces.add(piece=piece, score=-number / 3, type=1 if number > 2 else 3 if number else 2)
    model.trainer_spec.model_type = 1
    model.normalizer_spec.precompiled_charsmap = struct.pack("<257I", 1024, *units) + b"t\0"
    (folder / "sentencepiece.bpe.model").write_bytes(model.SerializeToString())
    (folder / "config.json").write_text('{"model_type": "bert"}')


@pytest.mark.parametrize("kind", ["XLMRobertaTokenizer", "BertTokenizer", None])
def test_a_sentencepiece_model_is_read_as_xlm_rs_class_reads_it(tmp_path, monkeypatch, kind):
    """Without the package sentencepiece, which transformers asks for."""
    monkeypatch.setattr(convert_slow_tokenizer, "requires_backends", lambda *_: None)
    write_sentencepiece(tmp_path)
    texts = ["The cat  sat", "then\na hat <mask>", "zzz", "[QRY] cat"]
    config = {"additional_special_tokens": ["[QRY] "]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | ({"tokenizer_class": kind} if kind else {})))
    actual = read_ids(tmp_path, texts)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "XLMRobertaTokenizer"}))
    assert actual == transformers_ids(tmp_path, texts)
    assert actual[0][:3] == [0, 5, 4]


def test_an_export_is_read_from_tokenizer_json_alone(tmp_path):
    """A cased tokenizer behind the lower-casing of sentence-transformers: a class of its own would undo it."""
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "a")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "a" / "tokenizer.json"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.save(str(tmp_path / "a" / "tokenizer.json"))
    cases.edit_json(tmp_path / "a" / "tokenizer_config.json", tokenizer_class="BertTokenizer", do_lower_case=False)
    cases.edit_json(tmp_path / "a" / "sentence_bert_config.json", do_lower_case=True)
    model = load_model(str(tmp_path / "a"))
    save(model, tmp_path / "b")
    assert transformers_ids(tmp_path / "b") == [model.tokenizer.encode(text).ids for text in TEXTS]
    assert transformers_ids(tmp_path / "a") != transformers_ids(tmp_path / "b")
    written = json.loads((tmp_path / "b" / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast" and "do_lower_case" not in written


def test_an_export_pads_although_the_checkpoint_names_no_special_tokens(tmp_path):
    """As bert-base-uncased does, whose class knows them; an export's generic class does not."""
    from transformers import AutoTokenizer

    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "a")
    (tmp_path / "a" / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 512}')
    save(load_model(str(tmp_path / "a")), tmp_path / "b")
    padded = AutoTokenizer.from_pretrained(tmp_path / "b")(TEXTS, padding=True)["attention_mask"]
    assert {len(mask) for mask in padded} == {max(map(sum, padded))}


def test_code_and_paths_of_a_tokenizer_are_neither_read_nor_exported(tmp_path):
    """transformers would take an older tokenizer's vocabulary from elsewhere, and an export would hold it."""
    save(tiny_model(tmp_path / "tokenizer"), model := tmp_path / "model")
    code = {"AutoTokenizer": ["evil.Tokenizer", None]}
    (tmp_path / "secret.txt").write_text("[UNK]\n[PAD]\nsecret\n")
    settings = dict(vocab_file=str(tmp_path / "secret.txt"), chat_template_file="x")
    cases.edit_json(model / "tokenizer_config.json", auto_map=code, **settings)
    save(load_model(str(model)), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert not {"auto_map", *settings} & written.keys() and written["tokenizer_class"] == "BertTokenizer"
    (model / "tokenizer.json").unlink()
    assert "secret" not in load_model(str(model)).tokenizer.get_vocab()
