"""Long text in use: whole files as texts, ids, passages beside their vectors, search in passages, files of hits."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from pyarrow import parquet

from jaxdistill import encode, search
from jaxdistill.checkpoints.folder import save
from jaxdistill.core import InputError
from jaxdistill.data import sources
from jaxdistill.data.passages import have_ids, passages
from jaxdistill.inference import Embedder
from jaxdistill.inference.to_file import chunking_for, encode_file
from jaxdistill.ops import nearest as nearest_rows
from jaxdistill.ops.nearest import nearest_groups
from jaxdistill.paths import public_name
from jaxdistill.reporting.hits import Hit, hits_table
from jaxdistill.reporting.tables import as_text

from program import refused
from tiny_models import tiny_model

LONG = "  The cat sleeps. The dog sleeps, and rain. A cat in may?\n\nRain and a dog. The cat and a dog in rain.\n"
TEXTS = {"a.md": LONG, "b.txt": "Rain.", "c/d.rst": "", "c/e.txt": "A dog. The rain in may. " * 3}
TOKENS = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save(tiny_model(folder / "tokenizer"), folder / "export")
    return str(folder / "export")


@pytest.fixture
def embedder(tmp_path):
    return Embedder(tiny_model(tmp_path / "tokenizer"))


@pytest.fixture
def documents(tmp_path, monkeypatch):
    """A folder of files, the working directory is the one above."""
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name, text in TEXTS.items():
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    (tmp_path / "docs" / ".hidden").write_bytes(b"\xff")
    return "files:docs"


def test_each_file_of_a_folder_is_one_text_as_python_reads_it(documents):
    assert list(sources.read([documents])) == [(text,) for text in TEXTS.values()]
    assert list(sources.read(["files:docs/**/*.txt"])) == [(TEXTS["b.txt"],), (TEXTS["c/e.txt"],)]
    digests = {sources.content_digest([spec]) for spec in ("files:docs/b.txt", "docs/b.txt")}
    assert len(digests) == 2 and sources.is_plain(documents)
    assert public_name("files:/home/me/docs/*.md") == "files:*.md"
    Path("paper").write_bytes(b"%PDF-1.4\n%\xe2\xe3\n")
    Path("image").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    for spec, columns, said in (
        (documents, ("text", "second"), "a.md has no column 'second': a whole file is one text"),
        ("files:docs/x*", ("text",), "no file matches docs/x"),
        ("docs", ("text",), "docs is a folder; .* or files:docs for one text per file"),
        ("files:docs/.hidden", ("text",), "hidden:1 is not UTF-8"),
        ("files:paper", ("text",), "paper is not text but PDF: write its text into a file"),
        ("files:image", ("text",), "image is not text but an image: leave it out"),
    ):
        with pytest.raises(InputError, match=said):
            list(sources.read([spec], columns))
    with pytest.raises(InputError, match="a.md is longer than 70 bytes"):
        list(sources.read(["files:docs/a.md"], line_bytes=70))


def test_ids_are_those_of_the_corpus_or_numbers_of_rows(documents, tmp_path):
    (tmp_path / "beir.jsonl").write_text('{"_id": "x", "text": "rain"}\n{"_id": 7, "text": "dog"}\n')
    (tmp_path / "table.tsv").write_text("id\tbody\tother\n3\tcat\t\n")
    (tmp_path / "plain.txt").write_text("may\n")
    ids = lambda *specs, column="text": [passage.id for passage in passages(specs, column)]  # noqa: E731 - said once
    assert ids("beir.jsonl") == ["x", "7"] and ids("table.tsv", column="body") == ["3"]
    assert ids("files:docs/*.txt", "beir.jsonl") == ["docs/b.txt", "x", "7"]
    assert ids("beir.jsonl", "plain.txt") == ["1", "2", "3"]
    assert ids("*[rn].*") == ["1", "2", "3"] and not have_ids(["*[rn].*"])  # a file of the glob has none
    (tmp_path / "beir.jsonl").write_text('{"_id": "x", "text": 5}\n')
    with pytest.raises(InputError, match="column 'text' holds int 5, not text"):
        ids("beir.jsonl")


def test_passages_are_whole_sentences_in_their_places_and_read_whole(documents, embedder, tmp_path):
    output = tmp_path / "index.parquet"
    counts = encode_file(embedder, [documents], output, prompt_name="query", chunk_tokens=TOKENS, progress=False)
    table = parquet.read_table(output)
    assert table.column_names == ["id", "start", "end", "text", "embedding"]
    rows = table.to_pylist()
    assert [row["id"] for row in rows if row["start"] == 0] == ["docs/b.txt", "docs/c/e.txt"]  # a.md begins with space
    assert {row["id"] for row in rows} == {f"docs/{name}" for name, text in TEXTS.items() if text}
    for row in rows:
        assert Path(row["id"]).read_text(encoding="utf-8-sig")[row["start"] : row["end"]] == row["text"]
        assert row["text"][-1] in ".?"
    words = lambda text: "".join(text.split())  # noqa: E731 - said once
    assert words("".join(row["text"] for row in rows)) == words("".join(TEXTS.values()))
    vectors = np.array([row["embedding"] for row in rows])
    np.testing.assert_allclose(vectors, embedder.encode([row["text"] for row in rows], prompt_name="query"), atol=1e-6)
    ids = [embedder.model.tokenizer.encode(embedder.model.prompts["query"] + row["text"]).ids for row in rows]
    assert max(map(len, ids)) <= TOKENS and counts[:3] == (len(rows), 0, 0)


def test_a_table_of_whole_texts_has_their_ids_too(documents, embedder, tmp_path):
    for keep, columns in ((False, ["id", "embedding"]), (True, ["id", "text", "embedding"])):
        encode_file(embedder, [documents], tmp_path / f"{keep}.parquet", keep_text=keep, progress=False)
        assert parquet.read_table(tmp_path / f"{keep}.parquet").column_names == columns


def test_passages_end_where_those_of_training_end(embedder):
    chunking = chunking_for(embedder, TOKENS, "the cat ")
    assert chunking.most == TOKENS - len("[CLS] the cat [SEP]".split()) and list(chunking.split([LONG])) == [
        [LONG[start:end] for start, end in next(chunking.spans([LONG]))]
    ]


def test_an_interrupted_file_of_passages_goes_on_and_other_lengths_begin_anew(
    documents, embedder, tmp_path, monkeypatch, caplog
):
    whole, cut = tmp_path / "whole.parquet", tmp_path / "cut.parquet"
    options = {"chunk_tokens": TOKENS, "part_rows": 2, "progress": False}
    encode_file(embedder, [documents], whole, **options)
    encode_ids, sizes = embedder.encode_ids, []

    def stops(ids, **given):
        sizes.append(len(ids))
        if len(sizes) == 2:
            raise KeyboardInterrupt
        return encode_ids(ids, **given)

    monkeypatch.setattr(embedder, "encode_ids", stops)
    with pytest.raises(KeyboardInterrupt):
        encode_file(embedder, [documents], cut, **options)
    encode_file(embedder, [documents], cut, **options)
    assert cut.read_bytes() == whole.read_bytes() and sum(sizes) == parquet.read_metadata(whole).num_rows + 2
    sizes.clear()
    cut.unlink()
    with pytest.raises(KeyboardInterrupt):
        encode_file(embedder, [documents], cut, **options)
    encode_file(embedder, [documents], cut, **options | {"chunk_tokens": TOKENS - 4})
    assert "passage_tokens was" in caplog.text


@pytest.mark.parametrize("block_rows", [3, 50])
def test_a_text_is_as_near_as_its_nearest_passage(block_rows):
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(12), [30, *[2] * 10, 1])
    rows, queries = rng.normal(size=(51, 4)), rng.normal(size=(5, 4))
    rows[:30] = queries[0] + rng.normal(size=(30, 4)) / 100  # one long text has all the rows nearest to a query
    unit = [array / np.linalg.norm(array, axis=1, keepdims=True) for array in (queries, rows)]
    exact = unit[0] @ unit[1].T
    of_groups = np.array([[of[groups == group].max() for group in range(12)] for of in exact])
    calls = []

    def blocks():
        calls.append(1)
        return (rows[at : at + block_rows] for at in range(0, 51, block_rows))

    for count in (1, 5, 20):
        cosines, found = nearest_groups(queries, blocks, groups, count=count)
        np.testing.assert_allclose(cosines, -np.sort(-of_groups, axis=1)[:, :count], atol=1e-6)
        np.testing.assert_allclose(cosines, np.take_along_axis(exact, found, axis=1), atol=1e-6)
    assert len(calls) > 3 and nearest_rows.ROWS_PER_GROUP > 1


def hits_of(arguments, output) -> list[dict]:
    search.main([*arguments, f"--output={output}", "--quiet", "--precision=float32"])
    return [json.loads(line) for line in Path(output).read_text(encoding="utf-8").splitlines()]


def test_a_folder_becomes_an_index_that_is_searched_without_the_folder(model, documents, tmp_path, capsys):
    shared = [f"--model={model}", "--query=rain and a dog.", "--query=Rain.", "--top=3"]
    encode.main(
        [f"--model={model}", f"--input={documents}", f"--chunk_tokens={TOKENS}", "--output=index.parquet",
         "--role=document", "--precision=float32", "--quiet"]
    )  # fmt: skip
    stored = hits_of([*shared, "--vectors=index.parquet"], "stored.jsonl")
    assert hits_of([*shared, f"--corpus={documents}", f"--chunk_tokens={TOKENS}"], "computed.jsonl") == stored
    assert not capsys.readouterr().err
    assert [hit["query_id"] for hit in stored] == ["1"] * 3 + ["2"] * 3
    for query in (stored[:3], stored[3:]):
        assert [hit["rank"] for hit in query] == [1, 2, 3]
        assert {hit["id"] for hit in query} == {f"docs/{name}" for name, text in TEXTS.items() if text}
        assert [hit["score"] for hit in query] == sorted((hit["score"] for hit in query), reverse=True)
    assert all(Path(hit["id"]).read_text("utf-8-sig")[hit["start"] : hit["end"]] == hit["text"] for hit in stored)
    Path("docs").rename("moved")  # what is kept names the files that it was made of
    again = hits_of([*shared, "--corpus=files:moved", f"--chunk_tokens={TOKENS}"], "moved.jsonl")
    assert again == [hit | {"id": hit["id"].replace("docs", "moved")} for hit in stored]


def test_a_run_file_has_the_ids_of_queries_and_corpus(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    corpus = [{"_id": name, "text": text} for name, text in (("d1", "the cat sleeps"), ("d2", "rain"), ("d3", "dog"))]
    Path("corpus.jsonl").write_text("\n".join(map(json.dumps, corpus)))
    Path("queries.jsonl").write_text('{"_id": "q7", "text": "rain"}\n{"_id": "q9", "text": "dog"}\n')
    arguments = [
        f"--model={model}",
        "--corpus=corpus.jsonl",
        "--queries=queries.jsonl",
        "--precision=float32",
        "--prompt=none",
        "--corpus_prompt=none",
    ]
    search.main([*arguments, "--output=found.trec", "--quiet"])
    assert capsys.readouterr().out == "found.trec: 6 hits of 2 queries\n"
    with open("found.trec") as file:
        run = pytrec_eval.parse_run(file)
    assert {query: set(ranked) for query, ranked in run.items()} == dict.fromkeys(("q7", "q9"), {"d1", "d2", "d3"})
    best = hits_of([*arguments, "--top=1"], "found.jsonl")
    assert [(hit["query_id"], hit["query"], hit["id"], hit["text"]) for hit in best] == [
        ("q7", "rain", "d2", "rain"), ("q9", "dog", "d3", "dog"),
    ]  # fmt: skip
    assert best[0].keys() == {"query_id", "query", "rank", "score", "id", "text"}
    assert run["q7"]["d2"] == pytest.approx(best[0]["score"], abs=1e-8)
    search.main([*arguments, "--top=1", "--quiet"])
    assert re.search(r"rank +cosine +id +sentence *\n.*\n +1 +1.0000 +d2 +rain", capsys.readouterr().out)


def test_texts_that_are_cut_are_counted_with_the_option_that_keeps_them(model, documents, tmp_path, capsys):
    search.main([f"--model={model}", f"--corpus={documents}", "--query=dog", "--quiet"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: 2 of 4 texts (50.0%) are longer than 16 tokens; their ends are cut, ")
    assert line.endswith("; --chunk_tokens=16 keeps them as passages")
    search.main([f"--model={model}", f"--corpus={documents}", f"--query={'dog ' * 30}", "--chunk_tokens=16", "--quiet"])
    assert capsys.readouterr().err == "note: 1 of 1 queries are longer than 16 tokens and cut\n"


def test_a_passage_goes_on_in_the_next_line_beside_its_place():
    hits = [Hit(0.9, 3, "a passage\n" * 60, "docs/a.md", (1000, 1600)), Hit(0.5, 0, "short", "docs/b.md", (0, 5))]
    lines = as_text(hits_table("query", hits), width=120).splitlines()
    assert lines[2].split() == ["rank", "cosine", "id", "characters", "passage"]
    assert lines[4].split()[:4] == ["1", "0.9000", "docs/a.md", "1,000-1,600"]
    assert len(lines) > 9 and sum(line.count("passage") for line in lines[4:]) == 60 and "…" not in "".join(lines)


@pytest.mark.parametrize(
    ("program", "wrong", "said"),
    [
        (encode, ["--output=v.npy"], "--chunk_tokens=16 needs a table: --output=v.parquet."),
        (
            encode,
            ["--output=v.parquet", "--chunk_tokens=17"],
            "--chunk_tokens=17 must be from 3 (one token besides special",
        ),
        (encode, ["--output=v.parquet", "--chunk_tokens=99"], ", which --max_length raises"),
        (encode, ["--output=v.parquet", "--chunk_tokens=2"], " to 16 (the maximum length of "),
        (encode, ["--output=v.parquet", "--chunk_tokens=0"], "--chunk_tokens: 0 must be at least 1"),
        (search, ["--chunk_tokens=99"], "--chunk_tokens=99 must be from 3"),
        (search, ["--vectors=index.parquet"], "--vectors excludes --corpus_model, --corpus_prompt and --chunk_tokens"),
        (search, ["--output=hits.csv"], "--output=hits.csv must end in .jsonl or .trec."),
        (search, ["--output=docs/b.txt"], "--output=docs/b.txt must end in"),
        (search, ["--queries=q.jsonl", "--output=q.jsonl"], "q.jsonl is also an input file"),
        (search, ["--queries=twice.jsonl"], "twice.jsonl gives 2 queries only 1 different ids"),
        (search, ["--corpus=spaced.jsonl", "--output=hits.trec"], "the id 'a b' is not one word, which a .trec file"),
        (search, ["--corpus=twice.jsonl", "--output=hits.trec"], "the id 'd' appears twice in the corpus"),
    ],
)
def test_what_cannot_be_is_one_clear_line(model, documents, capsys, program, wrong, said):
    Path("q.jsonl").write_text('{"_id": "q", "text": "rain"}\n')
    Path("twice.jsonl").write_text('{"_id": "d", "text": "rain"}\n{"_id": "d", "text": "dog"}\n')
    Path("spaced.jsonl").write_text('{"_id": "a b", "text": "rain"}\n')
    text = [] if any(option.startswith(("--corpus", "--vectors")) for option in wrong) else [documents]
    source = [f"--{'input' if program is encode else 'corpus'}={spec}" for spec in text]
    query = ["--query=rain"] * (program is search and not any(option.startswith("--queries") for option in wrong))
    tokens = [] if "--corpus" in wrong[0] else [f"--chunk_tokens={TOKENS}"]
    assert said in refused(program, [f"--model={model}", *tokens, *source, *query, *wrong, "--quiet"], capsys)


def test_stored_vectors_need_their_text_once(model, documents, capsys):
    encode.main([f"--model={model}", f"--input={documents}", "--output=bare.parquet", "--quiet"])
    encode.main([f"--model={model}", f"--input={documents}", "--output=split.parquet", "--chunk_tokens=9", "--quiet"])
    for options, said in (
        (
            ["--vectors=bare.parquet"],
            "bare.parquet has no text; give its --corpus, or write it with encode --keep_text.",
        ),
        (["--vectors=split.parquet", f"--corpus={documents}"], "split.parquet has passages with their text; leave out"),
        ([], "no text to search in; give --corpus=TEXT, or --vectors=FILE"),
    ):
        assert said in refused(search, [f"--model={model}", "--query=dog", *options, "--quiet"], capsys)
    encode.main(
        [
            f"--model={model}",
            f"--input={documents}",
            "--output=kept.parquet",
            "--keep_text",
            "--role=document",
            "--quiet",
        ]
    )
    found = hits_of([f"--model={model}", "--query=dog", "--vectors=kept.parquet"], "kept.jsonl")
    assert {hit["id"]: hit["text"] for hit in found} == {f"docs/{name}": text for name, text in TEXTS.items()}
