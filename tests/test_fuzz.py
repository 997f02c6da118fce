"""Readers of a user's files answer damaged ones with rows or with one line."""

import io
import random

import numpy as np
import pytest
import safetensors.numpy

from jaxdistill.checkpoints.weights import read_safetensors
from jaxdistill.core import InputError
from jaxdistill.data import vectors
from jaxdistill.data.text import read

MUTATIONS = 150


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(6, dtype="f4").reshape(3, 2))
    return file.getvalue()


def read_text(path):
    return list(read([str(path)]))


CASES = {
    ".txt": (read_text, b"\xef\xbb\xbfA cat.\nD\xc3\xb6rfer\r\nlast\rx"),
    ".tsv": (read_text, b"text\tb\nA cat.\tx\n\ny\tz\r\n"),
    ".csv": (read_text, b'text,b\n"A ""cat"", it\nis",x\ny,z\n'),
    ".jsonl": (read_text, b'{"text": "A cat.", "n": 1.5e3}\n\n{"text": "\\u00e4", "b": "x"}\n'),
    ".npy": (lambda path: list(vectors.blocks(path)), npy()),
    ".safetensors": (read_safetensors, safetensors.numpy.save({"a": np.arange(6, dtype=np.float32)})),
}


@pytest.mark.parametrize("suffix", CASES)
def test_mutated_files_are_answered(suffix, tmp_path):
    (reader, seed), draw = CASES[suffix], random.Random(0)
    for number in range(MUTATIONS):
        content = bytearray(seed)
        for _ in range(number and draw.choice((1, 2, 4))):  # the first is undamaged
            place = draw.randrange(len(content))
            piece = slice(place, place + draw.choice((1, 2, 8)))
            content[piece] = draw.choice((b"", draw.randbytes(2), content[: draw.randrange(16)]))
        (tmp_path / f"a{suffix}").write_bytes(content)
        try:
            reader(tmp_path / f"a{suffix}")
        except InputError as error:
            assert "\n" not in str(error) and number
