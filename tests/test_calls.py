"""Programs as functions: their arguments are the programs' options, `help` shows Python, and errors name arguments."""

import doctest
import inspect

import numpy as np
import pytest

import jaxdistill
from jaxdistill import calls, encode, mine, sweep
from jaxdistill.calls import FLAGS
from jaxdistill.data import in_memory
from jaxdistill.inference import Embedder
from jaxdistill.training import api

from program import write_teacher

SENTENCES = ["it rains", "a cat sleeps", "the old tree sings"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("teacher"))


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("module", "function", "without"),
    [
        (encode, encode.encode_text, set()),
        (mine, mine.mine_negatives, set()),
        (sweep, sweep.sweep_options, set()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_arguments_are_the_options_of_the_program_with_their_defaults(module, function, without):
    options, parameters = module._parser().defaults(), inspect.signature(function).parameters
    shown = {"quiet": "show_progress_bar"} | {flag: name for name, flag in FLAGS.items() if name in parameters}
    assert {shown.get(flag, flag) for flag in options.keys() - {"help", *without}} == parameters.keys() - {"options"}
    for flag, default in options.items():
        parameter = parameters.get(shown.get(flag, flag))
        if parameter and flag != "quiet" and parameter.default is not inspect.Parameter.empty:
            assert (parameter.default or None) == (default or None), flag
    assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values())


def test_all_names_of_the_api_are_there_and_listed():
    assert set(jaxdistill.__all__) <= set(dir(jaxdistill))
    assert all(getattr(jaxdistill, name) is not None for name in jaxdistill.__all__)
    assert jaxdistill.objectives.TransEncoder.__name__ == "TransEncoder"
    with pytest.raises(AttributeError, match="no attribute 'Absent'"):
        _ = jaxdistill.objectives.Absent


def test_the_examples_of_the_docstrings_run(teacher, monkeypatch):
    shown = {"jaxdistill": jaxdistill, "TEACHER": teacher, "model": jaxdistill.load(teacher)}
    objects = [api.distill, jaxdistill.load, encode.encode_text, mine.mine_negatives]
    objects += [Embedder.encode, Embedder.similarity, calls.python_words, in_memory.columns_of]
    for found in objects:
        names = dict(shown if found not in objects[-2:] else vars(inspect.getmodule(found)))
        examples = doctest.DocTestParser().get_examples(inspect.getdoc(found))
        assert examples
        for example in examples:
            if example.want:
                assert f"{eval(example.source, names)!r}\n" == example.want
            else:
                exec(example.source, names)


def test_encode_gives_the_vectors_and_writes_a_file_where_one_is_named(teacher, tmp_path):
    expected = jaxdistill.load(teacher, precision="float32").encode(["the " + text for text in SENTENCES], prompt="")
    text = {"body": ["the " + text for text in SENTENCES]}
    vectors = jaxdistill.encode(teacher, text, column="body", precision="float32")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    for name in ("v.npy", "v.parquet"):
        written = jaxdistill.encode(teacher, text, output=tmp_path / name, precision="float32")
        np.testing.assert_array_equal(written, vectors)
        assert (tmp_path / name).is_file() and isinstance(written, np.memmap) == (name == "v.npy")


def test_mine_gives_the_rows_of_the_table(teacher, tmp_path):
    pairs = [("does it rain", SENTENCES[0]), ("who sleeps", SENTENCES[1])]
    rows = jaxdistill.mine(teacher, pairs, corpus=SENTENCES[2:], num_negatives=2)
    assert len(rows) == 4 and {row["negative"] for row in rows if row["text"] == "who sleeps"} == {
        SENTENCES[0],
        SENTENCES[2],
    }
    assert all(-1 <= row["score_negative"] <= 1 for row in rows)
    for _ in range(2):  # the second call finds the table
        assert jaxdistill.mine(teacher, pairs, corpus=SENTENCES[2:], num_negatives=2, output=tmp_path / "n.tsv") == rows
    assert (tmp_path / "n.tsv").is_file()


def test_sweep_takes_a_dict_and_lists_its_points(capsys, tmp_path):
    grid = {"objective.alpha": [0.5, 1.0], "data.columns": [(("text", "body"),)]}
    rows = jaxdistill.sweep("congen.py:tiny", workdir=tmp_path / "sweep", grid=grid, seeds=[0, 1], dry_run=True)
    said = capsys.readouterr().out
    assert rows == [] and "point 4 of 4: objective.alpha=1.0,data.columns=" in said


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: jaxdistill.encode("package:absent/model", SENTENCES), "package 'absent' is not installed"),
        (lambda: jaxdistill.encode("x", SENTENCES, output="s3://b/x.npy"), "^output=s3://b/x.npy is an address"),
        (lambda: jaxdistill.encode("x", SENTENCES, role="ask"), "^argument role: invalid choice: 'ask'"),
        (lambda: jaxdistill.mine("x", [("a", "b", "c")]), r"^pairs: a row has 3 values"),
        (lambda: jaxdistill.sweep("congen.py:tiny", workdir="w", options=["a"]), r"options=\['a'\] must map names to values"),
        (lambda: jaxdistill.sweep("congen.py:tiny", workdir="w", grid={"a": 1}), "the grid must be a dict of option to list"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line_in_python_words(call, words):
    with pytest.raises(jaxdistill.InputError, match=words) as error:
        call()
    assert "--" not in str(error.value) and "\n" not in str(error.value)
