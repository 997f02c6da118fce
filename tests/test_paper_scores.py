"""The papers' own numbers: held cell by cell, linked to presets, shown beside measured ones, and printed in the docs."""

import re

import pytest

from jaxdistill.config import load_config, parse_stages
from jaxdistill.core import plugins
from jaxdistill.evals import pairs, papers, sts, transfer

from conftest import ROOT, script

TABLES = [(name, table) for name, content in papers.papers().items() for table in content["tables"]]


def test_a_table_has_a_key_and_a_score_for_each_column():
    assert papers.rows()  # strict: no cell too many or too few
    for _, table in TABLES:
        keyed = {papers.COLUMN in row["key"] for row in table["rows"]}
        assert True in keyed if "keys" in table else keyed == {False}
        assert len(table["columns"]) == len(table["scores"])


def test_every_score_is_one_that_evaluate_measures():
    of_groups = {"transfer": transfer.SETS, "auc": pairs.TEST, "sts17": (*sts.TRACKS, *sts.ADDED_TRACKS)}
    measured = {f"{group}/{name}" for group, names in of_groups.items() for name in (*names, "average")}
    measured |= {*sts.SETS, "average", transfer.SICK_E, transfer.SNLI}
    assert {score for row in papers.rows().values() for score in row.scores} <= measured


@pytest.mark.parametrize(
    "preset, rows",
    [
        ("congen.py:paper", ["congen:bert-base"]),
        ("congen.py:quickstart", [""]),
        ("ckd.py:paper:tinybert-l4", ["distilcse:ckd:tinybert-l4", "distilcse:distilcse-ckd:tinybert-l4"]),
        ("simcse.py:unsup-roberta", ["congen:unsup-simcse:roberta-base"]),
        ("simcse.py:congen-unsup:roberta-base", [""]),
        ("simcse.py:congen-unsup:minilm-l3", ["congen:unsup-simcse:minilm-l3"]),
        ("trans_encoder.py:paper", 3 * ["trans_encoder:bert-base:sts-cross", "trans_encoder:bert-base:sts-bi"]),
    ],
)
def test_the_stages_of_a_preset_name_the_rows_that_they_repeat(preset, rows):
    stages = parse_stages(load_config(preset))
    assert [stage.run.paper for stage in stages] == rows
    assert all(papers.cited(row, "run.paper").scores for row in rows if row)


def test_the_site_prints_every_table():
    page = script("docs/scores_page.py").page()
    assert page.count("\n**") == len(TABLES) and page.count("\n## ") == 5
    assert "| ConGen | 76.85 | 78.09 | 78.54 |" in page and "`congen:COLUMN` |" in page


@pytest.mark.parametrize(
    "name", ["ckd", "kd", "seed", "simtde", "lrn_kd", "lmx_kd", "studies/congen_*", "studies/distilcse_*"]
)
def test_the_numbers_that_configs_repeat_are_the_papers(name):
    printed = {str(cell) for _, table in TABLES for row in table["rows"] for cell in row["cells"]}
    for path in sorted((ROOT / "configs").glob(f"{name}.py")):
        docstring = plugins.load_module(str(path)).__doc__
        assert set(re.findall(r"\b\d\d\.\d\d\b", docstring)) <= printed, path.name
