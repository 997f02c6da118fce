"""docs/augment.py, with random models: a table with each sentence and its second view."""

import sys
import types

import pytest
import torch
import transformers

import encoder_cases as cases
from conftest import docs_script

TEXT = [f"w{n} w{n + 1} w{n + 2} w{n + 3} w{n + 4}" for n in range(70)]


@pytest.fixture(scope="module")
def augment():
    return docs_script("augment")


def views(augment, folder, *arguments):
    (folder / "text.txt").write_text("\n".join(TEXT) + "\n")
    augment.main(str(folder / "text.txt"), str(folder / "table.tsv"), *arguments)
    header, *rows = [line.split("\t") for line in (folder / "table.tsv").read_text().splitlines()]
    assert header == ["text", "view"] and [row[0] for row in rows] == TEXT
    return [row[1] for row in rows]


def test_a_masked_language_model_replaces_some_tokens(augment, tmp_path):
    kind, options = cases.CONFIGS["bert"]
    torch.manual_seed(0)
    transformers.AutoModelForMaskedLM.from_config(kind(**options)).save_pretrained(tmp_path / "model")
    cases.write_tokenizer(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.mask_token = "[MASK]"
    tokenizer.save_pretrained(tmp_path / "model")
    found = " ".join(views(augment, tmp_path, "mlm", str(tmp_path / "model"))).split()
    changed = [a != b for a, b in zip(found, " ".join(TEXT).split(), strict=True)]
    assert 0.1 < sum(changed) / len(changed) < 0.2


def test_translators_are_applied_in_turn(augment, tmp_path, monkeypatch):
    monkeypatch.setattr(augment, "MAX_TOKENS", 8)
    sizes = dict(layers=1, attention_heads=2, ffn_dim=16)
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}
    ids = dict(pad_token_id=0, eos_token_id=3, bos_token_id=2, decoder_start_token_id=0, forced_eos_token_id=3)
    config = transformers.MarianConfig(vocab_size=99, d_model=16, max_position_embeddings=160, **sizes, **ids)
    folders = [str(tmp_path / "there"), str(tmp_path / "back")]
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        transformers.MarianMTModel(config).save_pretrained(folder)
        cases.write_tokenizer(tmp_path / folder)
    both_ways = views(augment, tmp_path, "translate", *folders)
    assert both_ways != views(augment, tmp_path, "translate", folders[0])


def test_a_word_is_replaced_by_its_synonym(augment, tmp_path, monkeypatch):
    wordnet = types.SimpleNamespace(
        synsets=lambda word: [types.SimpleNamespace(lemma_names=lambda: [word, "ice_cream"])] if word == "w3" else []
    )
    corpus = types.ModuleType("nltk.corpus")
    corpus.wordnet = wordnet
    monkeypatch.setitem(sys.modules, "nltk", types.ModuleType("nltk"))
    monkeypatch.setitem(sys.modules, "nltk.corpus", corpus)
    found = views(augment, tmp_path, "synonyms")
    assert found == [" ".join("ice cream" if word == "w3" else word for word in text.split()) for text in TEXT]
