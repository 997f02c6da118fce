"""The commands of docs/guide/data.md read the papers' sets: on stand-ins with the columns that the sets' cards state."""

import re
import shlex
import subprocess
from types import SimpleNamespace

import datasets
import pytest

from jaxdistill import main
from jaxdistill.data.text import read
from jaxdistill.evals.pairs import read_pairs

from conftest import ROOT

PAGE = (ROOT / "docs" / "guide" / "data.md").read_text(encoding="utf-8")
COLUMNS = {
    ("stanfordnlp/snli",): ("premise", "hypothesis"),
    ("nyu-mll/multi_nli",): ("premise", "hypothesis", "genre"),
    ("nyu-mll/glue", "qqp"): ("question1", "question2"),
    ("nyu-mll/glue", "qnli"): ("question", "sentence"),
    ("nyu-mll/glue", "mrpc"): ("sentence1", "sentence2"),
    ("mteb/sts12-sts",): ("sentence1", "sentence2"),
    ("mteb/stsbenchmark-sts",): ("sentence1", "sentence2"),
    ("wikimedia/wikipedia", "20231101.en"): ("id", "url", "title", "text"),
}
"""Text columns of each set on the hub."""
COMMANDS = [
    shlex.split(block.replace("\\\n", " "))
    for block in re.findall(r"^python -m (jaxdistill\.(?:[^\n]*\\\n)*[^\n]*)", PAGE, re.M)
]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Sets of two rows, in which each cell names its column."""
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path))

    def load(*name, split):
        name = tuple(filter(None, name))
        assert re.fullmatch(r"(train|validation|test)(\[:\d+\])?", split)
        return datasets.Dataset.from_dict(
            {"label": [0, 1]} | {column: [f"{column} 1", f"{column} 2"] for column in COLUMNS[name]}
        )

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *name: SimpleNamespace(hash="", config_id=""))


def test_every_set_that_the_page_names_is_read_with_the_columns_that_it_lists(hub):
    rows = re.findall(r"^\|[^|]*\|[^|]*\| `(hf:[^`]+)`[^|]*\| ([^|]*) \|", PAGE, re.M)
    assert len(rows) == len(COLUMNS)
    for spec, columns in rows:
        first, second = re.findall(r"`(\w+)`", columns)[:2]
        column = spec.rpartition(":")[2]
        other = second if column == first else first
        assert list(read([spec], {"text": "", "second": other}))[0] == (f"{column} 1", f"{other} 1")


def test_the_commands_for_quoras_pairs_make_the_codes_files(tmp_path):
    (block,) = re.findall(r"```\n(curl -LO.*?)```", PAGE, re.S)
    folder = tmp_path / "quora" / "classification"
    folder.mkdir(parents=True)
    for part, rows in (("train", 10_002), ("dev", 1_001), ("test", 3)):
        lines = [f"{row}\t0\tWhy {part} {row}?\tHow {row}?\t{row % 2}" for row in range(rows)]
        text = "\n".join(["qid1\tqid2\tquestion1\tquestion2\tis_duplicate", *lines, ""])
        (folder / f"{part}_pairs.tsv").write_text(text)
    script = "curl() { :; }; unzip() { :; }; set -e\n" + block
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True)
    dev = read_pairs(tmp_path / "qqp" / "dev.tsv")
    assert len(dev.scores) == 1000 and set(dev.scores) == {0.0, 1.0} and dev.first[1] == "Why dev 1?"
    pairs = list(read([f"{tmp_path}/qqp/*.tsv"], ("sentence1", "sentence2")))
    assert len(pairs) == 1000 + 3 + 10_000 and pairs[-1] == ("Why train 9999?", "How 9999?")


def test_the_trainings_of_the_page_have_options_that_exist():
    trainings = [command[1:] for command in COMMANDS if command[0] == "jaxdistill.main"]
    assert len(trainings) == 3
    for flags in trainings:
        main.parse_flags(flags)
