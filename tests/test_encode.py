"""A file of sentences becomes a file of vectors, row for row; killed and resumed, and in bounded memory."""

import errno
import gzip
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from jaxdistill import cli, encode
from jaxdistill.checkpoints.folder import save
from jaxdistill.core import InputError
from jaxdistill.data import part_folder, vectors
from jaxdistill.inference import Embedder, load, to_file
from jaxdistill.inference.to_file import encode_file

from program import refused
from tiny_models import tiny_model

SENTENCES = ["the cat sleeps", "", "rain", "a dog, and another dog?", "the rain in may 1999 " * 10, "", "dog"]


@pytest.fixture
def embedder(tmp_path):
    return Embedder(tiny_model(tmp_path / "tokenizer"))


@pytest.fixture
def text(tmp_path):
    (tmp_path / "sentences.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return str(tmp_path / "sentences.txt")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save(tiny_model(folder / "tokenizer"), folder / "export")
    return str(folder / "export")


def test_every_line_has_its_row_also_an_empty_one(embedder, text, tmp_path):
    counted = encode_file(embedder, [text], tmp_path / "out" / "vectors.npy", progress=False)
    vectors = np.load(tmp_path / "out" / "vectors.npy")
    assert (counted.sentences, counted.truncated, counted.unknown) == (7, 2, 0)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, embedder.encode(SENTENCES), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(vectors[1], vectors[5])


def test_the_size_of_parts_changes_nothing(embedder, text, tmp_path):
    for chunk in (2, 100):
        encode_file(embedder, [text], tmp_path / f"{chunk}.npy", progress=False, part_rows=chunk)
    np.testing.assert_allclose(np.load(tmp_path / "2.npy"), np.load(tmp_path / "100.npy"), rtol=0, atol=1e-6)


def test_a_table_is_read_by_column_and_a_prompt_is_put_before(embedder, tmp_path):
    with gzip.open(tmp_path / "t.tsv.gz", "wt") as file:
        file.write("id\tsentence\n1\train\n2\tdog\n")
    table, out = str(tmp_path / "t.tsv.gz"), tmp_path / "v.npy"
    encode_file(embedder, [table], out, column="sentence", prompt_name="query", progress=False)
    np.testing.assert_allclose(np.load(out), embedder.encode(["the cat rain", "the cat dog"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("content", [b"fine\nb\xe4d\n", b""])
def test_bad_text_leaves_nothing(embedder, tmp_path, content):
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(InputError, match="bad.txt"):
        encode_file(embedder, [str(tmp_path / "bad.txt")], tmp_path / "v.npy", progress=False)
    assert [path.name for path in tmp_path.glob("*.*")] == ["bad.txt"]


@pytest.mark.parametrize(("kind", "when"), [("npy", "rows"), ("parquet", "table")])
def test_a_full_disk_is_one_clear_line_and_the_same_call_goes_on(embedder, text, tmp_path, monkeypatch, kind, when):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    output = tmp_path / f"v.{kind}"
    with monkeypatch.context() as patch:
        patch.setattr(*{"rows": (part_folder.os, "fsync"), "table": (parquet.ParquetWriter, "write_table")}[when], full)
        with pytest.raises(InputError, match=f"v.{kind}.* could not be written: no space left on the disk; free some"):
            encode_file(embedder, [text], output, progress=False)
    encode_file(embedder, [text], output, progress=False)
    assert vectors.shape(output) == (7, 16)
    assert sorted(path.name for path in tmp_path.glob("v.*")) == [output.name, f"{output.name}.json"]


def test_the_program_says_what_it_wrote_and_what_was_truncated(text, model, tmp_path, capsys):
    encode.main([f"--model={model}", f"--input={text}", f"--output={tmp_path / 'v.npy'}", "--quiet"])
    printed = capsys.readouterr().out
    assert "7 vectors of 16 numbers" in printed
    assert (
        "2 of 7 texts (28.6%) are longer than 16 tokens; their ends are cut, 97 of 144 tokens (67.4%); "
        "--chunk_tokens=16 keeps them as passages\n"
    ) in printed
    assert "0.00% of " in printed and "tokens are unknown to the tokenizer" in printed


def unit_cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.einsum("ne,ne->n", first, second) / lengths


def test_bfloat16_products_give_float32_vectors_close_by(text, model, tmp_path, capsys):
    made = {}
    for precision in ("float32", "bfloat16"):
        output = tmp_path / f"{precision}.npy"
        encode.main(
            [f"--model={model}", f"--input={text}", f"--output={output}", f"--precision={precision}", "--quiet"]
        )
        assert f"multiplied in {precision}" in capsys.readouterr().out
        made[precision] = np.load(output)
        np.testing.assert_array_equal(made[precision], load(model, precision=precision).encode(SENTENCES))
    assert made["bfloat16"].dtype == np.float32 and np.any(made["bfloat16"] != made["float32"])
    assert unit_cosines(*made.values()).min() > 0.999
    with pytest.raises(InputError, match="'float8' is unknown; allowed: auto, float32, bfloat16"):
        load(model, precision="float8")


def test_a_table_holds_the_same_vectors_beside_their_sentences(embedder, text, tmp_path):
    encode_file(embedder, [text], tmp_path / "v.npy", progress=False)
    for name, columns in (("v.parquet", ["embedding"]), ("t.parquet", ["text", "embedding"])):
        encode_file(embedder, [text], tmp_path / name, keep_text="text" in columns, progress=False)
        table = parquet.read_table(tmp_path / name)
        assert table.column_names == columns and str(table.schema.field("embedding").type).endswith("float>[16]")
        (block,) = vectors.blocks(tmp_path / name)
        np.testing.assert_array_equal(block, np.load(tmp_path / "v.npy"))
    assert table["text"].to_pylist() == SENTENCES
    names = sorted(path.name for path in tmp_path.glob("*.*") if path.suffix != ".json")
    assert names == ["sentences.txt", "t.parquet", "v.npy", "v.parquet"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--output=v.txt"], "--output=v.txt must end in .npy, .parquet or /"),
        (["--output=v.npy", "--keep_text"], "--keep_text needs a table: --output=v.parquet."),
        (["--output=v.npy", "--batch_size=-3"], "argument --batch_size: -3 must be at least 1"),
        ([f"--output={'v' * 300}.npy"], "File name too long"),
        (["--output=v.npy", "--promt=query"], "unknown option --promt. Did you mean --prompt?"),
        (["--output=v.npy", "--prompt=passage"], "prompt 'passage' is unknown"),
        (["--output=v.npy", "--column=words", "--input=absent.tsv"], "absent.tsv does not exist"),
        ([], "the following arguments are required: --output"),
    ],
)
def test_wrong_options_are_one_clear_line(text, model, capsys, wrong, said):
    assert said in refused(encode, [f"--model={model}", f"--input={text}", *wrong, "--quiet"], capsys)


def test_an_output_that_is_an_input_a_pipe_or_a_folder_is_refused_and_a_link_stays(embedder, text, tmp_path):
    table, link = tmp_path / "io.parquet", tmp_path / "link.parquet"
    encode_file(embedder, [text], table, keep_text=True, progress=False)
    before = table.read_bytes()
    link.symlink_to(table)
    for output in (table, link, tmp_path / "x" / ".." / "io.parquet"):
        with pytest.raises(InputError, match="is also an input file; choose another"):
            encode_file(embedder, [text, str(tmp_path / "io.par*")], output, progress=False)
    assert table.read_bytes() == before
    table.unlink()
    encode_file(embedder, [text], link, progress=False)
    assert link.is_symlink() and table.read_bytes() != before
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "folder.npy").mkdir()
    for name, kind in (("pipe", "device or pipe"), ("folder", "folder")):
        with pytest.raises(InputError, match=f"{name}.npy is a {kind}; name a file"):
            encode_file(embedder, [text], tmp_path / f"{name}.npy", progress=False)


def test_a_tilde_is_the_home_folder(text, model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    encode.main([f"--model={model}", f"--input={text}", "--output=~/v.npy", "--quiet"])
    assert vectors.shape(tmp_path / "v.npy") == (7, 16)


def test_a_vector_that_is_not_finite_is_named_by_its_row(embedder, text, tmp_path, monkeypatch):
    monkeypatch.setattr(embedder, "encode_ids", lambda ids, **_: np.full((len(ids), 16), np.nan))
    with pytest.raises(InputError, match=r"row 0 is not finite \(nan in column 0\); check its weights"):
        encode_file(embedder, [text], tmp_path / "v.npy", progress=False)


# Folders of parts


def readers():
    """Programs that read a folder of Parquet files as one table; each gives its columns text and embedding."""

    def with_pyarrow(folder):
        table = parquet.read_table(folder)
        return table["text"].to_pylist(), table["embedding"].to_pylist()

    def with_pyarrow_dataset(folder):
        table = pytest.importorskip("pyarrow.dataset").dataset(folder).to_table()
        return table["text"].to_pylist(), table["embedding"].to_pylist()

    def with_polars(folder):
        table = pytest.importorskip("polars").read_parquet(f"{folder}/*.parquet")
        return table["text"].to_list(), table["embedding"].to_list()

    def with_duckdb(folder):
        duckdb = pytest.importorskip("duckdb", reason="no dependency of this package")
        rows = duckdb.sql(f"select text, embedding from '{folder}/*.parquet'").fetchall()
        return [text for text, _ in rows], [list(vector) for _, vector in rows]

    def with_datasets(folder):
        datasets = pytest.importorskip("datasets")
        for named in (["parquet"], [str(folder)]):
            options = {"data_dir": str(folder)} if named == ["parquet"] else {}
            read = datasets.load_dataset(*named, split="train", cache_dir=str(folder.parent / "cache"), **options)
            assert read.num_rows == len(SENTENCES)
        return read["text"][:], read["embedding"][:]

    return [with_pyarrow, with_pyarrow_dataset, with_polars, with_duckdb, with_datasets]


@pytest.mark.parametrize("read", readers(), ids=lambda read: read.__name__)
def test_a_folder_of_parts_is_one_table_for_other_programs(embedder, text, tmp_path, read):
    encode_file(embedder, [text], f"{tmp_path / 'parts'}/", keep_text=True, progress=False, part_rows=3)
    texts, found = read(tmp_path / "parts")
    assert texts == SENTENCES
    np.testing.assert_allclose(found, embedder.encode(SENTENCES), rtol=0, atol=1e-6)


def test_a_folder_of_parts_is_resumed_part_by_part_and_complete_ones_are_left_alone(
    embedder, text, tmp_path, monkeypatch
):
    sizes, output = stopped_after(embedder, monkeypatch, 2), f"{tmp_path / 'parts'}/"
    with pytest.raises(KeyboardInterrupt, match="4 of 7 sentences are done"):
        encode_file(embedder, [text], output, progress=False, part_rows=2)
    with pytest.raises(InputError, match="parts is not a complete folder of .parquet parts; let encode finish it"):
        vectors.shape(tmp_path / "parts")
    first = encode_file(embedder, [text], tmp_path / "parts", progress=False, part_rows=2)  # named without a slash
    assert encode_file(embedder, [text], output, progress=False, part_rows=2) == first
    assert sizes == [2, 2, 2, 2, 1] and vectors.shape(tmp_path / "parts") == (7, 16)
    found = np.concatenate(list(vectors.blocks(tmp_path / "parts")))
    np.testing.assert_allclose(found, embedder.encode(SENTENCES), rtol=0, atol=1e-6)


def test_a_folder_that_holds_the_input_or_something_else_is_refused(embedder, text, tmp_path):
    encode_file(embedder, [text], f"{tmp_path / 'parts'}/", keep_text=True, progress=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "part-0.parquet").write_text("mine")
    for specs, output, said in (
        ([f"{tmp_path}/parts/*.parquet"], "parts/", "parts is the folder of an input file; choose another output"),
        ([text], "other/", "other holds files that are not parts of this program; name another folder"),
        ([text], "other", f"other is a folder; name a file, or --output={tmp_path}/other/ for a folder of parts"),
    ):
        with pytest.raises(InputError, match=said):
            encode_file(embedder, specs, f"{tmp_path}/{output}", progress=False)
    assert (tmp_path / "other" / "part-0.parquet").read_text() == "mine" and vectors.shape(tmp_path / "parts")[0] == 7


def test_the_python_call_writes_and_reads_a_folder(model, text, tmp_path):
    found = encode.encode_text(model, text, output=f"{tmp_path}/parts/")
    np.testing.assert_array_equal(found, encode.encode_text(model, text))
    assert [*(tmp_path / "parts").glob("*.parquet")]


# Killed and resumed

ROWS = 2 * to_file.PART_ROWS + 1000


def stopped_after(embedder, monkeypatch, chunks: int):
    """Ctrl-C comes while the chunk behind these is computed; gives the sizes of all chunks."""
    encode_ids, sizes = embedder.encode_ids, []

    def counted(ids, **options):
        sizes.append(len(ids))
        if len(sizes) == chunks + 1:
            signal.raise_signal(signal.SIGINT)
        return encode_ids(ids, **options)

    monkeypatch.setattr(embedder, "encode_ids", counted)
    return sizes


def test_control_c_says_how_to_go_on_and_only_the_rest_is_computed(embedder, text, tmp_path, monkeypatch, capsys):
    sizes, output = stopped_after(embedder, monkeypatch, 2), tmp_path / "v.npy"
    with pytest.raises(SystemExit) as ended:
        cli.run(lambda _: encode_file(embedder, [text], output, progress=False, part_rows=2), [])
    line = "interrupted: 4 of 7 sentences are done; give the same command again to continue\n"
    assert (ended.value.code, capsys.readouterr().err) == (cli.INTERRUPTED, line)
    assert not output.exists()
    assert encode_file(embedder, [text], output, progress=False, part_rows=2)[:2] == (7, 2)
    assert sizes == [2, 2, 2, 2, 1]
    encode_file(embedder, [text], tmp_path / "whole.npy", progress=False, part_rows=2)
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()


@pytest.mark.parametrize("kind", ["npy", "parquet"])
@pytest.mark.parametrize("change", ["shrinks", "grows", "is replaced"])
def test_a_text_that_changes_meanwhile_is_refused_and_leaves_nothing_wrong(
    embedder, text, tmp_path, monkeypatch, change, kind
):
    rows = Path(text).read_text().splitlines()
    changed = {"shrinks": rows[:3], "grows": [*rows, "more"], "is replaced": ["dogs " + rows[0], *rows[1:]]}[change]
    encode_ids, output = embedder.encode_ids, tmp_path / f"v.{kind}"

    def encode_and_change(ids, **options):
        block = encode_ids(ids, **options)
        if not changes:
            changes.append(True)
            Path(text).write_text("\n".join(changed) + "\n")
        return block

    changes = []
    monkeypatch.setattr(embedder, "encode_ids", encode_and_change)
    keep = {"keep_text": True} if kind == "parquet" else {}
    with pytest.raises(InputError, match="sentences.txt changed while it was read"):
        encode_file(embedder, [text], output, progress=False, part_rows=2, **keep)
    assert not output.exists()
    encode_file(embedder, [text], output, progress=False, part_rows=2, **keep)
    assert vectors.shape(output) == (len(changed), 16)


def test_a_text_that_changes_without_a_trace_is_refused(embedder, text, tmp_path, monkeypatch):
    encode_ids = embedder.encode_ids

    def encode_and_change(ids, **options):
        before = os.stat(text)
        Path(text).write_text(Path(text).read_text().replace("rain", "dogs"))
        os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns))
        return encode_ids(ids, **options)

    monkeypatch.setattr(embedder, "encode_ids", encode_and_change)
    with pytest.raises(InputError, match="sentences.txt changed while it was read"):
        encode_file(embedder, [text], tmp_path / "v.npy", progress=False, part_rows=2)
    assert sorted(path.suffix for path in tmp_path.glob("v.npy*")) == []


def test_a_folder_of_the_user_under_the_name_for_unfinished_parts_is_left_alone(embedder, text, tmp_path):
    (tmp_path / ".v.npy.parts").mkdir()
    (tmp_path / ".v.npy.parts" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=".v.npy.parts holds files that are not parts of this program"):
        encode_file(embedder, [text], tmp_path / "v.npy", progress=False)
    assert (tmp_path / ".v.npy.parts" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("change", ["prompt", "input", "model", "part_rows", "damage"])
def test_what_was_made_from_something_else_is_begun_anew(embedder, text, tmp_path, monkeypatch, caplog, change):
    output = tmp_path / "v.npy"
    stopped_after(embedder, monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        encode_file(embedder, [text], output, progress=False, part_rows=2)
    options = {"part_rows": 3 if change == "part_rows" else 2, "prompt_name": "query" if change == "prompt" else None}
    if change == "input":
        Path(text).write_text(Path(text).read_text().replace("rain", "dogs"))
    if change == "model":
        embedder = Embedder(tiny_model(tmp_path / "other", seed=1))
    if change == "damage":
        (tmp_path / ".v.npy.parts" / "part-00000-of-00004.parquet").write_bytes(b"")
    encode_file(embedder, [text], output, progress=False, **options)
    assert ".v.npy.parts" in caplog.text
    assert ("is damaged; writing it again" if change == "damage" else f"({change} was ") in caplog.text
    monkeypatch.undo()
    expected = embedder.encode(Path(text).read_text().splitlines(), prompt_name=options["prompt_name"])
    np.testing.assert_allclose(np.load(output), expected, rtol=0, atol=1e-6)
