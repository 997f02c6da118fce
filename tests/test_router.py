"""A student that reads queries beside the model of the index, in one folder of sentence-transformers."""

import numpy as np
import pytest

import jaxdistill
from jaxdistill.checkpoints.model import load_model
from jaxdistill.core import InputError
from jaxdistill.inference import Embedder
from jaxdistill.training.export import export, export_router

import encoder_cases as cases
from conftest import TEACHER
from tiny_models import tiny_model

TEXTS = ["the cat sleeps", "rain in may", "a dog and another dog"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(query model with a prompt and a linear head, document model of another family with another prompt), saved."""
    folder = tmp_path_factory.mktemp("router")
    export(tiny_model(folder / "tokenizer", head=32).with_role_prompts({"query": "find "}), folder / "student")
    cases.write_encoder(folder / "in", "modernbert")
    teacher = load_model(str(folder / "in"), pooling="mean").with_role_prompts({"document": "read "})
    export(teacher, folder / "teacher")
    return load_model(str(folder / "student")), load_model(str(folder / "teacher"))


def test_a_router_gives_each_role_its_own_models_vectors(models, tmp_path):
    from sentence_transformers import SentenceTransformer

    query, document = models
    assert query.definition.embedding_width == document.definition.embedding_width
    router = SentenceTransformer(str(export_router(query, document, tmp_path / "out")), device="cpu")
    np.testing.assert_allclose(router.encode_query(TEXTS), Embedder(query).encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(router.encode_document(TEXTS), Embedder(document).encode_document(TEXTS), atol=1e-5)
    assert np.abs(router.encode_query(TEXTS) - Embedder(query).encode(TEXTS)).max() > 1e-3  # without its prompt
    card = (tmp_path / "out" / "README.md").read_text()
    assert 'SentenceTransformer("' in card and "encode_query" in card
    before = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert export_router(query, document, tmp_path / "out") and before == sorted(
        path.name for path in (tmp_path / "out").iterdir()
    )


def test_a_router_retrieves_as_the_two_models_do(models, tmp_path):
    """The same scores of a retrieval set from the folder in sentence-transformers as from `--index_model`."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    query = models[0]
    document = tiny_model(tmp_path / "tokenizer", head=32, seed=1).with_role_prompts({"document": "read "})
    corpus = {
        str(i): text
        for i, text in enumerate(["cat", "the dog sleeps", "rain, sun", "may 1999", "a dog", "quiet", "zebra sleeps"])
    }
    queries = {f"q{i}": text for i, text in enumerate(TEXTS)}
    relevant = {"q0": {"1"}, "q1": {"2"}, "q2": {"4"}}
    for name, model in (("student", query), ("teacher", document)):
        export(model, tmp_path / name)
    ours = jaxdistill.evaluate(
        str(tmp_path / "student"),
        index_model=str(tmp_path / "teacher"),
        queries=queries,
        corpus=corpus,
        relevant_docs=relevant,
    ).scores
    router = SentenceTransformer(str(export_router(query, document, tmp_path / "out")), device="cpu")
    theirs = InformationRetrievalEvaluator(
        queries, corpus, {key: set(value) for key, value in relevant.items()}, ndcg_at_k=[10]
    )(router)
    (own,) = [
        score for name, score in next(iter(ours.values())).items() if "asymmetric" in name and "ndcg" in name.lower()
    ]
    (other,) = [score for name, score in theirs.items() if "cosine_ndcg@10" in name]
    assert own == pytest.approx(other, abs=1e-6)


def test_what_cannot_be_a_router_is_one_line(models, tmp_path, capsys):
    query, document = models
    wide = load_model(TEACHER)
    with pytest.raises(InputError, match="vectors of 32 numbers and .* of 384; a router needs a student as wide as"):
        export_router(query, wide, tmp_path / "out")
    cases.write_cross_encoder(tmp_path / "pairs", "bert")
    with pytest.raises(InputError, match="is a cross-encoder, which has no vectors"):
        export_router(load_model(str(tmp_path / "pairs")), document, tmp_path / "out")
    with pytest.raises(InputError, match="document_model goes with model, and without to"):
        jaxdistill.export(model=query, document_model=document, to="onnx", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
