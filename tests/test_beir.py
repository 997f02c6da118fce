"""Retrieval sets in BEIR's forms, in folders and on the hub, and what is wrong with them."""

import fnmatch
import json
import shutil

import pytest
from pyarrow import Table, parquet

from jaxdistill.core import InputError
from jaxdistill.evals.beir import _records, read_set
from jaxdistill.evals.beir_files import named_sets, set_files

from eval_cases import DOCUMENTS, QRELS, QUERIES, read_test, with_dev, write_set


@pytest.mark.parametrize("form", ["tsv", "jsonl", "parquet"])
def test_all_forms_give_the_same_set(tmp_path, form):
    known = read_test(write_set(tmp_path / "tiny", form))
    assert known.name == "tiny"
    assert known.documents == {"d1": "Cats They sleep.", "d2": "Dogs run in the park.", "d3": "Rain It rains in May."}
    assert list(known.queries) == ["q1", "q2", "q4"]  # that are judged
    assert known.judged == {"q1": {"d1": 2, "d3": 1}, "q2": {"d2": 1}, "q4": {"d1": 0}}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"qrels": [("q1", "d9", 1)]}, r"qrels.tsv: no query has a relevant document that .*corpus.tsv.gz has"),
        ({"qrels": [*QRELS, ("q9", "d1", 1)]}, r"qrels.tsv:5 judges the query 'q9'"),
        ({"qrels": [*QRELS, ("q1", "d1", 1)]}, r"qrels.tsv:5 judges .* twice, as 2 and 1; keep one"),
        ({"qrels": [("q1", "d1", "yes"), ("q1", "d1", "yes")]}, r"qrels.tsv:2: a judgement is .*; got 'q1.*yes'"),
        ({"qrels": [("q1", "d1", "0.5")]}, r"qrels.tsv:1: a judgement is query, document and a whole number"),
        ({"qrels": [*QRELS, ("q2", "d1", "9" * 5000)]}, r"qrels.tsv:5: .* of at most nine digits"),
        ({"qrels": [("q4", "d1", 0)]}, "no query has a relevant document"),
        ({"queries": [*QUERIES, ("q5", " ")]}, r"queries.tsv.gz:5: the query 'q5' has no text"),
        ({"corpus": [*DOCUMENTS, ("d1", "", "again")]}, r"corpus.tsv.gz:4 has the id 'd1' of an earlier line"),
        (
            {"corpus": [*DOCUMENTS, ("d4", "no text")]},
            r"corpus.tsv.gz:4: 3? ?2? ?.*fields; id, title, text are expected",
        ),
        ({"corpus": []}, "corpus.tsv.gz is empty"),
        ({"corpus": [("d1", "", " "), ("d2", "", "")]}, "corpus.tsv.gz: none of its 2 documents has text"),
        (
            {"form": "jsonl", "corpus": [*DOCUMENTS, ("d4", "", "\ud800")]},
            r"corpus.jsonl:4: column 'text' .* surrogate",
        ),
        ({"form": "jsonl", "queries": [*QUERIES, ("\ud800", "a")]}, r"queries.jsonl:5: column '_id' .* surrogate"),
        ({"form": "jsonl", "queries": [*QUERIES, (True, "a")]}, r"queries.jsonl:5: _id is True; it must be text or a"),
        ({"corpus": [("_id", "text"), *DOCUMENTS]}, r"corpus.tsv.gz:1: 2 fields; id, title, text are expected"),
        ({"form": "jsonl", "corpus": [*DOCUMENTS, ("", "", "a")]}, r"corpus.jsonl:4 has an empty id"),
        ({"queries": [*QUERIES, (" ", "a")]}, r"queries.tsv.gz:5 has an empty id"),
        (
            {"form": "parquet", "corpus": [*DOCUMENTS, ("d1", "", "a")]},
            r"corpus-00001-of-00002.parquet row 2 has the id",
        ),
        ({"form": "parquet", "corpus": [*DOCUMENTS, (None, "", "a")]}, r"00001-of-00002.parquet row 2: _id is None"),
        ({"form": "parquet", "queries": [*QUERIES, ("q5", None)]}, r"00001-of-00002.parquet row 3: the query 'q5'"),
        (
            {"form": "parquet", "qrels": [*QRELS, ("q9", "d1", 1)]},
            r"bad-qrels.test.tsv:6 .* 'q9', which \S*queries does",
        ),
    ],
)
def test_a_faulty_set_is_one_line_with_its_place(tmp_path, changed, words):
    with pytest.raises(InputError, match=words) as error:
        read_test(write_set(tmp_path / "bad", **changed))
    assert "\n" not in str(error.value)


