"""A checkpoint's similarity function: read, used for ranking, exported; a student has the one of its training."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import jaxdistill
from jaxdistill.config import parse_config
from jaxdistill.models.checkpoints import static
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.training import dev
from jaxdistill.training.build import make_student
from jaxdistill.training.export import export

import encoder_cases as cases
from eval_cases import write_set
from tiny_models import tiny_model, word_table

ROWS = {"the": [1, 0, 0], "cat": [6, 8, 0], "dog": [0.5, 0, 0], "rain": [0, 0, 1]}
"""The query `the` has cosine 1 with `dog` and 0.6 with `cat`, but dot products of 0.5 and 6."""
DOCUMENTS = ("dog", "cat", "rain")
SET = dict(corpus=[(name, "", name) for name in DOCUMENTS], queries=[("q", "the")], qrels=[("q", "cat", 1)])


@pytest.fixture
def dot(tmp_path):
    model = word_table(dataclasses.replace(tiny_model(tmp_path / "tokenizer"), prompts={}))
    table = np.zeros_like(model.params[static.TABLE])
    for word, row in ROWS.items():
        table[model.tokenizer.token_to_id(word), :3] = row
    save(model.with_params({static.TABLE: table}), tmp_path / "dot")
    cases.edit_json(tmp_path / "dot" / "config_sentence_transformers.json", similarity_fn_name="dot")
    return str(tmp_path / "dot")


def test_documents_and_negatives_are_ranked_by_the_checkpoints_similarity(dot, tmp_path):
    shutil.copytree(dot, cosine := str(tmp_path / "cosine"))
    cases.edit_json(tmp_path / "cosine" / "config_sentence_transformers.json", similarity_fn_name=None)
    folder = str(write_set(tmp_path / "set", **SET))
    scores = jaxdistill.evaluate([dot, cosine], retrieval=folder, index_model=dot).scores
    second = pytest.approx(1 / np.log2(3))
    assert [scores[model]["documents/set ndcg@10"] for model in (dot, cosine)] == [1.0, second]
    assert [scores[model]["asymmetric documents/set ndcg@10"] for model in (dot, cosine)] == [1.0, 1.0]
    row, *_ = jaxdistill.mine(dot, [("the", "dog")], corpus=["cat", "rain"], num_negatives=1)
    assert (row["negative"], row["score_negative"], row["score_positive"]) == ("cat", 6.0, 0.5)
    model, reference = jaxdistill.load(dot), SentenceTransformer(dot, device="cpu")
    vectors = model.encode(list(ROWS))
    np.testing.assert_allclose(model.similarity(vectors, vectors), reference.similarity(vectors, vectors), atol=1e-6)
    evals = {"retrieval": str(folder), "retrieval_split": "test"}
    config = parse_config({"evals": evals, "objective": {"kind": "simcse"}})
    for similarity, ndcg in (("dot", 1.0), ("cosine", second)):
        (task,) = dev.dev_tasks(config, similarity=similarity).values()
        assert list(task(model.encode).values()) == [ndcg]


def test_an_unchanged_model_hands_its_similarity_on_and_unit_vectors_have_the_cosine(dot, tmp_path):
    exported = export(load_model(dot), tmp_path / "again")
    assert json.loads((exported / "config_sentence_transformers.json").read_text())["similarity_fn_name"] == "dot"
    assert load_model(str(exported)).digest() == load_model(dot).digest()
    modules = json.loads((exported / "modules.json").read_text())
    modules.append({"kind": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"})
    (exported / "modules.json").write_text(json.dumps(modules))
    normalized = load_model(str(exported))
    assert normalized.definition.similarity == normalized.as_pooled().definition.similarity == "cosine"


@pytest.mark.parametrize(
    ("objective", "student", "similarity"),
    [
        ({"kind": "embedding"}, {}, "cosine"),
        ({"kind": "congen"}, {}, "cosine"),
        ({"kind": "embedding", "normalize": False}, {}, "dot"),
        ({"kind": "simtde"}, {}, "dot"),
        ({"kind": "simtde", "sentence_loss": "cosine_mse"}, {}, "cosine"),
        ({"kind": "listwise", "similarity": "dot"}, {}, "dot"),
    ],
)
def test_a_student_is_compared_as_in_its_training(tmp_path, caplog, objective, student, similarity):
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "teacher")
    cases.edit_json(tmp_path / "teacher" / "config_sentence_transformers.json", similarity_fn_name="dot")
    teacher = load_model(str(tmp_path / "teacher"))
    config = parse_config({"student": {"model": "teacher"} | student, "objective": objective})
    made_student = make_student(config, (teacher,), tmp_path)
    assert made_student.definition.similarity == similarity
    assert caplog.text.count("teacher: its checkpoint compares by dot product") == (similarity == "cosine")
