"""How many tokens a student reads: chosen from the text, kept by the workdir, and reported where it truncates much."""

import dataclasses
import json
import logging

import pytest

from jaxdistill import config as configs
from jaxdistill import objectives
from jaxdistill.training import build as lengths

from tiny_models import tiny_model
from tiny_text import store_of

SHORT, LONG = "a" * 6, "a" * 25
"""Words of as many tokens, between two special ones."""


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """Positions for 32 tokens."""
    return tiny_model(tmp_path_factory.mktemp("student"))


def config_of(path, **data) -> configs.Config:
    return configs.parse_config(dict(objective=dict(kind="simcse"), data=dict(text=str(path)) | data))


def text_of(folder, *, long: int, rows: int = 200):
    path = folder / "text.txt"
    path.write_text("\n".join([LONG] * long + [SHORT] * (rows - long)) + "\n")
    return path


@pytest.mark.parametrize(("long", "read", "length"), [(0, 32, 16), (1, 32, 16), (10, 32, 32), (10, 16, 16)])
def test_a_length_suits_the_text_the_teacher_and_the_students_positions(student, tmp_path, long, read, length, caplog):
    """Of 200 rows, one may be longer."""
    config = config_of(text_of(tmp_path, long=long))
    teacher = dataclasses.replace(student, max_length=read)
    with caplog.at_level(logging.INFO, "jaxdistill"):
        assert lengths.training_length(config, student, (teacher,), tmp_path) == length
    assert config.student.with_length(student, length).max_length == length
    explicit = dataclasses.replace(config.student, max_length=24)
    assert explicit.with_length(student, length).max_length == 24
    assert f"data.max_length: {length}, because 99 % of the rows have at most " in caplog.text
    assert ("a choice is at most 16 here" in caplog.text) == (read == 16)
    longer = config_of(tmp_path / "text.txt", max_length=99)
    assert lengths.training_length(longer, student, (teacher,), tmp_path) == 32


def test_chunks_are_read_whole_and_a_resumed_run_keeps_its_length_without_its_text(student, tmp_path):
    assert lengths.training_length(config_of("nowhere.txt", chunk_tokens=20), student, (), tmp_path) == 20
    (tmp_path / "inputs.json").write_text(json.dumps({"data.max_length": "24"}))
    assert lengths.training_length(config_of("nowhere.txt"), student, (), tmp_path) == 24
    assert lengths.training_length(config_of("nowhere.txt", max_length=12), student, (), tmp_path) == 12


@pytest.mark.parametrize(
    ("long", "length", "words"),
    [
        (8, 16, ""),
        (100, 16, "data.max_length=16 truncates 50% of the sentences of column text; set --config.data.max_length"),
    ],
)
def test_a_column_of_which_much_is_truncated_is_reported(student, tmp_path, long, length, words):
    text = text_of(tmp_path, long=long).read_text().split()
    store = store_of(tmp_path, text, tokenizer=student.tokenizer, max_length=length)
    warnings = lengths.truncation_warnings(objectives.Embedding(), student, store)
    assert len(warnings) == bool(words) and words in "".join(warnings)
