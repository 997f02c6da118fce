"""Programs as functions: their arguments are the programs' options, `help` shows Python, and errors name arguments."""

import doctest
import inspect

import pytest

import jaxdistill
from jaxdistill import encode, mine
from jaxdistill.models.inference import Embedder
from jaxdistill.training import distill as api

from program import write_teacher

SENTENCES = ["it rains", "a cat sleeps", "the old tree sings"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("teacher"))


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_all_names_of_the_api_exist_and_are_listed():
    assert set(jaxdistill.__all__) <= set(dir(jaxdistill))
    assert all(getattr(jaxdistill, name) is not None for name in jaxdistill.__all__)
    assert jaxdistill.objectives.TransEncoder.__name__ == "TransEncoder"
    with pytest.raises(AttributeError, match="no attribute 'Absent'"):
        _ = jaxdistill.objectives.Absent


def test_the_examples_of_the_docstrings_run(teacher, monkeypatch):
    namespace = {"jaxdistill": jaxdistill, "TEACHER": teacher, "model": jaxdistill.load(teacher)}
    for function in (api.distill, jaxdistill.load, encode.encode, mine.mine, Embedder.encode, Embedder.similarity):
        names = dict(namespace)
        examples = doctest.DocTestParser().get_examples(inspect.getdoc(function))
        assert examples
        for example in examples:
            if example.want:
                assert f"{eval(example.source, names)!r}\n" == example.want
            else:
                exec(example.source, names)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: jaxdistill.encode("package:absent/model", SENTENCES), "package 'absent' is not installed"),
        (lambda: jaxdistill.encode("x", SENTENCES, output="s3://b/x.npy"), "^output=s3://b/x.npy is an address"),
        (lambda: jaxdistill.encode("x", SENTENCES, role="ask"), "^role='ask' is unknown; allowed: '', 'query', 'document'"),
        (lambda: jaxdistill.mine("x", [("a", "b", "c")]), "^pairs: cannot read the text .*has 3 elements"),
        (lambda: jaxdistill.sweep("congen.py:tiny", workdir="w", grid={"a": 1}), "the grid must be a dict of option to list"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line_in_python_words(call, words):
    with pytest.raises(jaxdistill.InputError, match=words) as error:
        call()
    assert "--" not in str(error.value) and "\n" not in str(error.value)
