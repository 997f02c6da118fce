"""Readers answer damaged files with a result or one `InputError`: inputs that fuzzing found, and mutations of the seeds."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from fuzz.targets import MODEL_FILES, ODD_VALUES, TARGETS, check, places, replaced

FOUND = sorted((Path(__file__).parent / "fuzz" / "found").iterdir())
MUTATIONS = 150


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_an_input_that_fuzzing_found_is_answered(path, tmp_path):
    check(TARGETS[path.name.split("-")[0]], path.read_bytes(), tmp_path)


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_files_are_answered(name, tmp_path):
    draw = random.Random(0)
    seeds = TARGETS[name].seeds()
    for seed in seeds:
        check(TARGETS[name], seed, tmp_path)
    for _ in range(MUTATIONS):
        check(TARGETS[name], mutated(draw.choice(seeds), TARGETS[name].words, draw), tmp_path)


@pytest.mark.parametrize("name", MODEL_FILES)
def test_odd_values_in_a_models_json_are_answered(name, tmp_path):
    file = list(MODEL_FILES).index(name)
    for path in places(MODEL_FILES[name]):
        for odd in ODD_VALUES:
            content = json.dumps(replaced(MODEL_FILES[name], path, odd)).encode()
            check(TARGETS["json"], bytes([file]) + content, tmp_path)


def mutated(data: bytes, words: Sequence[bytes], draw: random.Random) -> bytes:
    """Some bytes changed, cut out, or a word or a piece of the file put in."""
    content = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        place = draw.randrange(len(content) + 1)
        piece = slice(place, place + draw.choice((1, 1, 2, 8)))
        kind = draw.randrange(4)
        if kind == 0:
            content[piece] = draw.randbytes(len(content[piece]))
        elif kind == 1:
            del content[piece]
        elif kind == 2 and words:
            content[place:place] = draw.choice(words)
        else:
            content[place:place] = content[: draw.randrange(1, 16)]
    return bytes(content)
