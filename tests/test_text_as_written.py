"""Text and numbers are read as they were written, or refused in one line: nothing is left out or made up without a word."""

import csv
import json

import datasets
import pandas
import polars
import pyarrow
import pytest
from pyarrow import parquet

import jaxdistill
from jaxdistill import evaluate
from jaxdistill.checkpoints.folder import save
from jaxdistill.core import InputError
from jaxdistill.data.in_memory import sources_of
from jaxdistill.data.sources import content_digest, file_of
from jaxdistill.data.text import read

from eval_cases import write_set
from program import refused
from tiny_models import tiny_model

CELLS = ['He said "no".', "two\nlines", "a\ttab", "plain", 'one, "two"', "", "last"]
RAW = ['"Yes," she said, "I know."', '"Yes."', 'a 5" pipe', '"half quoted', "no quotes, but a comma"]


def write_excel(path, cells):
    """As Excel saves a sheet as text: it also quotes cells with a comma."""
    rows = ['"' + cell.replace('"', '""') + '"' if set(cell) & set('",\n\t') else cell for cell in cells]
    path.write_text("n\ttext\r\n" + "".join(f"{n}\t{row}\r\n" for n, row in enumerate(rows)), newline="")


def texts(spec):
    return [text for (text,) in read([str(spec)])]


@pytest.mark.parametrize(
    "write",
    [
        lambda path, cells: pandas.DataFrame({"n": 1, "text": cells}).to_csv(path, sep="\t"),
        lambda path, cells: pandas.DataFrame({"text": cells}).to_csv(path, sep="\t", quoting=csv.QUOTE_ALL),
        write_excel,
    ],
    ids=["pandas", "all quoted", "Excel"],
)
@pytest.mark.parametrize("cells", [CELLS, ["x"] * 3000 + CELLS, ["a, b", "c, d", "e"]], ids=["mixed", "late", "commas"])
def test_quoted_cells_of_a_tsv_are_read_without_their_quotes(tmp_path, caplog, write, cells):
    write(tmp_path / "a.tsv", cells)
    assert texts(tmp_path / "a.tsv") == texts(f"quoted:{tmp_path}/*.tsv") == cells
    said = [record.message for record in caplog.records]
    assert said == [
        f"{tmp_path}/a.tsv: its cells are quoted; to keep quotes as they are, write raw:{tmp_path}/a.tsv"
    ] * ('"' in (tmp_path / "a.tsv").read_text())


def test_quotes_of_a_raw_tsv_are_text_and_the_prefix_decides(tmp_path, caplog):
    for name, cells in {"raw": RAW, "few": ['"Yes."', "no"]}.items():
        (tmp_path / f"{name}.tsv").write_text("text\n" + "".join(f"{cell}\n" for cell in cells))
        assert texts(tmp_path / f"{name}.tsv") == texts(f"raw:{tmp_path / name}.tsv") == cells
    assert not caplog.records
    assert texts(f"quoted:{tmp_path}/few.tsv") == ["Yes.", "no"]
    (tmp_path / "quoted.tsv").write_text('text\n"a ""b"""\n')
    assert texts(f"raw:{tmp_path}/quoted.tsv") == ['"a ""b"""'] and texts(tmp_path / "quoted.tsv") == ['a "b"']
    digests = {content_digest([f"{prefix}{tmp_path}/few.tsv"]) for prefix in ("", "raw:", "quoted:")}
    assert len(digests) == 3
    with pytest.raises(InputError, match="cannot read .*raw.tsv: "):
        texts(f"quoted:{tmp_path}/raw.tsv")
    (tmp_path / "a.csv").write_text("text\na\n")
    with pytest.raises(InputError, match="a.csv is not a .tsv file; leave out raw: before its name"):
        texts(f"raw:{tmp_path}/a.csv")
    with pytest.raises(InputError, match="--pairs: raw:x.tsv: raw: is for sources of text"):
        file_of("--pairs", "raw:x.tsv")


def test_a_link_to_an_ancestor_repeats_no_text(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("a")
    (tmp_path / "in" / "deep" / "b.txt").write_text("b")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c.txt").write_text("c")
    (tmp_path / "in" / "other").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "deep" / "up").symlink_to(tmp_path / "in")
    assert texts(f"files:{tmp_path}/in") == texts(f"{tmp_path}/in/**/*.txt") == ["a", "b", "c"]
    assert texts(f"{tmp_path}/in/**/[ac].txt") == ["a", "c"] and texts(f"{tmp_path}/*/deep/*.txt") == ["b"]


@pytest.mark.parametrize("spec", ["files:{}", "files:{}/**", "{}/*.txt", "{}/**/*.txt", "{}/*/b.txt"])
def test_a_file_that_was_not_fetched_is_named_and_not_left_out(tmp_path, spec):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\n")
    (tmp_path / "b.txt").symlink_to(tmp_path / ".git" / "annex" / "b")
    (tmp_path / "in" / "b.txt").symlink_to(tmp_path / ".git" / "annex" / "b")
    with pytest.raises(InputError, match="b.txt cannot be read: No such file or directory; fetch it, or leave it out"):
        texts(spec.format(tmp_path))


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 9\n"


