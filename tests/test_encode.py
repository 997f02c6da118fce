"""A text becomes a file of vectors, row for row; killed and resumed, and in bounded memory."""

import errno
import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from jaxdistill import cli, encode
from jaxdistill.checkpoints.folder import save
from jaxdistill.core import InputError
from jaxdistill.data import targets
from jaxdistill.inference import Embedder, load

from program import ROOT, environment, refused, run, start, write_text
from tiny_models import tiny_model
from tiny_text import made_up

SENTENCES = ["the cat sleeps", "", "rain", "a dog, and another dog?", "the rain in may 1999 " * 10, "", "dog"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save(tiny_model(folder / "tokenizer"), folder / "export")
    return str(folder / "export")


@pytest.fixture
def text(tmp_path):
    (tmp_path / "sentences.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return tmp_path / "sentences.txt"


@pytest.fixture
def blocks_of_two(monkeypatch):
    for module in (encode, targets):
        monkeypatch.setattr(module, "BLOCK_ROWS", 2)


def vectors_of(path: Path) -> np.ndarray:
    return np.load(path) if path.suffix == ".npy" else np.stack(parquet.read_table(path)["embedding"].to_pylist())


def test_every_line_has_its_row_also_an_empty_one(model, text, tmp_path, capsys, blocks_of_two):
    encode.main([f"--model={model}", f"--text={text}", f"--output={tmp_path}/out/v.npy", "--no_show_progress_bar"])
    said = capsys.readouterr().out
    assert "7 vectors of 16 numbers, multiplied in " in said
    assert "2 of 7 texts (28.6%) are longer than 16 tokens; their ends are cut\n" in said
    vectors = np.load(tmp_path / "out" / "v.npy")
    assert vectors.dtype == np.float32 and sorted(os.listdir(tmp_path / "out")) == ["v.npy", "v.npy.json"]
    np.testing.assert_allclose(vectors, load(model).encode(SENTENCES), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(vectors[1], vectors[5])


def test_a_table_is_read_by_column_and_a_prompt_is_put_before(model, tmp_path):
    with gzip.open(tmp_path / "t.tsv.gz", "wt") as file:
        file.write("id\tsentence\n1\train\n2\tdog\n")
    found = encode.encode(model, tmp_path / "t.tsv.gz", column="sentence", prompt_name="query")
    np.testing.assert_allclose(found, load(model).encode(["the cat rain", "the cat dog"]), rtol=0, atol=1e-6)


def test_the_first_numbers_are_normalised(model, text, tmp_path):
    found = encode.encode(model, text, dims=5)
    expected = load(model).encode(SENTENCES, truncate_dim=5, normalize_embeddings=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("keep_text", [False, True])
def test_a_table_holds_the_same_vectors_beside_their_sentences(model, text, tmp_path, blocks_of_two, keep_text):
    output = tmp_path / "t.parquet"
    assert encode.encode(model, text, output=output, keep_text=keep_text) == output
    table = parquet.read_table(output)
    assert table.column_names == ["text"] * keep_text + ["embedding"]
    assert str(table.schema.field("embedding").type).endswith("float>[16]")
    np.testing.assert_array_equal(vectors_of(output), encode.encode(model, text))
    assert not keep_text or table["text"].to_pylist() == SENTENCES


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--output=v.txt"], "v.txt must end in .npy or .parquet."),
        (["--output=v.npy", "--keep_text"], "keep_text needs a table: output="),
        (["--output=v.npy", "--dims=17"], "dims=17 must be from 1 to 16, the width of the model's vectors"),
        (["--output=v.npy", "--batch_size=-3"], "batch_size=-3 must be at least 1"),
        ([f"--output={'v' * 300}.npy"], "File name too long"),
        (["--output=v.npy", "--prompt=query"], "unknown option --prompt. Did you mean --prompt_name?"),
        (["--output=v.npy", "--prompt_name=passage"], "prompt 'passage' is unknown"),
        (["--output=v.npy", "--column=words", "--text=absent.tsv"], "absent.tsv does not exist"),
        ([], "output is missing"),
    ],
)
def test_wrong_options_are_one_clear_line(model, text, tmp_path, monkeypatch, capsys, wrong, said):
    monkeypatch.chdir(tmp_path)
    assert said in refused(encode, [f"--model={model}", f"--text={text}", *wrong, "--no_show_progress_bar"], capsys)


def test_an_output_that_is_an_input_is_refused_and_a_link_stays(model, text, tmp_path):
    table, link = tmp_path / "io.parquet", tmp_path / "link.parquet"
    encode.encode(model, text, output=table, keep_text=True)
    before = table.read_bytes()
    link.symlink_to(table)
    for output in (table, link, tmp_path / "x" / ".." / "io.parquet"):
        with pytest.raises(InputError, match="is also an input file; choose another"):
            encode.encode(model, str(tmp_path / "io.par*"), output=output)
    assert table.read_bytes() == before
    table.unlink()
    encode.encode(model, text, output=link)
    assert link.is_symlink() and table.read_bytes() != before


@pytest.mark.parametrize("output", ["v.npy", "v.parquet"])
def test_no_file_of_others_and_no_vectors_of_other_inputs_are_replaced(model, text, tmp_path, output):
    (tmp_path / output).write_text("mine")
    with pytest.raises(InputError, match="exists without a valid v."):
        encode.encode(model, text, output=tmp_path / output)
    assert (tmp_path / output).read_text() == "mine"
    (tmp_path / output).unlink()
    encode.encode(model, text, output=tmp_path / output)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("v.*")}
    encode.encode(model, text, output=tmp_path / output)  # the same again
    for other in ({"dims": 8}, {"prompt_name": "query"}, {"text": ["rain"]}):
        with pytest.raises(InputError, match="was made from other inputs .*move it, or choose another file"):
            encode.encode(model, output=tmp_path / output, **{"text": text} | other)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("v.*")} == before