def test_judgements_are_read_as_trec_eval_reads_them(tmp_path):
    rows = [("q1", "d1", "1.0"), ("q1", "d1", "1"), ("q1", "unknown", "0"), ("q2", "d2", "-1")]
    known = read_test(write_set(tmp_path / "tiny", qrels=rows))
    assert known.judged == {"q1": {"d1": 1, "unknown": 0}, "q2": {"d2": -1}}


def test_a_header_of_a_table_is_no_record(tmp_path):
    headers = {"corpus": [("_id", "title", "text"), *DOCUMENTS], "queries": [("ID", "Text"), *QUERIES]}
    assert list(read_test(write_set(tmp_path / "a", **headers)).documents) == [row[0] for row in DOCUMENTS]
    with pytest.raises(InputError, match="judges the query 'ID'"):
        read_test(write_set(tmp_path / "b", **headers, qrels=[*QRELS, ("ID", "d1", 1)]))
    swapped = [("_id", "text", "title"), *((name, text, title) for name, title, text in DOCUMENTS)]
    found = read_test(write_set(tmp_path / "swapped", corpus=swapped))
    assert found.documents["d1"] == "Cats They sleep."
    kept = write_set(tmp_path / "kept", corpus=[*DOCUMENTS, ("id", "title", "text")])
    assert "id" in read_test(kept).documents


def test_records_of_which_none_has_text_are_no_documents_of_titles_alone(tmp_path):
    path = write_set(tmp_path / "tiny", "jsonl") / "corpus.jsonl"
    path.write_text(path.read_text().replace('"text": "They sleep."', '"text": null'))
    assert read_test(path.parent).documents["d1"] == "Cats"
    path.write_text(path.read_text().replace('"text"', '"contents"'))
    with pytest.raises(
        InputError, match="corpus.jsonl: no record has the field 'text'; they have _id, title, contents, m"
    ):
        read_test(path.parent)


@pytest.mark.parametrize("header", ["corpus-id\tquery-id\tscore", "score\tqid\tdocid", "query-id\tcorpus-id\tscore"])
def test_judgements_are_read_in_the_order_of_their_header(tmp_path, header):
    """Ids are numbers, so that columns in the wrong places would not be noticed."""
    spec = write_set(
        tmp_path / "a", "jsonl", corpus=[("1", "", "a"), ("2", "", "b")], queries=[("1", "a?"), ("2", "b?")]
    )
    row = {name: {"q": "1", "c": "2", "d": "2", "s": "1"}[name[0]] for name in header.split("\t")}
    (spec / "qrels" / "test.tsv").write_text(f"{header}\n" + "\t".join(row.values()) + "\n")
    assert read_test(spec).judged == {"1": {"2": 1}}


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_an_id_may_be_named_without_its_underscore(tmp_path, form):
    rows = [{"id": 7, "text": "a"}]
    if form == "jsonl":
        (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, rows)))
    else:
        parquet.write_table(Table.from_pylist(rows), tmp_path / "queries.parquet")
    (record,) = _records([tmp_path / f"queries.{form}"], ("text",))
    assert (record.name, list(record.cells)) == ("7", ["a"])


def test_a_header_may_follow_blank_lines_and_ids_may_be_numbers(tmp_path):
    corpus, queries = [(7, "", "They sleep.")], [(1, "Do cats sleep?")]
    folder = write_set(tmp_path / "tiny", "jsonl", corpus=corpus, queries=queries, qrels=[(1, 7, 1)])
    path = folder / "qrels" / "test.tsv"
    path.write_text("\n \n" + path.read_text() + "\n")
    assert read_test(folder).judged == {"1": {"7": 1}}


