"""docs/augment.py, with a random model, and docs/code_text.py: tables of sentences with views, and of questions with functions."""

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


SOURCE = '''
def sort_by_length_of_word(words):
    """Sorts words by their length. Longest last."""
    return sorted(words, key=len)


class Reader:
    async def read_all_lines(self):
        """Reads the file into a list

        More about it."""
        return [line async for line in self]


def first_of_all(words):
    """Returns the first `word` of the list."""
    return words[0]
'''


def test_each_documented_function_is_a_row_once(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "one.py").write_text(SOURCE)
    (tmp_path / "src" / "two.py").write_text(SOURCE)
    (tmp_path / "src" / "broken.py").write_text("def (")
    docs_script("code_text").main(str(tmp_path / "code.tsv"), str(tmp_path / "src"))
    header, *rows = (line.split("\t") for line in (tmp_path / "code.tsv").read_text().splitlines())
    assert header == ["text", "positive"]
    assert rows == [
        ["sort by length of word", "def sort_by_length_of_word(words): return sorted(words, key=len)"],
        ["Returns the first word of the list.", 'def first_of_all(words): """Returns the first `word` of the list.""" return words[0]'],
        ["Reads the file into a list", "async def read_all_lines(self): return [line async for line in self]"],
    ]  # fmt: skip