# Killed and resumed


def stopped_after(monkeypatch, blocks: int) -> list[int]:
    """Ctrl-C comes while the block behind these is computed; gives the sizes of all blocks."""
    encode_ids, sizes = Embedder.encode_ids, []

    def counted(self, ids, **options):
        sizes.append(len(ids))
        if len(sizes) == blocks + 1:
            signal.raise_signal(signal.SIGINT)
        return encode_ids(self, ids, **options)

    monkeypatch.setattr(Embedder, "encode_ids", counted)
    return sizes


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_control_c_says_how_to_go_on_and_only_the_rest_is_computed(
    model, text, tmp_path, monkeypatch, capsys, blocks_of_two, kind
):
    sizes, output = stopped_after(monkeypatch, 2), tmp_path / f"v.{kind}"
    arguments = [f"--model={model}", f"--text={text}", "--no_show_progress_bar", *["--keep_text"] * (kind == "parquet")]
    with pytest.raises(SystemExit) as ended:
        cli.run(encode.main, [*arguments, f"--output={output}"])
    line = "interrupted: 4 of 7 sentences are done; give the same command again to continue\n"
    assert (ended.value.code, capsys.readouterr().err) == (cli.INTERRUPTED, line)
    assert not output.exists()
    encode.main([*arguments, f"--output={output}"])
    assert sizes == [2, 2, 2, 2, 1] and "2 of 7 texts" in capsys.readouterr().out
    encode.main([*arguments, f"--output={tmp_path}/whole.{kind}"])
    assert output.read_bytes() == (tmp_path / f"whole.{kind}").read_bytes()


