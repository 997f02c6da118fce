"""Nearest sentences of a query: exact, block by block, from computed or stored vectors."""

import dataclasses
import os
import re

import numpy as np
import pytest

from jaxdistill import compile_cache, encode, search
from jaxdistill.checkpoints.folder import save
from jaxdistill.data.part_folder import PartFolder
from jaxdistill.ops import nearest as nearest_rows
from jaxdistill.ops.nearest import nearest

from program import refused
from tiny_models import saved_tiny_model, tiny_model

CORPUS = ["the cat sleeps", "rain", "a dog, and another dog?", "the cat sleeps [not]", "dog", "the dog sleeps", ""]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "corpus.txt").write_text("\n".join(CORPUS) + "\n", encoding="utf-8")
    return str(tmp_path / "corpus.txt")


def found(arguments, capsys) -> list[tuple[str, ...]]:
    """(rank, cosine, row, sentence) of every line that the program prints."""
    capsys.readouterr()
    search.main([*arguments, "--quiet"])
    return re.findall(r"^ +(\d+) +(-?[\d.]+) +([\d,]+) *(.*?) *$", capsys.readouterr().out, re.MULTILINE)


def test_a_cache_that_cannot_be_written(model, corpus, tmp_path, monkeypatch, caplog, capsys):
    """As in a container whose user has no home: one warning and one error, both with the remedy."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "file"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    for _ in range(2):
        compile_cache.keep_compiled()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    (record,) = caplog.records
    message = refused(search, [f"--model={model}", f"--corpus={corpus}", "--query=rain", "--quiet"], capsys)
    assert all("Not a directory; set JAXDISTILL_CACHE to another" in said for said in (record.getMessage(), message))


def test_a_case_by_hand():
    rows = np.array([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0], [-1.0, 0.0], [0.0, 0.0]])
    cosines, numbers = nearest(np.array([[2.0, 0.0], [0.0, 1.0]]), [rows[:2], rows[2:]], count=4)
    half = 0.5**0.5
    np.testing.assert_allclose(cosines, [[1, half, 0, 0], [1, half, 0, 0]], atol=1e-6)
    np.testing.assert_array_equal(numbers, [[0, 2, 1, 4], [1, 2, 0, 3]])


@pytest.mark.parametrize("block_rows", [1, 7, 32, 100])
def test_blocks_find_what_brute_force_finds(block_rows, monkeypatch):
    monkeypatch.setattr(nearest_rows, "QUERY_ROWS", 4)
    rng = np.random.default_rng(block_rows)
    queries, rows = rng.normal(size=(9, 5)), rng.normal(size=(100, 5))
    rows[50:60] = rows[:10]
    unit = [array / np.linalg.norm(array, axis=1, keepdims=True) for array in (queries, rows)]
    exact = unit[0] @ unit[1].T
    blocks = (rows[start : start + block_rows] for start in range(0, 100, block_rows))
    cosines, numbers = nearest(queries, blocks, count=12)
    np.testing.assert_allclose(cosines, -np.sort(-exact, axis=1)[:, :12], atol=1e-6)
    np.testing.assert_allclose(cosines, np.take_along_axis(exact, numbers, axis=1), atol=1e-6)
    assert all(len(set(row)) == 12 for row in numbers)


def test_fewer_rows_than_wanted_all_come_back():
    cosines, numbers = nearest(np.ones((1, 2)), [np.eye(2)], count=5)
    assert cosines.shape == numbers.shape == (1, 2)


def test_the_sentence_itself_is_nearest_and_its_row_is_the_line(model, corpus, capsys):
    arguments = [f"--model={model}", f"--corpus={corpus}", "--query=the cat sleeps [not]", "--query=dog", "--top=2"]
    rows = found(arguments, capsys)
    assert [row[0] for row in rows] == ["1", "2", "1", "2"]
    assert rows[0][1:] == ("1.0000", "4", "the cat sleeps [not]") and rows[2][1:] == ("1.0000", "5", "dog")


def test_stored_computed_and_kept_vectors_give_the_same(model, corpus, tmp_path, capsys, monkeypatch):
    (tmp_path / "queries.txt").write_text("the cat sleeps\nrain\n")
    arguments = [
        f"--model={model}",
        f"--corpus={corpus}",
        f"--queries={tmp_path / 'queries.txt'}",
        "--precision=float32",
    ]
    computed = found(arguments, capsys)
    assert len(computed) == 2 * len(CORPUS)
    for name in ("v.npy", "v.parquet", "parts/"):
        encode.main(
            [f"--model={model}", f"--input={corpus}", f"--output={tmp_path}/{name}", "--quiet", *arguments[-1:]]
        )
        assert found([*arguments, f"--vectors={tmp_path}/{name}"], capsys) == computed
        search.main([*arguments, f"--vectors={tmp_path}/{name}", "--quiet"])
        assert not capsys.readouterr().err
    monkeypatch.setattr(PartFolder, "write", lambda *_: pytest.fail("computed again"))
    assert found(arguments, capsys) == computed
    with pytest.raises(pytest.fail.Exception, match="computed again"):
        found([*arguments, "--precision=bfloat16"], capsys)
    with open(corpus, "a") as file:
        file.write("rain\n")
    with pytest.raises(pytest.fail.Exception, match="computed again"):
        found(arguments, capsys)


def test_another_model_may_have_read_the_corpus(model, corpus, tmp_path, capsys):
    save(tiny_model(tmp_path / "tokenizer", seed=3), tmp_path / "teacher")
    arguments = [f"--model={model}", f"--corpus={corpus}", "--query=dog"]
    asymmetric = found([*arguments, f"--corpus_model={tmp_path / 'teacher'}"], capsys)
    encode.main([f"--model={tmp_path / 'teacher'}", f"--input={corpus}", f"--output={tmp_path / 'v.npy'}", "--quiet"])
    stored = [*arguments, f"--vectors={tmp_path / 'v.npy'}"]
    assert found(stored, capsys) == asymmetric != found(arguments, capsys)
    search.main([*stored, "--quiet"])
    assert re.fullmatch(r"note: of the first 7 vectors of .*v.npy, one has cosine .*\n", capsys.readouterr().err)


def test_a_long_sentence_leaves_room_for_the_numbers_beside_it():
    hits = [search.Hit(0.9, 3, "a passage " * 500), search.Hit(-0.875, 1_234_566, "short")]
    lines = search.as_text(search.hits_table("query", hits), width=search.LINE_WIDTH).splitlines()
    assert re.search(r"^ +1 +0.9000 +4 +a passage .*…", lines[-3]) and len(lines[-3]) <= search.LINE_WIDTH
    assert re.fullmatch(r" +2 +-0.8750 +1,234,567 +short *", lines[-2])


def test_control_characters_of_a_text_do_not_reach_the_terminal():
    hits = [search.Hit(cosine=1.0, row=0, sentence="a\x1b[2J\x9b1mb\x0bc\u2028d", id="i\x1b[31m")]
    lines = search.as_text(search.hits_table("q\x1b]0;title\x07", hits), width=search.LINE_WIDTH).splitlines()
    assert lines[0].rstrip() == "q ]0;title" and lines[-2].split() == "1 1.0000 i [31m a [2J 1mb c d".split()


def test_queries_and_corpus_are_read_behind_the_prompts_of_their_roles(corpus, tmp_path, capsys):
    """With one prompt for both, a sentence finds itself; with two, `--prompt` and `--corpus_prompt` name the same one."""
    for name, prompts in (
        ("two", {"query": "the cat ", "document": "rain "}),
        ("one", {"query": "a ", "passage": "a "}),
    ):
        save(dataclasses.replace(tiny_model(tmp_path / "tokenizer"), prompts=prompts), tmp_path / name)
    given = [f"--corpus={corpus}", "--query=dog", "--top=1", "--precision=float32"]
    itself = [("1", "1.0000", "5", "dog")]
    assert found([f"--model={tmp_path / 'one'}", *given], capsys) == itself
    assert found([f"--model={tmp_path / 'two'}", *given], capsys) != itself
    for prompt in ("query", "document", "none"):
        same = [f"--prompt={prompt}", f"--corpus_prompt={prompt}"]
        assert found([f"--model={tmp_path / 'two'}", *given, *same], capsys) == itself


def test_a_table_with_the_sentences_of_another_corpus_is_refused(model, corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    encode.main([f"--model={model}", f"--input={corpus}", "--output=~/t.parquet", "--keep_text", "--quiet"])
    arguments = [f"--model={model}", "--query=dog", "--vectors=~/t.parquet"]
    assert len(found([*arguments, f"--corpus={corpus}"], capsys)) == len(CORPUS)
    (tmp_path / "other.txt").write_text("\n".join([*CORPUS[:4], "wolf", *CORPUS[5:]]) + "\n")
    line = refused(search, [*arguments, f"--corpus={tmp_path}/other.txt", "--quiet"], capsys)
    assert "t.parquet row 5 is 'dog', but the corpus has 'wolf'; give the vectors of exactly this text." in line


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([], "a query is empty or missing; give --query=TEXT or --queries=FILE"),
        (["--query="], "a query is empty or missing"),
        (["--query=a", "--queries={0}/gap.txt"], "gap.txt: row 2 has no query; remove it (2 of 4 are empty)"),
        (["--query=a", "--corpus=absent.txt"], "absent.txt does not exist"),
        (["--query=a", "--corpus={0}/empty.txt"], "empty.txt is empty: it has no rows of text"),
        (["--queries={0}/absent.txt"], "absent.txt does not exist"),
        (["--query=a", "--top=8"], "--top=8 is more than the corpus has: 7 rows; give 7 or fewer."),
        (["--query=a", "--top=0"], "--top=0 must be at least 1"),
        (["--query=a", "--vectors={0}/absent.npy"], "absent.npy does not exist; give a .npy file of vectors"),
        (["--query=a", "--vectors={0}/absent.parquet"], "absent.parquet does not exist; give a file of vectors"),
        (["--query=a", "--vectors={0}/empty.parquet"], "empty.parquet is not a complete Parquet file"),
        (["--query=a", "--vectors={0}/text.parquet"], "text.parquet has text: string; vectors are fixed-size lists"),
        (
            ["--query=a", "--vectors={0}/short.npy"],
            "short.npy has 6 rows, the corpus 7; give the vectors of exactly this",
        ),
        (["--query=a", "--vectors={0}/wide.npy"], "wide.npy gives vectors of 17 numbers, "),
        (
            ["--query=a", "--vectors={0}/nan.npy"],
            "nan.npy: row 5 is not finite (nan in column 3); compute that vector again.",
        ),
        (
            ["--query=a", "--vectors=v.npy", "--corpus_model=m"],
            "--vectors excludes --corpus_model, --corpus_prompt and",
        ),
        (["--query=a", "--corpus_model={0}/wide"], "wide gives vectors of 20 numbers, "),
        (["--query=a", "--prompt=passage"], "prompt 'passage' is unknown"),
        (["--query=a", "--quary=b"], "unknown option --quary. Did you mean --query?"),
    ],
)
def test_what_cannot_be_searched_is_one_clear_line(model, corpus, tmp_path, capsys, wrong, said):
    import pyarrow
    from pyarrow import parquet

    for name in ("empty.txt", "empty.parquet"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "gap.txt").write_text("cat\n\ndog\n \n")
    parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "text.parquet")
    nan = np.ones((7, 16), np.float32)
    nan[5, 3] = np.nan
    for name, array in {"short": np.ones((6, 16)), "wide": np.ones((7, 17)), "nan": nan}.items():
        np.save(tmp_path / f"{name}.npy", array)
    if "--corpus_model={0}/wide" in wrong:
        save(tiny_model(tmp_path / "tokenizer", head=20), tmp_path / "wide")
    arguments = [option.format(tmp_path) for option in wrong]
    line = refused(search, [f"--model={model}", f"--corpus={corpus}", *arguments, "--quiet"], capsys)
    assert said in line
