"""A text becomes a file of vectors, row for row; killed and resumed, and in bounded memory."""

import gzip
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from pyarrow import parquet

from jaxdistill import encode
from jaxdistill.core import InputError, cli, runtime
from jaxdistill.data import targets
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.inference import Embedder, load

from program import ROOT, environment, run, write_text
from tiny_models import tiny_model

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


def test_every_line_even_an_empty_one_has_its_row(model, text, tmp_path, caplog, blocks_of_two):
    encode.main([f"--model={model}", f"--text={text}", f"--output={tmp_path}/out/v.npy", "--no_show_progress_bar"])
    assert "7 vectors of 16 numbers, multiplied in " in caplog.text
    assert "2 of 7 texts (28.6%) are longer than 16 tokens; their ends are cut\n" in caplog.text
    vectors = np.load(tmp_path / "out" / "v.npy")
    assert vectors.dtype == np.float32 and sorted(os.listdir(tmp_path / "out")) == ["v.npy", "v.npy.json"]
    np.testing.assert_allclose(vectors, load(model).encode(SENTENCES), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(vectors[1], vectors[5])


def test_options_choose_column_prompt_and_dimensions(model, text, tmp_path):
    with gzip.open(tmp_path / "t.tsv.gz", "wt") as file:
        file.write("id\tsentence\n1\train\n2\tdog\n")
    array = encode.encode(model, tmp_path / "t.tsv.gz", column="sentence", prompt_name="query", dims=5)
    options = dict(truncate_dim=5, normalize_embeddings=True)
    np.testing.assert_allclose(array, load(model).encode(["the cat rain", "the cat dog"], **options), rtol=0, atol=1e-6)


def test_a_table_holds_the_same_vectors_beside_their_sentences(model, text, tmp_path, blocks_of_two):
    output = tmp_path / "t.parquet"
    assert encode.encode(model, text, output=output, keep_text=True) == output
    table = parquet.read_table(output)
    assert table["text"].to_pylist() == SENTENCES
    assert str(table.schema.field("embedding").type).endswith("float>[16]")
    np.testing.assert_array_equal(table["embedding"].to_pylist(), encode.encode(model, text))


def test_inputs_foreign_files_and_vectors_of_other_inputs_are_not_replaced(model, text, tmp_path):
    output = tmp_path / "v.parquet"
    for name in ("v.parquet", "v.parquet.json"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(InputError, match="v.parquet exists without a valid v.*, or the reverse"):
            encode.encode(model, text, output=output)
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match="no text is given; set text to at least one file"):
        encode.encode(model, " , ", output=output)
    encode.encode(model, text, output=output, keep_text=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("v.*")}
    encode.encode(model, text, output=output, keep_text=True)  # the same again
    with pytest.raises(InputError, match="was made from other inputs"):  # its own input
        encode.encode(model, str(tmp_path / "v.par*"), output=output)
    for other in ({"dims": 8}, {"prompt_name": "query"}, {"text": ["rain"]}):
        with pytest.raises(InputError, match="was made from other inputs .*move it, or choose another file"):
            encode.encode(model, output=output, **{"text": text} | other)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("v.*")} == before
    os.truncate(output, 100)
    with pytest.raises(InputError, match=r"v.parquet has not the [\d,]+ bytes that were written; remove it"):
        encode.encode(model, text, output=output, keep_text=True)


# Killed and resumed


def stopped_after(monkeypatch, blocks: int) -> list[int]:
    """Sends Ctrl-C while the block after these is computed; returns the sizes of all blocks."""
    encode_ids, sizes = Embedder.encode_ids, []

    def counted(self, ids, **options):
        sizes.append(len(ids))
        if len(sizes) == blocks + 1:
            signal.raise_signal(signal.SIGINT)
        return encode_ids(self, ids, **options)

    monkeypatch.setattr(Embedder, "encode_ids", counted)
    return sizes


def test_control_c_says_how_to_continue_and_only_the_rest_is_computed(
    model, text, tmp_path, monkeypatch, capsys, caplog, blocks_of_two
):
    sizes, output = stopped_after(monkeypatch, 2), tmp_path / "v.parquet"
    arguments = [f"--model={model}", f"--text={text}", "--no_show_progress_bar", "--keep_text"]
    with pytest.raises(SystemExit) as stopped:
        cli.run(encode.main, [*arguments, f"--output={output}"])
    line = "interrupted: 4 of 7 rows are done; give the same command again to continue\n"
    assert (stopped.value.code, capsys.readouterr().err) == (runtime.INTERRUPTED, line)
    assert not output.exists()
    encode.main([*arguments, f"--output={output}"])
    assert sizes == [2, 2, 2, 2, 1] and "2 of 7 texts" in caplog.text
    encode.main([*arguments, f"--output={tmp_path}/whole.parquet"])
    assert output.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


MEASURE = """
import resource, sys
from jaxdistill import encode
import numpy as np
from jaxdistill.models.inference import Embedder

Embedder.width = 512
Embedder.encode_ids = lambda self, ids, **_: np.ones((len(ids), 512), np.float32)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
model, folder = sys.argv[1:]
for name in ("few", "text"):  # imports and buffers of blocks count for neither
    before = peak()
    for kind in ("npy", "parquet"):
        arguments = [f"--model={model}", f"--text={folder}/{name}.txt", "--no_show_progress_bar"]
        encode.main([*arguments, f"--output={folder}/{name}.{kind}"])
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_rows(model, tmp_path):
    (tmp_path / "text.txt").write_text("rain\n" * 80_000)
    (tmp_path / "few.txt").write_text("rain\n" * 20_000)  # two blocks and a part
    command = [sys.executable, "-c", MEASURE, model, str(tmp_path)]
    completed = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=200)
    assert completed.returncode == 0, completed.stderr
    assert (tmp_path / "text.npy").stat().st_size >> 20 == 156
    assert int(completed.stdout.splitlines()[-1]) < 100, "MiB more than before, for two files of 156 MiB"


def test_compiled_programs_are_kept_in_the_cache_folder(model, tmp_path, monkeypatch):
    text = write_text(tmp_path, rows=7)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    run("encode", [f"--model={model}", f"--text={text}", f"--output={tmp_path / 'v.npy'}"])
    assert list((tmp_path / "cache" / "compiled").glob("*-cache"))