def test_the_real_program_killed_and_started_again_writes_the_same_table(model, tmp_path):
    rows = 2 * targets.BLOCK_ROWS + 1000
    (tmp_path / "text.txt").write_text("\n".join(made_up(rows, words=2)) + "\n")
    arguments = [f"--model={model}", f"--text={tmp_path / 'text.txt'}", "--keep_text"]
    output, done = tmp_path / "killed.parquet", ".killed.parquet.*.part/done.npy"
    process = start("encode", [*arguments, f"--output={output}"], devices=8)
    while not any(np.load(path).any() for path in tmp_path.glob(done)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not output.exists() and not all(np.load(path).all() for path in tmp_path.glob(done))
    encode.main([*arguments, f"--output={output}", "--no_show_progress_bar"])
    encode.main([*arguments, f"--output={tmp_path / 'whole.parquet'}", "--no_show_progress_bar"])
    assert output.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert vectors_of(output).shape == (rows, 16)


@pytest.mark.parametrize("when", ["a block", "the table"])
def test_a_full_disk_is_one_clear_line_and_the_same_call_goes_on(model, text, tmp_path, monkeypatch, when):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    target = {"a block": (targets.os, "fsync"), "the table": (parquet.ParquetWriter, "write_table")}[when]
    with monkeypatch.context() as patch:
        patch.setattr(*target, full)
        with pytest.raises(InputError, match=r"v.parquet.* could not be written: no space left on the disk; free some"):
            encode.encode(model, text, output=tmp_path / "v.parquet")
    assert len(vectors_of(encode.encode(model, text, output=tmp_path / "v.parquet"))) == 7


@pytest.mark.parametrize("change", ["shrinks", "grows"])
def test_a_text_that_changes_meanwhile_leaves_nothing_wrong(model, text, tmp_path, monkeypatch, blocks_of_two, change):
    rows = text.read_text().splitlines()
    changed = {"shrinks": rows[:3], "grows": [*rows, "more"]}[change]
    encode_ids, output = Embedder.encode_ids, tmp_path / "v.npy"

    def encode_and_change(self, ids, **options):
        text.write_text("\n".join(changed) + "\n")
        return encode_ids(self, ids, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Embedder, "encode_ids", encode_and_change)
        with pytest.raises(InputError, match=r"sentences.txt changed while it was read"):
            encode.encode(model, text, output=output)
    assert not output.exists()
    found = np.load(encode.encode(model, text, output=output))
    np.testing.assert_allclose(found, load(model).encode(changed), rtol=0, atol=1e-6)


@pytest.mark.parametrize("change", ["prompt", "text"])
def test_blocks_of_other_inputs_are_begun_anew(model, text, tmp_path, monkeypatch, blocks_of_two, change):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stopped_after(patch, 2)
        encode.encode(model, text, output=tmp_path / "v.npy")
    prompt = "query" if change == "prompt" else ""
    if change == "text":
        text.write_text(text.read_text().replace("rain", "dogs"))
    found = np.load(encode.encode(model, text, output=tmp_path / "v.npy", prompt_name=prompt))
    expected = load(model).encode(text.read_text().splitlines(), prompt_name=prompt or None)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert not list(tmp_path.glob(".v.npy*"))


MEASURE = """
import resource, sys
import numpy as np
import pyarrow.parquet
from jaxdistill import encode
from jaxdistill.inference import Embedder, load

load(sys.argv[1]).encode(["rain"])
Embedder.width = 512
Embedder.encode_ids = lambda self, ids, **_: np.ones((len(ids), 512), np.float32)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
for kind in ("npy", "parquet"):
    encode.main([f"--model={sys.argv[1]}", f"--text={sys.argv[2]}", f"--output={sys.argv[3]}/v.{kind}", "--no_show_progress_bar"])
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_rows(model, tmp_path):
    (tmp_path / "text.txt").write_text("rain\n" * 80_000)
    command = [sys.executable, "-c", MEASURE, model, str(tmp_path / "text.txt"), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "v.npy").stat().st_size >> 20 == 156
    assert int(done.stdout.splitlines()[-1]) < 100, "MiB more than before, for two files of 156 MiB"


def test_compiled_programs_are_kept_in_the_cache_folder(model, tmp_path, monkeypatch):
    text = write_text(tmp_path, rows=7)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    half_written = tmp_path / "cache" / "compiled" / "jit_x-cache"  # by a killed process; JAX writes none beside it
    half_written.parent.mkdir(parents=True)
    half_written.write_bytes(b"x")
    os.utime(half_written, (0, 0))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    _, err = run("encode", [f"--model={model}", f"--text={text}", f"--output={tmp_path / 'v.npy'}"])
    kept = list((tmp_path / "cache" / "compiled").glob("*-cache"))
    assert kept and half_written not in kept and "Error writing" not in err
