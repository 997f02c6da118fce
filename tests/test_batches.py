"""Batches: a pure function of seed and step, every sentence once an epoch, reserved ones never."""

from functools import partial

import jax
import numpy as np
import pytest
from test_packing import unpacked

from jaxdistill.core import InputError
from jaxdistill.data.targets import Selected
from jaxdistill.data.tokens import TokenStore, build_store
from jaxdistill.objectives.weighted import SourceTerms

from tiny_models import tiny_tokenizer
from tiny_text import COLUMNS, batches_of, made_up, rows_at, store_of, word_piece, write_pairs

VIEWS = {"student_views": ("text", "delete_words:0.5"), "teacher_views": ("text",)}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return store_of(tmp_path_factory.mktemp("text"), made_up(150))


def equal(first, second):
    pairs = zip((*first.student, *first.teacher), (*second.student, *second.teacher), strict=True)
    return all(np.array_equal(actual, expected) for actual, expected in pairs)


def test_a_batch_depends_on_seed_and_step_alone(store):
    batches, same, other = (batches_of(store, store, **VIEWS, batch_size=16, groups=2, seed=seed) for seed in (1, 1, 2))
    later = [same.batch_at(step) for step in (30, 7, 3)]
    assert equal(batches.batch_at(3), later[2]) and equal(batches.batch_at(30), later[0])
    assert not equal(batches.batch_at(3), other.batch_at(3)) and not equal(batches.batch_at(3), batches.batch_at(4))
    assert np.array_equal(rows_at(batches, 7), rows_at(same, 7))


def test_an_epoch_has_every_sentence_once_and_epochs_differ(store):
    batches = batches_of(store, student_views=("text",), batch_size=16, groups=4)
    steps = batches.steps_per_epoch
    assert steps == 150 // 16
    first, second = (np.concatenate([rows_at(batches, e * steps + s) for s in range(steps)]) for e in (0, 1))
    assert len(set(first)) == len(set(second)) == steps * 16
    assert first.tolist() != second.tolist()


def test_a_batch_holds_the_views_of_its_rows_in_order(store):
    batches = batches_of(store, store, **VIEWS, batch_size=8, groups=2)
    batch, rows = batches.batch_at(5), rows_at(batches, 5)
    student, teacher = unpacked(batch.student), unpacked(batch.teacher)
    assert teacher == [store.gather("text", [row]).ids.tolist() for row in rows]
    assert student[0::2] == teacher
    for original, thinned in zip(teacher, student[1::2], strict=True):
        assert 3 <= len(thinned) <= len(original) and {original[0], original[-1]} <= set(thinned)
        remaining = iter(original)
        assert all(token in remaining for token in thinned), "a thinned sentence keeps its order"
    assert sum(map(len, student[1::2])) < sum(map(len, teacher))


@pytest.mark.parametrize("names", [("text", "delete_words:0.5", "crop"), ("mask_span", "text"), ("pair",)])
def test_each_process_reads_and_packs_its_own_groups_which_together_are_the_batch(tmp_path, monkeypatch, names):
    path = write_pairs(tmp_path / "pairs.tsv", list(zip(made_up(90, words=20), made_up(90, seed=1), strict=True)))
    build = partial(build_store, [str(path)], cache_folder=tmp_path, columns=COLUMNS)
    student, teacher = (build(tokenizer=tiny_tokenizer(tmp_path / "tokens"), max_length=length) for length in (32, 48))
    read = dict.fromkeys((1, 4), 0)

    def counted(store, column, rows, gather=TokenStore.gather):
        read[count] += int(store.counts_of(column, rows).lengths.sum())
        return gather(store, column, rows)

    monkeypatch.setattr(TokenStore, "gather", counted)
    monkeypatch.setattr("jaxdistill.data.batches.SIMULATED_STEPS", 5)
    options = {"student_views": names, "teacher_views": names[-1:], "batch_size": 32, "groups": 8, "with_keys": True}
    for kind in ({"targets": (np.arange(180).reshape(90, 2),)}, {"other": teacher}):
        for step in (0, 7):
            merged = {}
            for count in read:
                parts = [
                    batches_of(student, local=local, **options, **kind).batch_at(step)
                    for local in np.split(np.arange(8), count)
                ]
                merged[count] = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
                assert len({len(part.student.ids) for part in parts}) == 1
            jax.tree.map(np.testing.assert_array_equal, merged[1], merged[4])
    assert read[4] == read[1], "no token is read by two processes"


def test_vectors_by_input_row_reach_the_right_sentences(tmp_path):
    lines = ["", *made_up(20), "", *made_up(20, seed=1)]
    store = store_of(tmp_path, lines)
    vectors = Selected(np.arange(len(lines), dtype=np.float16)[:, None], store.input_row)
    views = {"student_views": ("text",), "teacher_views": ("text", "text")}
    batches = batches_of(store, **views, batch_size=8, targets=(vectors, vectors))
    batch = batches.batch_at(1)
    assert batch.teacher is None and batch.targets.shape == (8, 2, 1) and batch.targets.dtype == np.float32
    for row, target in zip(rows_at(batches, 1), batch.targets[..., 0], strict=True):
        assert lines[int(target[0])] == lines[int(target[1])] == store.text("text", row)


