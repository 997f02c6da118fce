"""The Python API, as a notebook uses it: distill, load, evaluate, export, and errors that are raised."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import jaxdistill
from jaxdistill import memory
from jaxdistill.training import lengths
from jaxdistill.training.api import with_options

from program import environment, write_teacher
from tiny_text import made_up


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    options = {
        "run.steps": 4,
        "evals.every": 2,
        "data.batch_size": 16,
        "run.precision": "float32",
    }
    options["data.cache_folder"] = str(folder / "cache")
    text = made_up(200, words=6)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAXDISTILL_DATA", raising=False)
        patch.setenv("JAXDISTILL_CACHE", str(folder / "cache"))
        asked = []
        patch.setattr(memory, "keep_freed", lambda: asked.append("keep"))
        teacher = write_teacher(folder)
        found = jaxdistill.distill(teacher=teacher, text=text, layers=1, workdir=folder / "run", options=options)
        assert asked == ["keep"]
        return found


def test_distill_returns_model_scores_and_export(result):
    assert result.export_folder.is_dir() and result.results["config"]["run.steps"] == 4
    assert result.results["config"]["student.layers"] == "even:1"
    assert result.results["max_length"] == result.model.model.max_length == 32  # chosen from the text
    assert set(result.teacher_scores) == set(result.scores) and all(abs(score) <= 1 for score in result.scores.values())
    vectors = result.model.encode(["A cat sleeps.", "A cat naps."])
    np.testing.assert_array_equal(
        vectors, jaxdistill.load(str(result.export_folder)).encode(["A cat sleeps.", "A cat naps."])
    )


def test_the_card_has_the_call(result):
    card = (result.export_folder / "README.md").read_text()
    assert "jaxdistill.distill(config='configs/l2.py:cosine'" in card and "'run.steps': 4" in card
    assert str(result.workdir.parent) not in card


def test_export_is_a_function_and_a_program(result, tmp_path, monkeypatch):
    monkeypatch.setattr(lengths, "evenly_sampled", None)  # it reads no text
    folder = jaxdistill.export(result.workdir, step=2, out=tmp_path / "exported")
    exported = jaxdistill.load(str(folder))
    assert exported.encode(["A cat."]).shape == (1, 16) and exported.model.max_length == 32
    with pytest.raises(jaxdistill.InputError, match="step 3"):
        jaxdistill.export(result.workdir, step=3, out=tmp_path / "other")
    for step in ("2", [], None):
        with pytest.raises(jaxdistill.InputError, match="must be a whole number or several"):
            jaxdistill.export(result.workdir, step=step, out=tmp_path / "other")
    with pytest.raises(jaxdistill.InputError, match="out=s3://b/x is an address"):
        jaxdistill.export(result.workdir, step=2, out="s3://b/x")


def test_home_folders_are_expanded(result, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(result.workdir.parent))
    assert jaxdistill.export("~/run", step=np.int64(2), out="~/at-home") == result.workdir.parent / "at-home"


def test_evaluate_is_a_function_and_a_program(result, tmp_path):
    lines = [
        f"{score}\t{first}\t{second}"
        for score, first, second in zip(range(30), made_up(30), made_up(30, seed=1), strict=True)
    ]
    (tmp_path / "pairs.tsv").write_text("\n".join(["score\tsentence1\tsentence2", *lines]) + "\n")
    found = jaxdistill.evaluate([result.export_folder], tasks="pairs", pairs=str(tmp_path / "pairs.tsv"))
    (row,) = found.results["models"]
    assert json.dumps(row) and not row["failed"] and all(abs(score) <= 1 for score in row["scores"].values())
    assert row["scores"]
    with pytest.raises(jaxdistill.InputError, match="out='s3://b/x.json' is an address; give a local path"):
        jaxdistill.evaluate("x", out="s3://b/x.json")
    (tmp_path / "own.py").write_text("raise RuntimeError('read')")
    with pytest.raises(jaxdistill.InputError, match="own.py cannot be imported"):
        jaxdistill.evaluate("x", parts=str(tmp_path / "own.py"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"models": []}, "required: --model"),
        ({"models": [None, 3.5, object()]}, "model must be text, a path, or a list of these; got"),
        ({"tasks": ","}, "--tasks names no task"),
        ({"batch_size": 0}, "--batch_size: 0 must be at least 1"),
        ({"batch_size": [8]}, "batch_size must be a single value; got .8."),
        ({"max_length": "long"}, "--max_length: invalid int value: 'long'"),
        ({"precision": "fp16"}, "invalid choice: 'fp16'"),
        ({"strict": "no"}, "strict='no' must be True or False"),
        ({"data": True}, "data must be a single value; got True"),
    ],
)
def test_a_wrong_option_of_evaluate_raises_one_line(options, words):
    with pytest.raises(jaxdistill.InputError, match=words) as error:
        jaxdistill.evaluate(**{"models": "absent", "tasks": "sts", "data": "", **options})
    assert "\n" not in str(error.value)


def test_wrong_input_raises(tmp_path):
    with pytest.raises(jaxdistill.InputError, match="Did you mean run.steps"):
        jaxdistill.distill(text=["a"], workdir=tmp_path, options={"run.step": 5})
    with pytest.raises(jaxdistill.InputError, match="not a string"):
        jaxdistill.distill(text=["a", None], workdir=tmp_path)
    with pytest.raises(jaxdistill.InputError, match="text is None; give sentences"):
        jaxdistill.distill(text=None, workdir=tmp_path, config=pathlib.Path("configs/l2.py"))
    for option in ({"max_length": "256"}, {"max_length": -1}, {"batch_size": 0}, {"batch_size": "x"}):
        with pytest.raises(jaxdistill.InputError, match="must be a whole number, at least"):
            jaxdistill.load("absent", **option)


def test_options_reach_later_stages():
    raw = {"run": {"steps": 1}, "then": {"run": {"steps": 2}}}
    assert with_options(raw, {"then.run.steps": 7})["then"]["run"]["steps"] == 7 and raw["then"]["run"]["steps"] == 2


def test_one_command_starts_every_program():
    command = [sys.executable, "-m", "jaxdistill"]
    run = {"env": environment(), "capture_output": True, "text": True}
    shown = subprocess.run([*command, "export", "--help"], **run)
    assert shown.returncode == 0 and "--workdir" in shown.stdout
    wrong = subprocess.run([*command, "evalute"], **run)
    assert wrong.returncode == 2 and "Did you mean evaluate?" in wrong.stderr and "Traceback" not in wrong.stderr
