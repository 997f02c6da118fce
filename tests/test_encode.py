"""A file of sentences becomes a file of vectors, row for row."""

import errno
import gzip

import numpy as np
import pytest

from jaxdistill import encode
from jaxdistill.core import InputError
from jaxdistill.encode import encode_file
from jaxdistill.encoders.folder import save
from jaxdistill.inference import Embedder

from tiny_models import tiny_model

SENTENCES = ["the cat sleeps", "", "rain", "a dog, and another dog?", "the rain in may 1999 " * 10, "", "dog"]


@pytest.fixture
def embedder(tmp_path):
    return Embedder(tiny_model(tmp_path / "tokenizer"))


@pytest.fixture
def text(tmp_path):
    (tmp_path / "sentences.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return str(tmp_path / "sentences.txt")


def test_every_line_has_its_row_also_an_empty_one(embedder, text, tmp_path):
    counted = encode_file(embedder, [text], tmp_path / "out" / "vectors.npy", progress=False)
    vectors = np.load(tmp_path / "out" / "vectors.npy")
    assert counted == (7, 2)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, embedder.encode(SENTENCES), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(vectors[1], vectors[5])


def test_the_chunk_size_changes_nothing(embedder, text, tmp_path):
    for chunk in (2, 100):
        encode_file(embedder, [text], tmp_path / f"{chunk}.npy", progress=False, chunk=chunk)
    np.testing.assert_allclose(np.load(tmp_path / "2.npy"), np.load(tmp_path / "100.npy"), rtol=0, atol=1e-6)


def test_the_vectors_can_be_mapped_into_memory(embedder, text, tmp_path):
    encode_file(embedder, [text], tmp_path / "v.npy", progress=False)
    assert isinstance(np.load(tmp_path / "v.npy", mmap_mode="r"), np.memmap)


def test_a_table_is_read_by_column_and_a_prompt_is_put_before(embedder, tmp_path):
    with gzip.open(tmp_path / "t.tsv.gz", "wt") as file:
        file.write("id\tsentence\n1\train\n2\tdog\n")
    table, out = str(tmp_path / "t.tsv.gz"), tmp_path / "v.npy"
    encode_file(embedder, [table], out, column="sentence", prompt="query", progress=False)
    np.testing.assert_allclose(np.load(out), embedder.encode(["the cat rain", "the cat dog"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("content", [b"fine\nb\xe4d\n", b""])
def test_bad_text_leaves_an_earlier_output_as_it_was(embedder, tmp_path, content):
    (tmp_path / "bad.txt").write_bytes(content)
    (tmp_path / "v.npy").write_bytes(b"earlier")
    with pytest.raises(InputError, match="bad.txt"):
        encode_file(embedder, [str(tmp_path / "bad.txt")], tmp_path / "v.npy", progress=False)
    assert (tmp_path / "v.npy").read_bytes() == b"earlier"
    assert not list(tmp_path.glob(".*unfinished"))


def test_a_full_disk_is_one_clear_line(embedder, text, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(encode, "_reserve", full)
    with pytest.raises(InputError, match="v.npy could not be written: no space left"):
        encode_file(embedder, [text], tmp_path / "v.npy", progress=False)


def test_the_program_says_what_it_wrote_and_what_was_truncated(text, tmp_path, capsys):
    folder = tmp_path / "model"
    save(tiny_model(tmp_path / "tokenizer"), folder)
    encode.main([f"--model={folder}", f"--input={text}", f"--output={tmp_path / 'v.npy'}", "--quiet"])
    printed = capsys.readouterr().out
    assert "7 vectors of 16 numbers" in printed and "2 sentences (28.6%) were longer than 16 tokens" in printed
    with pytest.raises(InputError, match="must end in .npy"):
        encode.main([f"--model={folder}", f"--input={text}", "--output=vectors.txt"])
