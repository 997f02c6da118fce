"""Text in memory: every form that people have becomes the same rows, and every fault one line with the place and the value."""

import datasets
import numpy as np
import pandas
import polars
import pyarrow
import pytest

from jaxdistill.core import InputError
from jaxdistill.data.in_memory import sources_of
from jaxdistill.data.text import read

SENTENCES = ["The cat sleeps.", "", 'He said "no"\n\u2028twice', "Überraschung"]
PAIRS = {"q": ["a", "b", None], "n": [1, 2, 3], "d": ["c", "d", "e"]}
COLUMNS = {"text": "q", "second": "d"}
ROWS = [("a", "c"), ("b", "d"), ("", "e")]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path))
    return tmp_path / "texts"


@pytest.mark.parametrize(
    "text",
    [
        list(SENTENCES),
        tuple(SENTENCES),
        [(sentence,) for sentence in SENTENCES],
        [{"sentence": sentence} for sentence in SENTENCES],
        np.array(SENTENCES),
        pandas.Series(SENTENCES, index=[7, 7, 8, 9]),
        polars.Series(SENTENCES),
        pyarrow.chunked_array([SENTENCES[:2], SENTENCES[2:]]),
        pandas.DataFrame({"body": SENTENCES}),
        polars.DataFrame({"body": SENTENCES}),
        datasets.Dataset.from_dict({"body": SENTENCES}),
        {"text": SENTENCES, "id": [1, 2, 3, 4]},
    ],
    ids=lambda text: type(text).__module__.partition(".")[0] + type(text).__name__,
)
def test_sentences_of_every_form_are_the_same_text(text, cache):
    for given in (text, iter(text)) if isinstance(text, list) else (text,):
        (source,) = sources_of(given, {})
        assert [row for (row,) in read([source])] == SENTENCES
    assert len(list(cache.iterdir())) == 1, "named by its content, and nothing unfinished is left"


@pytest.mark.parametrize(
    "text",
    [
        pandas.DataFrame(PAIRS),
        polars.DataFrame(PAIRS),
        pyarrow.table(PAIRS),
        datasets.Dataset.from_dict(PAIRS),
        datasets.Dataset.from_dict(PAIRS).to_iterable_dataset(),
        PAIRS,
        [dict(zip(PAIRS, row, strict=True)) for row in zip(*PAIRS.values(), strict=True)],
        list(zip(PAIRS["q"], PAIRS["d"], strict=True)),
    ],
    ids=lambda text: type(text).__module__.partition(".")[0] + type(text).__name__,
)
def test_columns_of_every_table_are_the_same_rows(text):
    assert list(read(sources_of(text, COLUMNS), COLUMNS)) == ROWS
    if not isinstance(text, list) or isinstance(text[0], dict):  # tuples have no names
        assert list(read(sources_of(text, {"text": "q+d"}), {"text": "q+d"})) == [("a c",), ("b d",), ("e",)]


@pytest.mark.parametrize("missing", [None, float("nan"), pandas.NA, pandas.NaT])
def test_missing_values_are_empty_sentences(missing):
    assert list(read(sources_of(["a", missing], {}))) == [("a",), ("",)]


def test_numbers_stay_numbers_in_the_columns_of_scores():
    text = polars.DataFrame({"text": ["a", "b"], "score": [1, 2]})
    (source,) = sources_of(text, {}, numbers=["score"])
    assert pandas.read_parquet(source).to_dict("list") == {"text": ["a", "b"], "score": [1.0, 2.0]}
    assert list(read([source], ["text", "score"], numbers=True)) == [("a", "1.0"), ("b", "2.0")]


def test_paths_and_sources_stay_what_they_are(tmp_path):
    (tmp_path / "a.txt").write_text("x\n")
    assert sources_of("hf:a:b:c", {}) == ["hf:a:b:c"] and sources_of(tmp_path / "a.txt", {}) == [
        str(tmp_path / "a.txt")
    ]
    assert sources_of([tmp_path / "a.txt", tmp_path / "b.txt"], {}) == [
        str(tmp_path / "a.txt"),
        str(tmp_path / "b.txt"),
    ]
    with pytest.raises(InputError, match=r"text is a list of file names.*give \[pathlib.Path\("):
        sources_of([str(tmp_path / "a.txt")], {})


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        (["a", 3], {}, "text: column 'text' is not text: .*int"),
        ([3], {}, "text: column 'text' holds int64, not text"),
        ([], {}, "text: there is no row of text"),
        (b"text", {}, "text=b'text' has type bytes"),
        ({"a", "b"}, {}, "has type set; give strings, a table"),
        (pandas.DataFrame({"a": ["x"], "b": ["y"]}), {}, r"text has no column 'text'; it has 'a', 'b'.*columns=\{'text': NAME\}"),
        (pyarrow.table([["x"], ["y"]], ["a", "a"]), {"text": "a"}, "has the column 'a' twice; rename"),
        ({"a": ["x"], "b": []}, COLUMNS | {"text": "a", "second": "b"}, "the columns a, b differ in length"),
        ([("a", "b")], {}, "a row has 2 values .*, but there are 1 columns"),
        ([("a", "b"), ("c",)], COLUMNS, r"a row has 1 values \(\('c',\)\), but there are 2 columns \(q, d\)"),
        ([{"q": "a", "d": "b"}, {"q": "c"}], COLUMNS, "a row has no 'd'"),
        (datasets.DatasetDict(train=datasets.Dataset.from_dict(PAIRS)), {}, "has the splits train; give one of them"),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_with_the_place(text, columns, words, cache):
    with pytest.raises(InputError, match=words):
        sources_of(text, columns)
    assert not cache.exists() or not list(cache.iterdir())
