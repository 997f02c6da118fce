"""launch/augment.py on a random model, code_text.py, and data_folder.py on stand-ins with the published numbers of rows."""

import gzip
import sys
import types

import datasets
import pytest
import torch
import transformers

from jaxdistill.evals.evaluation import labelled
from jaxdistill.evals.pairs import read_pairs

import encoder_cases as cases
from conftest import script

builder = script("launch/data_folder.py")
TEXT = [f"w{n} w{n + 1} w{n + 2} w{n + 3} w{n + 4}" for n in range(70)]


def views(folder, *arguments):
    (folder / "text.txt").write_text("\n".join(TEXT) + "\n")
    script("launch/augment.py").main(str(folder / "text.txt"), str(folder / "table.tsv"), *arguments)
    header, *rows = [line.split("\t") for line in (folder / "table.tsv").read_text().splitlines()]
    assert header == ["text", "view"] and [row[0] for row in rows] == TEXT
    return [row[1] for row in rows]


def test_a_masked_language_model_replaces_some_tokens(tmp_path):
    kind, options = cases.CONFIGS["bert"]
    torch.manual_seed(0)
    transformers.AutoModelForMaskedLM.from_config(kind(**options)).save_pretrained(tmp_path / "model")
    cases.write_tokenizer(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.mask_token = "[MASK]"
    tokenizer.save_pretrained(tmp_path / "model")
    words = " ".join(views(tmp_path, "mlm", str(tmp_path / "model"))).split()
    changed = [a != b for a, b in zip(words, " ".join(TEXT).split(), strict=True)]
    assert 0.1 < sum(changed) / len(changed) < 0.2


def test_a_word_is_replaced_by_its_synonym(tmp_path, monkeypatch):
    wordnet = types.SimpleNamespace(
        synsets=lambda word: [types.SimpleNamespace(lemma_names=lambda: [word, "ice_cream"])] if word == "w3" else []
    )
    corpus = types.ModuleType("nltk.corpus")
    corpus.wordnet = wordnet
    monkeypatch.setitem(sys.modules, "nltk", types.ModuleType("nltk"))
    monkeypatch.setitem(sys.modules, "nltk.corpus", corpus)
    texts = views(tmp_path, "synonyms")
    assert texts == [" ".join("ice cream" if word == "w3" else word for word in text.split()) for text in TEXT]


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
    script("launch/code_text.py").main(str(tmp_path / "code.tsv"), str(tmp_path / "src"))
    header, *rows = (line.split("\t") for line in (tmp_path / "code.tsv").read_text().splitlines())
    assert header == ["text", "positive"]
    assert rows == [
        ["sort by length of word", "def sort_by_length_of_word(words): return sorted(words, key=len)"],
        ["Returns the first word of the list.", 'def first_of_all(words): """Returns the first `word` of the list.""" return words[0]'],
        ["Reads the file into a list", "async def read_all_lines(self): return [line async for line in self]"],
    ]  # fmt: skip


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="latin-1" if "\xf0" in lines[0] else "utf-8")