def test_reserved_rows_and_their_repeats_are_never_trained_on(tmp_path):
    store = store_of(tmp_path, [*made_up(60), *made_up(60)])
    batches = batches_of(store, student_views=("text",), batch_size=8, reserve_rows=20)
    reserved = {store.text("text", row) for row in batches.reserved}
    assert len(batches.reserved) == 20 and np.all(np.diff(batches.reserved) > 0)
    trained_rows = np.concatenate([rows_at(batches, step) for step in range(3 * batches.steps_per_epoch)])
    assert not reserved & {store.text("text", row) for row in trained_rows}
    assert len(batches.trained) == 120 - 2 * len(reserved)
    reseeded = batches_of(store, student_views=("text",), batch_size=8, reserve_rows=20, seed=9)
    assert reseeded.reserved.tolist() == batches.reserved.tolist()


def test_equal_texts_have_equal_keys_in_all_columns(tmp_path):
    pairs = [("one", "two"), ("two", "one"), ("One", "three"), ("three", "one"), ("four", "four"), ("five", "two")]
    options = {"tokenizer": word_piece(), "max_length": 64, "cache_folder": tmp_path, "columns": COLUMNS}
    store = build_store([str(write_pairs(tmp_path / "pairs.tsv", pairs))], **options)
    batches = batches_of(store, student_views=("text", "second", "crop"), batch_size=6, with_keys=True)
    texts = [(*pairs[row], pairs[row][0]) for row in rows_at(batches, 0)]
    every = batches.batch_at(0).keys.reshape(18, 2).tolist()
    assert [every.index(key) for key in every] == [sum(texts, ()).index(text) for text in sum(texts, ())]
    assert batches_of(store, student_views=("text",), batch_size=6).batch_at(0).keys is None


def two_sources(folder, *counts):
    """A store of the sources a and b."""
    for name, count in zip("ab", counts, strict=True):
        (folder / f"{name}.txt").write_text("".join(f"{name} {line}\n" for line in made_up(count)))
    specs = [str(folder / f"{name}.txt") for name in "ab"]
    options = {"tokenizer": word_piece(), "max_length": 64, "cache_folder": folder / "cache"}
    build_store([f"{folder}/*.txt"], **options)  # the same text as one source, which must not be taken for two
    return build_store(specs, **options)


def test_batches_are_of_one_source_in_turn_or_by_weights(tmp_path):
    store = two_sources(tmp_path, 70, 10)
    for weights, turns in (((), "aaaabaaa"), ((1.0, 1.0), "abababab"), ((3.0, 1.0), "aabaaaba")):
        sources = [SourceTerms([1, 0], [{0}, set()]), SourceTerms([1, 1], [{1}, {0}])]
        read = dict(student_views=("crop", "text"), teacher_views=("text",))
        options = dict(**read, batch_size=10, weights=weights, sources=sources)
        batches, again = (batches_of(store, store, **options) for _ in range(2))
        assert batches.steps_per_epoch == 8
        seen = []
        for step in range(16):
            rows, batch = rows_at(batches, step), batches.batch_at(step)
            assert {*(rows >= 70)} == {turns[step % 8] == "b"}
            assert batch.active.tolist() == [[1, float(turns[step % 8] == "b")]] * 10
            views = [unpacked(batch.student)[0::2], unpacked(batch.student)[1::2], unpacked(batch.teacher)]
            one_token = [view == [[store.pad_id]] * 10 for view in views]
            assert one_token == ([True, False, False] if turns[step % 8] == "a" else [False, True, True])
            seen.append(rows)
        np.testing.assert_array_equal(rows_at(again, 13), seen[13])  # without the steps before
        counts = np.bincount(np.concatenate(seen), minlength=80)
        assert np.ptp(counts[:70]) <= 1 and np.ptp(counts[70:]) == 0, "a source goes through its own sentences in turn"
    with pytest.raises(InputError, match="source 2 of data.text has none of the 8 batches"):
        batches_of(store, store, **options | {"weights": (99.0, 1.0)})


def test_weights_are_the_shares_of_the_sources(tmp_path):
    store = two_sources(tmp_path, 90, 10)
    batches = batches_of(store, student_views=("text",), batch_size=10, weights=(1.0, 3.0))
    epochs = [np.concatenate([rows_at(batches, 10 * epoch + step) for step in range(10)]) for epoch in range(4)]
    for rows in epochs:
        assert np.bincount(rows >= 90).tolist() == [25, 75]
        assert set(np.bincount(rows, minlength=100)[90:]) <= {7, 8}, "a source goes through its own sentences in turn"
    counts = np.bincount(np.concatenate(epochs), minlength=100)
    assert set(counts[90:]) == {30} and set(counts[:90]) == {1, 2}