@pytest.mark.parametrize("suffix", ["txt", "parquet", "md"])
@pytest.mark.parametrize(
    ("content", "command"), [(POINTER, "git lfs pull"), ("/annex/objects/MD5E-s3--0a\n", "git annex get")]
)
def test_a_pointer_to_a_file_is_no_text(tmp_path, suffix, content, command):
    (tmp_path / f"a.{suffix}").write_text(content)
    with pytest.raises(
        InputError, match=f"a.{suffix} only points to a file that is not here; fetch it with {command}."
    ):
        texts(f"files:{tmp_path}" if suffix == "md" else tmp_path / f"a.{suffix}")


PAIRS = {"id": [1, 2], "translation": [{"en": "a", "x": {"de": "b"}}, {"en": "c", "x": {"de": None}}]}
PAIRS |= {"plain.name": ["own", "own"]}
FIELDS = {"text": "no.column|translation.en", "second": "translation.x.de", "third": "plain.name"}
TABLES = [pyarrow.table, polars.DataFrame, polars.LazyFrame, pandas.DataFrame, datasets.Dataset.from_dict, dict]


def write_pairs(folder, kind, pairs):
    """The pairs in a file; as `hub` in a folder that `datasets` loads. Gives the source without a column."""
    table = pyarrow.table(pairs)
    if kind == "jsonl":
        (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        parquet.write_table(table, folder / "train.parquet")
    return f"hf:{folder}:train" if kind == "hub" else str(folder / ("t.jsonl" if kind == "jsonl" else "train.parquet"))


@pytest.mark.parametrize("make", [*TABLES, lambda pairs: pyarrow.table(pairs).to_pylist()])
def test_fields_of_structs_in_memory_are_columns_with_a_dot(tmp_path, monkeypatch, make):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path))
    assert list(read(sources_of(make(PAIRS), FIELDS), FIELDS)) == [
        ("a", "b", "own"),
        ("c", "", "own"),
    ]
    if make in TABLES:
        gap = {"translation": [{"en": "a"}, None]}
        assert list(read(sources_of(make(gap), {"text": "translation.en"}))) == [("a",), ("",)]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "hub"])
def test_fields_of_structs_in_files_are_columns_with_a_dot(tmp_path, kind):
    spec = write_pairs(tmp_path, kind, PAIRS)
    given = f"{spec}:translation.en" if kind == "hub" else spec
    assert list(read([given], FIELDS)) == [("a", "b", "own"), ("c", "", "own")]
    for column, said in {
        "translation": "has no column 'translation'; it has .*'translation.en'",
        "translation.fr": "has no column 'translation.fr'; it has .*'translation.en'",
    }.items():
        with pytest.raises(InputError, match=said):
            list(read([f"{spec}:{column}" if kind == "hub" else spec], {"text": column}))
    if kind != "jsonl":  # whose objects may lack any field
        write_pairs(tmp_path, kind, {"translation": [{"en": "a"}, None]})
        assert list(read([given], {"text": "translation.en"})) == [("a",), ("",)]


def test_relevant_documents_that_the_corpus_lacks_count_as_never_found(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "tiny")
    judged = [("q1", "d1", 1), ("q1", "lost", 1), ("q2", "lost", 1), ("q2", "gone", 1), ("q2", "d9", 0)]
    folder = write_set(tmp_path / "set", qrels=judged)
    (row,) = jaxdistill.evaluate(tmp_path / "tiny", retrieval=folder).results["models"]
    assert f"{folder}/corpus.tsv.gz lacks 2 of the relevant documents; they count as never found" in caplog.text
    assert row["scores"]["documents/set recall@10"] == pytest.approx(1 / 4)


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Two models, a text and graded pairs in the working directory."""
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("one", "two")):
        save(tiny_model(tmp_path / "tokenizer", seed=seed), tmp_path / name)
    (tmp_path / "a.txt").write_text("the cat sleeps\nrain\n")
    (tmp_path / "p.tsv").write_text("1\tthe cat\train\n2\tthe dog\ta dog\n3\ta\tb\n")
    return tmp_path


def test_evaluate_replaces_no_file_of_others_and_no_results_of_other_inputs(models, capsys):
    arguments, out = ["--model=one", "--pairs=p.tsv"], models / "results.json"
    (models / "report").mkdir()
    for page, more in (out, []), (models / "report" / "index.html", ["--out=report/"]):
        page.write_text('{"accuracy": 1.0}')
        said = refused(evaluate, [*arguments, *more], capsys)
        assert f"{page.name} is not of evaluate; move it, or give another" in said
        assert page.read_text() == '{"accuracy": 1.0}'
    out.unlink()
    evaluate.main(arguments)
    evaluate.main(arguments)  # the same again
    before = out.read_text()
    for other in (["--model=two"], ["--model=one", "--prompt=rain "], ["--model=one", "--tasks=geometry,pairs"]):
        said = refused(evaluate, [*other, arguments[1]], capsys)
        assert f"results.json was made from other inputs ({other[-1][2:].partition('=')[0]} was " in said
    with pytest.raises(InputError, match="results.json was made from other inputs"):
        jaxdistill.evaluate("two", pairs="p.tsv", out="results.json")
    pairs = (models / "p.tsv").read_text()
    (models / "p.tsv").write_text(pairs.replace("3\ta", "0\ta"))
    assert "results.json was made from other inputs (pairs was" in refused(evaluate, arguments, capsys)
    (models / "p.tsv").write_text(pairs)
    assert out.read_text() == before
