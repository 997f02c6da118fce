"""Requests of few sentences: few programs, kept in the cache folder, and the vectors of large requests."""

import numpy as np
import pytest
from pandas import DataFrame
from sentence_transformers import SentenceTransformer

from jaxdistill.core import InputError
from jaxdistill.models import inference as inference
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.inference import Embedder

from tiny_models import tiny_model


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    return Embedder(tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def traced(monkeypatch):
    """Grows by one with each program that is compiled."""
    inference.make_embed.cache_clear()  # other tests have models of the same definition
    traced, embed = [], inference.embed
    monkeypatch.setattr(inference, "embed", lambda *args, **options: traced.append(1) or embed(*args, **options))
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


@pytest.mark.parametrize(
    ("sentences", "words"),
    [
        (DataFrame({"text": ["a cat"]}), "takes a list or a column of texts, not DataFrame"),
        ({"a", "b"}, "takes a list or a column of texts, not set"),
        (["a", None], "texts, not NoneType None"),
    ],
)
def test_anything_but_several_texts_is_one_clear_line(embedder, sentences, words):
    with pytest.raises(InputError, match=words):
        embedder.encode(sentences)


def test_one_string_has_one_vector(embedder):
    several = embedder.encode(["the cat sleeps", "rain"])
    alone = embedder.encode("the cat sleeps", batch_size=1)
    assert alone.shape == (embedder.width,)
    np.testing.assert_allclose(alone, several[0], atol=1e-6)


def test_options_of_encode_mean_what_they_mean_in_sentence_transformers(tmp_path, embedder):
    texts = ["the cat sleeps", "rain"]
    save(embedder.model, tmp_path / "export")
    theirs = SentenceTransformer(str(tmp_path / "export"), device="cpu")
    for options in (
        {"truncate_dim": 5}, {"truncate_dim": 5, "normalize_embeddings": True}, {"prompt": "the cat "}, {"prompt": ""},
        {"prompt_name": "query", "batch_size": 1},
    ):  # fmt: skip
        expected = theirs.encode(texts, **options)
        np.testing.assert_allclose(embedder.encode(texts, **options), expected, atol=1e-5, err_msg=str(options))
    first, second = embedder.encode(texts), embedder.encode("rain")
    np.testing.assert_allclose(embedder.similarity(first, second), theirs.similarity(first, second).numpy(), atol=1e-5)