@pytest.fixture(scope="module")
def senteval(tmp_path_factory):
    """SentEval's folders, each file with as many rows as the published set has."""
    root = tmp_path_factory.mktemp("senteval")
    folder = root / "downstream"
    for year, (count, first, *other_names) in builder.STS.items():
        sts = folder / f"STS/STS{year}-en-test"
        write_lines(sts / f"STS.input.{first}.txt", [f"a  {n}\tb {n}" for n in range(count + 1)])
        write_lines(sts / f"STS.gs.{first}.txt", ["", "0.5", *["2.5"] * (count - 1)])
        for name in other_names:
            write_lines(sts / f"STS.input.{name}.txt", ["a\tb"])
            write_lines(sts / f"STS.gs.{name}.txt", [""])
    for split, count in (("train", 5749), ("dev", 1500), ("test", 1379)):
        rows = [f"main\tcaptions\t2012\t{n}\t5.0\ta {n}\tb {n}" for n in range(count)]
        write_lines(folder / f"STS/STSBenchmark/sts-{split}.csv", rows)
    for name, count in (("train", 4500), ("trial", 500), ("test_annotated", 4927)):
        rows = [f"{n}\ta {n}\tb {n}\t4.2\tNEUTRAL" for n in range(count)]
        write_lines(folder / f"SICK/SICK_{name}.txt", ["pair_ID\tsentence_A\tsentence_B\tscore\tjudgment", *rows])
    for count, positive, negative in builder.POLARITY.values():
        write_lines(folder / positive, [f"good {n}" for n in range(count - 5)])
        write_lines(folder / negative, ["caf\xe9 \xf0", "", *["bad"] * 4])
    for split, count in (("train", 67_349), ("dev", 872), ("test", 1821)):
        write_lines(folder / f"SST/binary/sentiment-{split}", [f"fine {n}\t1" for n in range(count)])
    for name, count in (("train_5500", 5452), ("TREC_10", 500)):
        write_lines(folder / f"TREC/{name}.label", [f"NUM:dist How far is {n} ?" for n in range(count)])
    for split, count in (("train", 4076), ("test", 1725)):
        rows = [f"1\t{n}\t{n}\ta {n}\tb {n}" for n in range(count)]
        write_lines(
            folder / f"MRPC/msr_paraphrase_{split}.txt", ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows]
        )
    return root


def rows_of(path):
    return [line.split("\t") for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def test_sentevals_folders_become_files_that_evaluations_read_if_they_are_complete(senteval, tmp_path):
    builder.main([str(tmp_path), f"--senteval={senteval}"])
    sts12 = read_pairs(tmp_path / "sts" / "sts12.test.tsv.gz")
    assert len(sts12.scores) == 3108 and (sts12.first[0], sts12.second[0]) == ("a 1", "b 1")
    assert rows_of(tmp_path / "nli" / "sick.test.tsv.gz")[1] == ["a 0", "b 0", "neutral"]
    labels, sentences = labelled(tmp_path / "transfer" / "mr.all.tsv.gz", ("sentence",), ("0", "1"))
    assert len(labels) == 10_662 and labels[0] == 1 and labels[-1] == 0 and sentences[-5] == ("café ð",)
    assert rows_of(tmp_path / "transfer" / "trec.test.tsv.gz")[1] == ["NUM", "How far is 0 ?"]
    assert rows_of(tmp_path / "transfer" / "mrpc.train.tsv.gz")[1] == ["1", "a 0", "b 0"]
    assert rows_of(tmp_path / "transfer" / "sst2.dev.tsv.gz")[1] == ["1", "fine 0"]
    short = senteval / "downstream" / "STS" / "STSBenchmark" / "sts-dev.csv"
    short.write_text(short.read_text().partition("\n")[2])
    with pytest.raises(SystemExit, match=r"stsb\.dev.*1,499 rows, the published set 1,500"):
        builder.main([str(tmp_path / "short"), f"--senteval={senteval}"])
    assert not (tmp_path / "short" / "sts" / "stsb.dev.tsv.gz").exists()


def test_sets_of_the_hub_become_files(tmp_path, monkeypatch):
    columns = {
        "mteb/sts17-crosslingual-sts": {"sentence1": "a", "sentence2": "b", "score": 4.0},
        "nyu-mll/glue": {"question": "a", "sentence": "b"},
        "sentence-transformers/parallel-sentences-talks": {"english": "a", "non_english": "b"},
    }

    def load(name, *subset, split):
        count = 5463 if name == "nyu-mll/glue" else 250
        cells = {column: [cell] * count for column, cell in columns[name].items()}
        return datasets.Dataset.from_dict(cells | {"label": [0] * count})

    monkeypatch.setattr(datasets, "load_dataset", load)
    builder.main([str(tmp_path), "sts17", "qnli", "parallel"])
    assert len(rows_of(tmp_path / "multilingual" / "sts17.en-fr.test.tsv.gz")) == 251
    assert rows_of(tmp_path / "pairs" / "qnli.dev.tsv.gz")[2] == ["1", "a", "b"]
    assert rows_of(tmp_path / "parallel" / "en-ar.tsv.gz")[:2] == [["en", "ar"], ["a", "b"]]