def test_a_parquet_table_needs_ids_and_text_but_no_titles(tmp_path):
    folder = write_set(tmp_path / "tiny", "parquet")
    (folder / "corpus" / "._corpus-00000-of-00002.parquet").write_bytes(b"hidden")
    for path in (folder / "corpus").glob("corpus*"):
        parquet.write_table(parquet.read_table(path).drop_columns("title"), path)
    assert read_test(folder).documents["d3"] == "It rains in May."
    crossed = f"{folder}+{write_set(tmp_path / 'other')}"
    assert read_test(crossed).documents["d3"] == "Rain It rains in May."
    first = next(iter(sorted((folder / "queries").iterdir())))
    parquet.write_table(parquet.read_table(first).rename_columns(["query-id", "text"]), first)
    with pytest.raises(InputError, match=r"00000-of-00002.parquet has no column '_id'; _id or id, text are expected"):
        read_test(folder)
    first.write_bytes(first.read_bytes()[:-8])
    with pytest.raises(InputError, match="is not a complete Parquet file"):
        read_test(folder)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder `ORG/NAME` for each data set of a hub, of which only files that match are fetched."""

    def snapshot_download(name, *, repo_type, allow_patterns):
        whole, fetched = tmp_path / "hub" / name, tmp_path / "snapshots" / name / "0a1b2c"
        if repo_type != "dataset" or not whole.is_dir():
            raise OSError(f"404: no {repo_type} {name}")
        for path in whole.rglob("*"):
            part = str(path.relative_to(whole))
            if path.is_file() and any(fnmatch.fnmatch(part, pattern) for pattern in allow_patterns):
                (fetched / part).parent.mkdir(parents=True, exist_ok=True)
                (fetched / part).write_bytes(path.read_bytes())
        return str(fetched)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return tmp_path / "hub"


@pytest.mark.parametrize("form", ["tsv", "jsonl", "parquet"])
def test_a_set_of_the_hub_is_fetched_with_its_judgements(hub, tmp_path, form):
    (write_set(hub / "ORG" / "tiny", form) / "corpus-embeddings.npy").write_bytes(b"large")
    known = read_test("ORG/tiny")
    assert known.name == "tiny" and known.judged == {"q1": {"d1": 2, "d3": 1}, "q2": {"d2": 1}, "q4": {"d1": 0}}
    assert not list(tmp_path.glob("snapshots/**/*.npy"))
    write_set(hub / "ORG" / "other", form)
    assert set_files("ORG/tiny+ORG/other", split="test").name == "tiny+other"


def test_judgements_that_the_hub_does_not_have_are_one_line(hub):
    write_set(hub / "ORG" / "tiny", "parquet")
    (hub / "ORG" / "tiny-qrels" / "test.tsv").rename(hub / "ORG" / "tiny-qrels" / "train.tsv")
    with pytest.raises(
        InputError, match=r"no judgements of the split test \(qrels/test.tsv\), only of train \(train.tsv\)"
    ):
        set_files("ORG/tiny", split="test")
    assert set_files("ORG/tiny", split="train").qrels.name == "train.tsv"
    shutil.rmtree(hub / "ORG" / "tiny-qrels")
    with pytest.raises(
        InputError, match=r"tiny has no judgements \(qrels/test.tsv\), and ORG/tiny-qrels cannot be fetched"
    ):
        set_files("ORG/tiny", split="test")


def test_each_split_has_its_own_judgements_and_a_lone_file_counts_as_test(tmp_path):
    folder = with_dev(write_set(tmp_path / "tiny"), [("q2", "d2", 1)])
    dev, test = (set_files(str(folder), split=split) for split in ("dev", "test"))
    assert (dev.qrels.name, test.qrels.name) == ("dev.tsv", "qrels.tsv")
    assert (read_set(dev).split, read_set(dev).judged) == ("dev", {"q2": {"d2": 1}})
    error = r"tiny has no judgements of the split train \(qrels/train.tsv\), only of dev \(dev.tsv\), test \(qrels.tsv\); add"
    with pytest.raises(InputError, match=f"{error} them, or give --split=dev.$"):
        set_files(str(folder), split="train")
    beside = write_set(tmp_path / "hub", "parquet")
    (tmp_path / "hub-qrels" / "dev.tsv").write_text("q1\td2\t1\n")
    assert read_set(set_files(str(beside), split="dev")).judged == {"q1": {"d2": 1}}
    (folder / "qrels.tsv").unlink()
    (folder / "qrels" / "dev.tsv").unlink()
    with pytest.raises(InputError, match=r"it has no judgements \(qrels/dev.tsv\), and neither has \S*tiny-qrels"):
        set_files(str(folder), split="dev")


def test_a_path_may_contain_the_sign_that_crosses_sets(tmp_path):
    one, other = (write_set(tmp_path / "c++" / "data" / name) for name in ("x-de", "x-en"))
    assert named_sets([f"{one}+{other}"]) == {f"{one}+{other}": "x-de+x-en"}
    assert read_test(f"{one}+{other}").name == "x-de+x-en"
