"""Requests of few sentences: few programs, kept in the cache folder, and the vectors of large requests."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxdistill import inference
from jaxdistill.core import InputError
from jaxdistill.encoders.folder import save
from jaxdistill.inference import Embedder, load

from tiny_models import tiny_model


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    return Embedder(tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def traced(monkeypatch):
    """Grows by one with each program that is compiled."""
    inference.make_embed.cache_clear()  # other tests have models of the same definition
    traced, embed = [], inference.embed
    monkeypatch.setattr(inference, "embed", lambda *given, **options: traced.append(1) or embed(*given, **options))
    return traced


@pytest.mark.parametrize("warm", [False, True])
def test_sentences_of_any_length_alone_need_few_programs_and_have_the_same_vectors(tmp_path, traced, warm):
    embedder = Embedder(tiny_model(tmp_path, max_length=64))
    if warm:
        embedder.warm_up(longest=20)
        assert len(traced) == 2, "of 16 and 32 tokens"
        embedder.warm_up()
        assert len(traced) == 3, "all that requests of one sentence need"
    sentences = ["rain " * count for count in range(1, 60)]
    alone = np.concatenate([embedder.encode([sentence]) for sentence in sentences])
    assert len(traced) == 3, "of 16, 32 and 64 tokens"
    np.testing.assert_allclose(alone, embedder.encode(sentences), atol=1e-5)


@pytest.mark.parametrize(("folder", "kept"), [(None, [1]), ("/own", [])])
def test_a_loaded_model_keeps_its_programs_unless_the_caller_does(tmp_path, monkeypatch, folder, kept):
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "export")
    calls, before = [], jax.config.values["jax_compilation_cache_dir"]
    monkeypatch.setattr(inference, "keep_compiled", lambda: calls.append(1))
    jax.config.update("jax_compilation_cache_dir", folder)
    try:
        load(str(tmp_path / "export"))
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert calls == kept


@pytest.mark.parametrize(
    ("sentences", "words"),
    [
        ("a cat", "not str; put a single sentence in a list"),
        ({"a": 1}, "not dict"),
        (None, "not NoneType"),
        (["a", None], "sentence 1 is None; it must be a text"),
        (["a", "b \ud800"], "sentence 1 has half of a surrogate pair"),
    ],
)
def test_anything_but_several_texts_is_one_clear_line(embedder, sentences, words):
    for call in (embedder.encode, lambda given: embedder.score(given, ["a", "b"])):
        with pytest.raises(InputError, match=words):
            call(sentences)


def test_a_cross_encoder_is_warm_for_pairs(tmp_path, traced):
    encoder = tiny_model(tmp_path, max_length=64)
    embedder = Embedder(replace(encoder, definition=replace(encoder.definition, reads_pairs=True)))
    embedder.warm_up()
    before = len(traced)
    embedder.score(["rain " * 20], ["snow " * 20])
    assert len(traced) == before == 3


def test_pairs_have_two_sentences_and_any_iterable_is_a_list(embedder):
    with pytest.raises(InputError, match="got 2 first and 1 second sentences"):
        embedder.score(["a", "b"], ["c"])
    np.testing.assert_array_equal(embedder.encode(text for text in ("a", "b")), embedder.encode(["a", "b"]))
