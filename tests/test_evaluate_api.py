"""Evaluation from Python: sets and models in memory, where results lie, and failures that are raised."""

import inspect
import json

import numpy as np
import pytest

import jaxdistill
from jaxdistill import evaluate
from jaxdistill.checkpoints.folder import save
from jaxdistill.core import InputError
from jaxdistill.evals.agreement import held_out_task
from jaxdistill.evaluate import EvaluationFailed

from eval_cases import DOCUMENTS, QUERIES, write_set
from tiny_models import tiny_model

PAIRS = [(f"the cat sleeps {number}", f"rain {number * number}", number % 5) for number in range(12)]
QUERY_TEXTS, RELEVANT = dict(QUERIES), {"q1": {"d1": 2, "d3": 1}, "q2": ["d2"], "q4": {"d1": 0}}
CORPUS = {name: {"title": title, "text": text} if title else text for name, title, text in DOCUMENTS}
SETS = {"queries": QUERY_TEXTS, "corpus": CORPUS, "relevant_docs": RELEVANT}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "tiny")
    return str(tmp_path / "tiny")


def test_sets_in_memory_give_the_scores_of_the_same_files(tiny, tmp_path):
    lines = ["score\tsentence1\tsentence2", *(f"{score}\t{first}\t{second}" for first, second, score in PAIRS)]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    folder = write_set(tmp_path / "tiny-set")
    files = jaxdistill.evaluate(tiny, pairs=tmp_path / "pairs.tsv", retrieval=folder, index_model=tiny)
    memory = jaxdistill.evaluate(tiny, pairs=PAIRS, index_model=tiny, **SETS)
    expected = {name.replace("tiny-set", "in-memory"): score for name, score in files.scores[tiny].items()}
    assert memory.scores[tiny] == expected and "asymmetric documents/in-memory map" in expected
    assert memory.results["sets"] == {
        "pairs": "12 pairs in memory", "retrieval": "3 judged queries and 3 documents in memory"
    }  # fmt: skip
    assert memory.results["data"] == "" and memory.results_file is memory.report is None
    other = jaxdistill.evaluate(tiny, **SETS | {"relevant_docs": {"q1": {"d2"}}})  # another digest, no cached score
    assert other.scores[tiny]["documents/in-memory map"] != expected["documents/in-memory map"]
    assert set(other.scores[tiny]) == {name for name in expected if name.startswith("documents")}


def test_a_loaded_model_is_scored_as_it_was_loaded(tiny):
    loaded = jaxdistill.load(tiny, max_length=4)
    own, short = jaxdistill.evaluate(loaded, pairs=PAIRS), jaxdistill.evaluate(tiny, max_length=4, pairs=PAIRS)
    assert own.scores == short.scores != jaxdistill.evaluate([tiny], pairs=PAIRS).scores
    assert own.results["models"][0]["max_length"] == 4
    with pytest.raises(InputError, match="max_length=8 is for models given by name; give it to jaxdistill.load"):
        jaxdistill.evaluate(loaded, pairs=PAIRS, max_length=8)
    with pytest.raises(InputError, match="models has .*tiny' twice"):
        jaxdistill.evaluate([tiny, loaded], pairs=PAIRS)


def test_what_fails_is_raised_after_the_rest_was_scored_and_written(tiny, tmp_path):
    good, bad = write_set(tmp_path / "good"), write_set(tmp_path / "bad", corpus=[])
    with pytest.raises(
        EvaluationFailed, match="^documents/bad of .*tiny failed: .*is empty.* in this error's `res"
    ) as failed:
        jaxdistill.evaluate(tiny, retrieval=[bad, good], out=f"{tmp_path}/report/")
    result = failed.value.result
    assert "documents/good map" in result.scores[tiny] and "\n" not in str(failed.value)
    assert json.loads(result.results_file.read_text())["models"][0]["scores"] == result.scores[tiny]
    assert result.report == tmp_path / "report" / "index.html" and "documents/good" in result.report.read_text()
    with pytest.raises(EvaluationFailed, match="^model absent failed: "):
        jaxdistill.evaluate([tiny, "absent"], pairs=PAIRS)


