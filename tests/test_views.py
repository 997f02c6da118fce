"""Views: what each keeps, and that deleting a word from tokens is deleting it from the text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdistill.core import InputError
from jaxdistill.data import views

from tiny_text import SENTENCES, bare, sentence_piece, store_of, word_piece

AUGMENTATIONS = ["delete_words", "delete_words:0.9", "delete_one_word", "crop", "crop:0.5", "identity"]


def one(name, words, uniform):
    view = views.parse(name, ["text"])
    words = np.array(words)
    return views.kept(view, words, np.array([len(words)]), np.array([uniform], float))


def test_a_column_is_a_view_and_wins_over_an_augmentation():
    assert views.parse("translation", ["text", "translation"]) == views.View(column="translation")
    assert views.parse("crop", ["text", "crop"]) == views.View(column="crop")
    assert views.parse("identity", ["text"]) == views.View(column="text")
    assert views.parse("delete_words:0.2", ["text"]) == views.View(column="text", augmentation="delete_words", rate=0.2)


@pytest.mark.parametrize(
    "name", ["delete_wrods", "delete_words:x", "crop:1", "crop:0", "delete_one_word:0.1", "", "crop:nan"]
)
def test_a_view_that_is_none_is_refused(name):
    with pytest.raises(InputError, match="view"):
        views.parse(name, ["text"])


def test_a_mistyped_view_is_answered_with_a_suggestion():
    with pytest.raises(InputError, match="Did you mean delete_words?"):
        views.parse("delete_word", ["text"])


def test_delete_words_drops_words_whose_draw_is_below_the_rate():
    keep = one("delete_words", [-1, 0, 0, 1, 2, -1], [0.5, 0.05, 0.1])
    assert keep.tolist() == [True, True, True, False, True, True]


def test_delete_words_keeps_one_word_when_all_would_go():
    assert one("delete_words", [-1, 0, 1, 2, -1], [0.01, 0.03, 0.02, 0.9]).tolist() == [True, False, True, False, True]


def test_delete_one_word_drops_exactly_the_drawn_one():
    assert one("delete_one_word", [-1, 0, 1, 1, 2, -1], [0.4, 0, 0]).tolist() == [True, True, False, False, True, True]


def test_crop_keeps_a_contiguous_piece():
    words = [-1, *range(20), -1]
    assert one("crop", words, [0.0] * 20)[1:-1].tolist() == [True] * 18 + [False] * 2
    assert one("crop", words, [0.999] * 20)[1:-1].tolist() == [False] * 2 + [True] * 18


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), name=st.sampled_from(AUGMENTATIONS))
def test_special_tokens_stay_and_no_sentence_becomes_empty(data, name):
    sizes = data.draw(st.lists(st.lists(st.integers(1, 4), min_size=0, max_size=9), min_size=1, max_size=5))
    sentences = [[-1, *(number for number, size in enumerate(words) for _ in range(size)), -1] for words in sizes]
    words, lengths = np.array(sum(sentences, [])), np.array([len(sentence) for sentence in sentences])
    uniform = np.random.default_rng(data.draw(st.integers(0, 99))).random((len(sizes), 9))
    keep = views.kept(views.parse(name, ["text"]), words, lengths, uniform)
    assert keep[words < 0].all()
    ends = np.cumsum(lengths)[:-1]
    for part, kept in zip(np.split(words, ends), np.split(keep, ends), strict=True):
        left = set(part[kept]) - {-1}
        assert left or not set(part) - {-1}
        assert all(kept[part == number].all() for number in left), "a word goes whole or not at all"


def test_the_rate_is_the_share_of_words_that_go():
    words, count = np.tile(np.arange(40), 500), 500
    uniform = np.random.default_rng(0).random((count, 40))
    keep = views.kept(views.parse("delete_words", ["text"]), words, np.full(count, 40), uniform)
    assert abs((~keep).mean() - 0.1) < 0.01


@pytest.mark.parametrize("tokenizer", [word_piece, sentence_piece])
@pytest.mark.parametrize("name", ["delete_words:0.4", "delete_one_word", "crop:0.4"])
def test_deleting_from_tokens_is_deleting_from_the_text(tmp_path, tokenizer, name):
    store, view = store_of(tmp_path, SENTENCES, tokenizer=tokenizer(), max_length=200), views.parse(name, ["text"])
    uniform = np.random.default_rng(3).random((1, 200))
    for row, sentence in enumerate(SENTENCES):
        found = store.gather("text", np.array([row]))
        keep = views.kept(view, found.words, found.lengths, uniform)
        left = [word for number, word in enumerate(sentence.split()) if number in found.words[keep]]
        assert found.ids[keep].tolist() == bare(tokenizer()).encode(" ".join(left)).ids
