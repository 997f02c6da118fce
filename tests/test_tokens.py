"""The token store: same tokens as the tokenizer's own, words of the raw text, reuse by digest, counts."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from jaxdistill.core import InputError
from jaxdistill.data import text, tokens
from jaxdistill.data.views import parse_view, viewed

from tiny_models import tiny_tokenizer
from tiny_text import SENTENCES, bare, byte_level, made_up, sentence_piece, store_of, untrimmed, word_piece

KINDS = {"word_piece": word_piece, "byte_level": byte_level, "sentence_piece": sentence_piece, "untrimmed": untrimmed}


def words(store, row):
    """Index of each token's word in its sentence."""
    return store.gather("text", np.array([row])).words


def files_in(folder):
    """Names and contents of all files in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_store_holds_what_the_tokenizer_gives(tmp_path, kind):
    store = store_of(tmp_path, SENTENCES, tokenizer=KINDS[kind](), max_length=200)
    expected = [encoding.ids for encoding in bare(KINDS[kind]()).encode_batch(SENTENCES)]
    assert [store.gather("text", [row]).ids.tolist() for row in range(store.rows)] == expected
    assert store.gather("text", np.arange(store.rows)).lengths.tolist() == list(map(len, expected))
    assert store.longest("text") == max(map(len, expected))
    texts = store.texts()
    assert list(texts) == SENTENCES and texts[-2:] == SENTENCES[-2:] and texts[-1] == SENTENCES[-1]


def test_a_token_belongs_to_the_prompt_if_it_ends_there(tmp_path):
    for prompt in ("q: ", "q:"):  # behind the first, a token is the prompt's space and the text's `a`
        store = store_of(tmp_path, ["ab c"], tokenizer=untrimmed(), prompts={"": prompt})
        assert words(store, 0).tolist() == [-1, -1, -1, -1, 0, 0, 1, 1, -1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_is_in_front_and_belongs_to_no_word(tmp_path, kind):
    store = store_of(tmp_path, SENTENCES, tokenizer=KINDS[kind](), max_length=200, prompts={"": "query: "})
    for row, sentence in enumerate(SENTENCES):
        assert store.gather("text", [row]).ids.tolist() == bare(KINDS[kind]()).encode("query: " + sentence).ids
        assert words(store, row).max() + 1 == len(sentence.split())
        assert store.text("text", row) == sentence
    assert store.content_digest == store_of(tmp_path, SENTENCES).content_digest


def test_long_sentences_are_cut_counted_and_reported(tmp_path):
    store = store_of(tmp_path, ["the cat", "the " * 500, "the the the the", "cat the the the the"], max_length=6)
    assert store.gather("text", np.arange(store.rows)).lengths.tolist() == [4, 6, 6, 6]
    assert store.gather("text", [1]).ids[-1] == word_piece().token_to_id("[SEP]")
    assert store.gather("text", [3]).ids[1] == word_piece().token_to_id("cat"), "they are cut at their end"
    report = "\n".join(store.report)
    assert "50.00% of sentences truncated at 6 tokens" in report and "left out" not in report


def test_a_sentence_without_tokens_may_be_the_first_of_pairs(tmp_path):
    lines = ["text\tsecond", "\u200b\tcat", "the cat\train"]  # BERT's normaliser drops a zero-width space
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    store = store_of(tmp_path, lines, name="text.tsv", tokenizer=tokenizer, columns=("text", "second"))
    pairs = viewed(parse_view("pair", store.columns), store, np.arange(2), lambda: np.zeros((2, 1)))
    encodings = bare(tokenizer).encode_batch([("\u200b", "cat"), ("the cat", "rain")])
    assert pairs.ids.tolist() == sum([encoding.ids for encoding in encodings], [])
    assert pairs.firsts is not None and pairs.firsts.tolist() == [2, 4]


def test_dedupe_keeps_the_first_of_equal_sentences(tmp_path):
    lines = ["The cat", "a dog", " the CAT ", "a  dog", "a dog", "Straße", "STRASSE"]
    store = store_of(tmp_path, lines, dedupe=True)
    assert list(store.texts()) == ["The cat", "a dog", "a  dog", "Straße"] and store.input_row.tolist() == [0, 1, 3, 5]
    assert "3 duplicates" in "\n".join(store.report)


def test_a_query_keeps_all_its_different_negatives(tmp_path):
    rows = ["text\tpositive\tnegative", "a\tb\tc", "a\tb\td", "A\tb\tC", "b\ta\tc"]
    columns = ["text", "positive", "negative"]
    store = store_of(tmp_path, rows, name="a.tsv", columns=columns, dedupe=True)
    assert list(zip(store.texts(), store.texts("negative"), strict=True)) == [("a", "c"), ("a", "d"), ("b", "c")]
    rows = ["text\tsecond", "a\tb", "b\ta", "a\tc"]
    assert store_of(tmp_path, rows, name="b.tsv", columns=["text", "second"], dedupe=True).rows == 2


def test_sentences_of_other_files_are_left_out_counted_and_in_the_digest(tmp_path):
    (tmp_path / "test.txt").write_text("A DOG\nthe cats\n")
    lines = ["The cat", " a dog ", "a dog", "", "  \t", "\u3000", "rain"]
    plain = store_of(tmp_path, lines)
    store = store_of(tmp_path, lines, exclude=[str(tmp_path / "test.txt")])
    assert list(store.texts()) == ["The cat", "rain"] and store.input_row.tolist() == [0, 6]
    assert "left out: 3 with an empty sentence, 2 in data.exclude" in "\n".join(store.report)
    assert "data.exclude" not in "\n".join(plain.report)
    (tmp_path / "test.txt").write_text("rain\n")
    changed = store_of(tmp_path, lines, exclude=[str(tmp_path / "test.txt")])
    assert changed.rows == 3 and len({token_store.content_digest for token_store in (plain, store, changed)}) == 3


def test_pairs_of_other_files_are_left_out_either_way_round(tmp_path):
    """The files have other names for the columns, and a sentence of a pair alone is no reason."""
    (tmp_path / "test.tsv").write_text("score\tsentence1\tsentence2\n1\tThe dog\tthe cat\n2\train\train\n")
    lines = ["premise\thypothesis", "the cat\tthe dog", "the dog\tthe cats", "the cat\train", "the dog\tthe cat"]
    columns = {"text": "sentence1|premise", "second": "sentence2|hypothesis"}
    store = store_of(tmp_path, lines, name="nli.tsv", columns=columns, exclude=[str(tmp_path / "*st.tsv")])
    assert list(zip(store.texts(), store.texts("second"), strict=True)) == [
        ("the dog", "the cats"),
        ("the cat", "rain"),
    ]


def test_the_size_of_batches_does_not_change_the_store(tmp_path, monkeypatch):
    """Rows with an empty cell, and batches without any other row, included."""
    lines = [*made_up(20), *[""] * 9, *made_up(20), " ", "x"]
    expected = store_of(tmp_path, lines, dedupe=True)
    monkeypatch.setattr(text, "BATCH_ROWS", 3)
    actual = store_of(tmp_path, lines, dedupe=True, cache_folder=tmp_path / "other")
    assert list(actual.texts()) == [*made_up(20), "x"]
    assert files_in(expected.folder) == files_in(actual.folder)


@pytest.mark.parametrize("finished_calls", [0, 2, 3])
def test_a_killed_tokenisation_continues_where_it_ended(tmp_path, monkeypatch, finished_calls):
    """Also where it was killed between the files of a batch, or between two files of the text."""
    monkeypatch.setattr(text, "BATCH_ROWS", 8)
    tokenise, calls = tokens.tokenised_words, itertools.count()
    for name, lines in {"a": made_up(16), "b": made_up(14, seed=1)}.items():
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text", *lines]))

    def store(cache):
        options = {"tokenizer": word_piece(), "max_length": 16, "cache_folder": tmp_path / cache}
        return tokens.build_store([f"{tmp_path}/*.tsv"], **options)

    expected = store("cache")

    def killed(*args, **options):
        if next(calls) == finished_calls:
            raise KeyboardInterrupt
        return tokenise(*args, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tokens, "tokenised_words", killed)
        store("other")
    (unfinished,) = tmp_path.glob("other/tokens/*.unfinished")
    with open(unfinished / "0.ids", "ab") as file:
        file.write(b"begun")
    calls = itertools.count(start=10)
    monkeypatch.setattr(tokens, "tokenised_words", killed)
    resumed = store("other")
    assert next(calls) == 10 + 4 - finished_calls
    assert files_in(resumed.folder) == files_in(expected.folder)
    assert not list(resumed.folder.parent.glob("*.unfinished")), "only the store stays"


def test_processes_that_share_a_folder_build_one_store(tmp_path, monkeypatch):
    """Each has a lock of its own, as processes have."""
    builds, finish = [], tokens._Builder.finish
    monkeypatch.setattr(tokens._Builder, "finish", lambda *args, **kwargs: builds.append(1) or finish(*args, **kwargs))
    (tmp_path / "text.txt").write_text("\n".join(made_up(30)))

    def store(_):
        options = {"tokenizer": word_piece(), "max_length": 16, "cache_folder": tmp_path / "cache"}
        return tokens.build_store([str(tmp_path / "text.txt")], **options).texts()[:]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(store, range(4))) == [made_up(30)] * 4
    assert len(builds) == 1


def test_the_store_is_reused_and_its_digest_follows_every_input(tmp_path, monkeypatch):
    first = store_of(tmp_path, SENTENCES)
    monkeypatch.setattr(tokens, "tokenised_words", None)
    assert store_of(tmp_path, SENTENCES).folder == first.folder
    assert store_of(tmp_path, SENTENCES, tokenizer=word_piece(9)).folder == first.folder, "its padding does not matter"
    monkeypatch.undo()
    changes = [{}, {"max_length": 32}, {"prompts": {"": "q: "}}, {"dedupe": True}, {"tokenizer": byte_level()}]
    stores = [store_of(tmp_path, SENTENCES, **change) for change in changes] + [store_of(tmp_path, SENTENCES[::-1])]
    stores += [store_of(tmp_path, ["a\tb", "one\ttwo"], name="a.tsv", columns={"text": column}) for column in "ab"]
    assert len({store.folder for store in stores}) == 8 and stores[0].folder == first.folder


def test_a_store_that_lost_a_byte_is_refused(tmp_path):
    ids = store_of(tmp_path, SENTENCES).folder / "0.ids"
    ids.write_bytes(ids.read_bytes()[:-2])
    with pytest.raises(InputError, match="is damaged; remove it"):
        store_of(tmp_path, SENTENCES)


def test_a_text_that_changes_while_it_is_tokenised_makes_no_store(tmp_path, monkeypatch):
    tokenise = tokens.tokenised_words

    def tokenise_and_change(*args, **options):
        (tmp_path / "text.txt").write_text("another text\n")
        return tokenise(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(tokens, "tokenised_words", tokenise_and_change)
        with pytest.raises(InputError, match="text.txt changed while it was read"):
            store_of(tmp_path, SENTENCES)
    assert not list((tmp_path / "cache").rglob("*.unfinished")) and not list((tmp_path / "cache").rglob("store.json"))
    assert store_of(tmp_path, SENTENCES).texts()[0] == SENTENCES[0]