def test_models_are_compared_with_a_teacher_on_a_text(tiny, tmp_path):
    save(tiny_model(tmp_path / "tokenizer", seed=1), tmp_path / "teacher")
    teacher = str(tmp_path / "teacher")
    sentences = [f"the cat sleeps {number} rain {number % 7}" for number in range(20)]
    (tmp_path / "text.txt").write_text("\n".join([*sentences, *sentences]) + "\n")
    scores = jaxdistill.evaluate(tiny, tasks="agreement", text=tmp_path / "text.txt", teacher=teacher).scores
    vectors = jaxdistill.load(teacher, precision="float32").encode(sentences)
    task = held_out_task(dict(zip(sentences, vectors, strict=True)), seed=0)
    assert scores[tiny] == pytest.approx(task(jaxdistill.load(tiny, precision="float32").encode))
    assert scores[teacher] == pytest.approx(dict.fromkeys(task.metrics, 1.0)) and scores[tiny]["agreement/recall@1"] < 1
    with pytest.raises(InputError, match="needs text=FILE with sentences and teacher=MODEL; give both"):
        jaxdistill.evaluate(tiny, text=tmp_path / "text.txt")
    with pytest.raises(EvaluationFailed, match="agreement of bm25 failed: bm25 has no vectors"):
        jaxdistill.evaluate(tiny, text=tmp_path / "text.txt", teacher="bm25")


def test_the_signature_names_every_option():
    parameters = inspect.signature(evaluate.evaluate).parameters
    in_python = {"models", "queries", "corpus", "relevant_docs"}
    options = evaluate._parser().defaults()
    assert set(parameters) - in_python == options.keys() - {"model"}
    for name in (
        set(parameters)
        - in_python
        - {"data", "out", "paper", "parts", "postprocess_text", "bitext", "entities", "retrieval", "text"}
    ):
        assert parameters[name].default == options[name], name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pairs": [("a", "b")]}, r"pairs\[0\] is \('a', 'b'\); each pair is \(sentence1, sentence2, score\)"),
        ({"pairs": [*PAIRS, (1.0, "a", "b")]}, r"pairs\[12\] is .*; both sentences must be texts"),
        ({"pairs": [("a", " ", 1)]}, r"pairs\[0\] is .*; both sentences must be texts that are not empty"),
        ({"pairs": [("a", "b", float("nan"))]}, r"pairs\[0\] has the score nan; it must be a finite number"),
        ({"pairs": PAIRS[:1]}, "pairs has 1 graded pairs; a correlation needs at least 2"),
        ({"pairs": 7}, r"pairs has type int; give several \(sentence1, sentence2, score\), or the path"),
        ({"queries": QUERY_TEXTS}, "corpus is missing; queries, corpus, relevant_docs belong together"),
        (SETS | {"corpus": ["a"]}, "corpus has type list; queries, corpus, relevant_docs belong together"),
        (SETS | {"queries": {"q1": None}}, r"queries\['q1'\] is None; it must be a text"),
        (SETS | {"corpus": {"d1": {"title": "a"}}}, r"corpus\['d1'\] has no 'text'"),
        (
            SETS | {"relevant_docs": {"q9": ["d1"]}},
            r"relevant_docs\['q9'\] judges the query 'q9', which queries does not",
        ),
        (SETS | {"relevant_docs": {"q1": "d1"}}, r"relevant_docs\['q1'\] is 'd1'; it must be a set of ids"),
        (
            SETS | {"relevant_docs": {"q1": {"d1": 0.5}}},
            r"relevant_docs\['q1'\] judges 'd1' as 0.5; it must be a whole",
        ),
    ],
)
def test_a_wrong_set_in_memory_is_one_line(options, words):
    with pytest.raises(InputError, match=words) as error:
        jaxdistill.evaluate("absent", **options)
    assert "\n" not in str(error.value)


def test_ids_and_grades_may_be_numbers_of_numpy(tiny):
    sets = {"queries": {1: "Do cats sleep?"}, "corpus": dict(enumerate(row[2] for row in DOCUMENTS))}
    found = jaxdistill.evaluate(tiny, relevant_docs={1: {0: np.int64(1)}}, **sets)
    assert found.scores[tiny]["documents/in-memory recall@10"] == 1.0
