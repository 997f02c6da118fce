"""Views: which words they keep, deletion from tokens as from the text, and masked spans."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_packing import unpacked

from jaxdistill.data import views

from tiny_models import tiny_tokenizer
from tiny_text import SENTENCES, bare, batches_of, sentence_piece, store_of, word_piece

AUGMENTATIONS = ["delete_words", "delete_words:0.9", "delete_one_word", "crop", "crop:0.5"]


def test_a_column_is_a_view_and_wins_over_an_augmentation():
    assert views.parse_view("translation", ["text", "translation"]) == views.View(column="translation")
    assert views.parse_view("crop", ["text", "crop"]) == views.View(column="crop")
    expected = views.View(column="text", augmentation="delete_words", rate=0.2)
    assert views.parse_view("delete_words:0.2", ["text"]) == expected


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 99), st.sampled_from(AUGMENTATIONS))
def test_no_sentence_becomes_empty(counts, seed, name):
    uniform = np.random.default_rng(seed).random((len(counts), 9))
    masks = views.kept_words(views.parse_view(name, ["text"]), np.array(counts), uniform)
    for words, count in zip(masks, counts, strict=True):
        assert words[:count].any() == (count > 0) and not words[count:].any()


@pytest.mark.parametrize("tokenizer", [word_piece, sentence_piece])
@pytest.mark.parametrize("name", ["delete_words:0.4", "delete_one_word", "crop:0.4"])
def test_deleting_from_tokens_is_deleting_from_the_text(tmp_path, tokenizer, name):
    store, view = store_of(tmp_path, SENTENCES, tokenizer=tokenizer(), max_length=200), views.parse_view(name, ["text"])
    uniform = np.random.default_rng(3).random((1, 200))
    for row, sentence in enumerate(SENTENCES):
        words = sentence.split()
        (mask,) = views.kept_words(view, np.array([len(words)]), uniform)
        remaining = [word for word, is_kept in zip(words, mask, strict=False) if is_kept]
        ragged = views.viewed(view, store, np.array([row]), lambda: uniform)
        assert ragged.ids.tolist() == bare(tokenizer()).encode(" ".join(remaining)).ids


LONG = "a dog and two cats watch the rain"


@pytest.mark.parametrize(
    "uniform, expected",
    [
        (0.0, " [MASK]  and two cats watch the rain"),
        (0.5, "a dog and two  [MASK] watch the rain"),  # floor(0.5 * (33 - 5)) = 14
        (0.999, "a dog and two cats watch th [MASK] n"),  # the last character is never masked
    ],
)
def test_mask_span_puts_a_mask_in_place_of_five_characters(uniform, expected):
    assert views.span_masked(LONG, uniform, mask="[MASK]", characters=5) == expected


def test_masked_sentences_are_tokenised_again_with_one_mask_token(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    store = store_of(tmp_path, [f"{LONG} {number}" for number in range(64)], tokenizer=tokenizer)
    batches = batches_of(store, student_views=("text", "mask_span:8"), batch_size=8, groups=2)
    pairs = unpacked(batches.batch_at(0).student)
    mask = tokenizer.token_to_id("[MASK]")
    for plain, masked in zip(pairs[::2], pairs[1::2], strict=True):
        assert masked.count(mask) == 1 and mask not in plain
        index = masked.index(mask)
        assert plain[0] == masked[0] and plain[-1] == masked[-1] and index not in (0, len(masked) - 1)
