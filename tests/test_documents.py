"""Retrieval of documents: measures against trec_eval, roles, the index of another model, rerankers, BM25."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import pytrec_eval

from jaxdistill import candidates, evaluate, mine
from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.config import Config, Evals
from jaxdistill.core import InputError, Scorer
from jaxdistill.evals import beir_files, dev_metric, documents, suite
from jaxdistill.evals.beir_files import set_files
from jaxdistill.evals.evaluation import InRoles, Sources
from jaxdistill.evals.ranking import measures, ordered
from jaxdistill.evaluate import EvaluationFailed
from jaxdistill.inference import Embedder
from jaxdistill.students.cross_encoder import CrossEncoder
from jaxdistill.training.setup import dev

from eval_cases import DOCUMENTS, read_test, with_dev, write_set
from tiny_models import tiny_model


def test_measures_equal_those_of_trec_eval():
    drawn = np.random.default_rng(0)
    names = [f"d{number}" for number in range(300)]
    judged = {
        f"q{query}": {name: int(drawn.integers(-1, 4)) for name in drawn.choice(names, 20, replace=False)}
        | {names[query]: 2}
        for query in range(40)
    } | {"q40": {names[0]: 0, names[1]: -1}}
    scores = drawn.integers(0, 40, (41, 250)) / 7  # many ties
    rows = np.stack([drawn.permutation(300)[:250] for _ in judged])
    rankings = dict(zip(judged, ordered(scores, rows, names), strict=True))
    runs = {
        query: {names[row]: float(score) for row, score in zip(*pair, strict=True)}
        for query, pair in zip(judged, zip(rows, scores, strict=True), strict=True)
    }
    wanted = {"ndcg_cut.10", "recall.10,100", "map", "recip_rank"}
    theirs = pytrec_eval.RelevanceEvaluator(judged, wanted).evaluate(runs)
    top = {query: {name: 10.0 - place for place, name in enumerate(ranked[:10])} for query, ranked in rankings.items()}
    first = pytrec_eval.RelevanceEvaluator(judged, {"recip_rank"}).evaluate(top)
    mean = lambda name, of=theirs: np.mean([of[query][name] for query in judged])  # noqa: E731 - said once
    assert measures(rankings, judged) == pytest.approx(
        {
            "ndcg@10": mean("ndcg_cut_10"),
            "recall@10": mean("recall_10"),
            "recall@100": mean("recall_100"),
            "mrr@10": mean("recip_rank", first),
            "map": mean("map"),
        },
        abs=1e-6,
    )


VECTORS = {"Do cats sleep?": (1, 0), "Where do dogs run?": (0.8, 0.6), "Cats They sleep.": (1, 0.1)}
VECTORS |= {"Dogs run in the park.": (0, 1), "Rain It rains in May.": (0.9, 0.5), "judged irrelevant": (1, 0)}


def embed(texts):
    return np.array([VECTORS[text] for text in texts], np.float32)


def test_a_ranking_by_hand(tmp_path):
    known = read_test(write_set(tmp_path / "tiny"))
    ranking = documents.ranked_by_vectors(embed, embed, known)
    scores = documents.scored(ranking, known)
    # q1: d1, d3, d2; q2: d3, d1, d2; q4 has no relevant document.
    assert scores["documents/tiny ndcg@10"] == pytest.approx((1 + 1 / np.log2(4)) / 3)
    assert scores["documents/tiny mrr@10"] == pytest.approx((1 + 1 / 3) / 3)
    other = documents.ranked_by_vectors(embed, lambda texts: embed(texts)[:, ::-1], known)  # another model's index
    assert documents.scored(other, known)["documents/tiny map"] < scores["documents/tiny map"]

    again = documents.scored(documents.reranked(ranking, Reranker(), known), known)
    assert again["documents/tiny ndcg@10"] == pytest.approx(2 / 3)


class Reranker(Scorer):
    """Prefers documents whose first word is in the query."""

    def score(self, first, second):
        return [float(one.split()[0].lower() in query) for query, one in zip(first, second, strict=True)]

    def __call__(self, texts):
        raise AssertionError


class Given(Scorer):
    """Has a score for each document."""

    def __init__(self, scores):
        self.scores = scores

    def score(self, first, second):
        return [self.scores[text] for text in second]


def test_a_reranker_orders_by_scores_however_small_and_keeps_its_ties(tmp_path, monkeypatch):
    known = read_test(write_set(tmp_path / "tiny"))
    ranking = documents.ranked_by_vectors(embed, embed, known)
    cats, dogs, rain = known.documents.values()
    for given, order in (
        ({cats: 3e-17, dogs: 2e-17, rain: 1e-17}, ["d1", "d2", "d3"]),
        ({cats: -1e30, dogs: 5e-324, rain: 0.0}, ["d2", "d3", "d1"]),
        ({cats: 1e-17, dogs: 1e-17, rain: 2e-17}, ["d3", "d2", "d1"]),  # of equals the last name is first
    ):
        assert ordered(*documents.reranked(ranking, Given(given), known), list(known.documents)) == [order] * 3
    with pytest.raises(InputError, match="reranker gives NaN or infinity for 3 of 9 pairs, the first .* 'Rain It"):
        documents.reranked(ranking, Given({cats: 1.0, dogs: 0.0, rain: np.nan}), known)
    many = replace(known, documents={f"d{number}": f"text {number}" for number in range(101)})
    rising = Given({text: number for number, text in enumerate(many.documents.values())})
    _, rows = documents.reranked(
        (np.linspace([1.0] * 3, [0.0] * 3, 101).T, np.arange(303).reshape(3, 101) % 101), rising, many
    )
    assert rows.tolist() == [[*range(99, -1, -1), 100]] * 3
    monkeypatch.setattr(documents, "RERANKED_DOCUMENTS", 1)
    last = documents.reranked(ranking, Given({cats: -9.0, dogs: -9.0, rain: -9.0}), known)
    assert ordered(*last, list(known.documents))[:2] == [["d1", "d3", "d2"], ["d3", "d1", "d2"]]  # as the vectors rank


def test_only_a_model_that_gives_nothing_but_zero_vectors_is_refused(tmp_path):
    known = read_test(write_set(tmp_path / "tiny"))

    def without(*unknown):
        return lambda texts: np.array([(0, 0) if text in unknown else VECTORS[text] for text in texts], np.float32)

    scores, rows = documents.ranked_by_vectors(
        without("Do cats sleep?"), without("Dogs run in the park.", "Rain It rains in May."), known
    )
    assert scores[0].tolist() == [0, 0, 0] and rows[1].tolist() == [0, 1, 2]
    assert scores[1] == pytest.approx([0.86 / 1.01**0.5, 0, 0], abs=1e-6)
    with pytest.raises(InputError, match="a zero vector for 3 of 3 sentences"):
        documents.ranked_by_vectors(embed, without(*known.documents.values()), known)


def test_a_model_that_gives_all_documents_one_vector_is_refused_unless_they_are_one_text(tmp_path):
    def one_vector(texts):
        return np.ones((len(texts), 2), np.float32)

    known = read_test(write_set(tmp_path / "tiny"))
    with pytest.raises(InputError, match="tiny: the model finds all 3 documents equally similar .1.: it has collapsed"):
        documents.ranked_by_vectors(embed, one_vector, known)
    same = replace(known, documents=dict.fromkeys(map(str, range(1001)), "one text"))
    assert documents.ranked_by_vectors(embed, one_vector, same)[0].shape == (3, 1000)


def test_a_query_that_is_a_document_does_not_find_itself(tmp_path):
    corpus = [("q1", "Topic", "Do cats sleep?"), ("q2", "", "It rains."), ("q3", "", "Who?"), ("d1", "", "They sleep.")]
    queries = [("q1", "Do cats sleep?"), ("q2", "Where do dogs run?"), ("q3", "Who?")]
    qrels = [("q1", "d1", 1), ("q2", "q2", 1), ("q3", "q3", 1)]
    folder = str(write_set(tmp_path / "tiny", corpus=corpus, queries=queries, qrels=qrels))
    known = read_test(folder)
    assert known.also_documents == {"q1", "q3"}  # q2 has the id of another text
    ranking = np.array([[0.9, 0.3, 0.2, 0.8]] * 3), np.array([[0, 1, 2, 3]] * 3)
    scores, rows = documents.without_itself(ranking, known)
    names = ordered(scores, rows, list(known.documents))
    assert names == [["d1", "q2", "q3"], ["q1", "d1", "q2", "q3"], ["q1", "d1", "q2", "q3"]]  # q3 is judged relevant
    first = documents.reranked((scores, rows), Reranker(), known)
    assert "q1" not in ordered(*first, list(known.documents))[0]

    def by_topic(texts, role=""):  # without themselves, all find their answers first
        return np.array(
            [(1.0, 0.1 * text.startswith("They")) if "sleep" in text else (-1.0, "Who" in text) for text in texts]
        )

    assert documents.mean_ndcg([known], by_topic) == {"retrieval-test/ndcg@10": 1.0}
    (unit,) = documents.EVALUATION.units(Sources(retrieval=(folder,)))
    model = SimpleNamespace(rank=None, reranker=None, in_roles=InRoles(by_topic, by_topic), similarity="cosine")
    assert unit.run(model)["scores"]["documents/tiny ndcg@10"] == 1.0


def test_a_query_of_another_language_does_not_find_its_own_translation(tmp_path):
    german = [("q1", "Thema", "Schlafen  Katzen?"), ("q2", "", "Hunde"), ("q9", "", "fehlt")]
    queries = [("q1", "Schlafen Katzen?"), ("q2", "Wo laufen sie?"), ("q9", "fehlt")]
    asked = write_set(tmp_path / "de", corpus=[*german, ("d1", "", "Ja.")], queries=queries, qrels=[("q1", "d1", 1)])
    english = [("q1", "Topic", "Do cats sleep?"), ("q2", "", "Dogs"), ("d1", "", "Yes.")]
    spec = f"{asked}+{write_set(tmp_path / 'en', corpus=english, queries=queries)}"
    known = read_test(spec)
    assert known.also_documents == {"q1"} and known.documents["q1"] == "Topic Do cats sleep?"
    assert mine.questions_of(spec, "test").excluded() == [[0, 2]]
    (asked / "corpus.tsv.gz").unlink()  # the queries of A suffice
    assert not read_test(spec).also_documents


def test_sets_of_a_data_folder_and_across_languages(tmp_path):
    for name, form in (("one", "parquet"), ("news-en", "tsv"), ("news-de", "jsonl")):
        write_set(tmp_path / "retrieval" / name, form)
    (tmp_path / "retrieval" / "notes").mkdir()
    write_set(tmp_path / "retrieval" / "news-hard", qrels=[("q1", "d2", 1), ("q2", "d2", 1), ("q3", "d3", 1)])
    (write_set(tmp_path / "retrieval" / "news-fr") / "qrels.tsv").write_text("damaged")
    specs = documents.specs(Sources(data=str(tmp_path)))
    names = [set_files(spec, split="test").name for spec in specs]
    assert names == ["news-de", "news-en", "news-fr", "news-hard", "one", "news-de+news-en"]
    assert documents.specs(Sources(data=str(tmp_path), retrieval=("mine",))) == ("mine",)
    assert read_test(specs[-1]).name == "news-de+news-en"


def test_sets_of_one_name_are_told_apart_by_their_folders(tmp_path, monkeypatch):
    a, b, inner = (str(write_set(tmp_path / name)) for name in ("a/plain", "b/plain", "c/a/plain"))
    assert beir_files.named_sets([a, f"{a}/", b]) == {a: "a/plain", b: "b/plain"}
    assert list(beir_files.named_sets([a, inner]).values()) == [f"{tmp_path.name}/a/plain", "c/a/plain"]
    assert beir_files.named_sets([f"{a}+{b}", "ONE/x", "TWO/x"]) == {
        f"{a}+{b}": "plain+plain",
        "ONE/x": "ONE/x",
        "TWO/x": "TWO/x",
    }
    monkeypatch.chdir(a)
    assert beir_files.named_sets([".", a, "../../b/plain"]) == {".": "a/plain", "../../b/plain": "b/plain"}
    assert set_files(".", split="test").name == "plain"
    units = suite.planned(["documents"], Sources(retrieval=(a, b, a))).units
    assert [unit.name for unit in units] == ["documents/a/plain", "documents/b/plain"]


def test_a_model_that_lacks_a_set_has_no_average():
    scores = {"documents/a ndcg@10": 0.5, "documents/b ndcg@10": 0.7, "documents/b map": 0.1}
    average = scores | {"documents/average ndcg@10": pytest.approx(0.6)}
    assert suite.with_averages(scores) == average
    assert suite.with_averages(scores, ["documents/c", "sts12"]) == scores
    apart = scores | {"documents/a+b ndcg@10": 0.1}
    assert suite.with_averages(scores, ["reranked documents/a", "documents/a+b", "sts12"], ["documents/a+b"]) == average
    assert suite.with_averages(apart, apart=["documents/a+b ndcg@10"]) == average | apart


def test_only_sets_across_languages_are_left_out_of_the_average_whatever_their_folders_are_called(tmp_path):
    one, other = write_set(tmp_path / "c++"), write_set(tmp_path / "plain", qrels=[("q1", "d2", 1)])
    scores = evaluate(
        ["bm25"], tasks=["documents"], retrieval=[one, other, f"{one}+{other}"], max_length="8", reranker=None
    ).scores["bm25"]
    both = [scores[f"documents/{name} ndcg@10"] for name in ("c++", "plain")]
    assert scores["documents/average ndcg@10"] == pytest.approx(np.mean(both))


def test_evaluate_scores_documents_beside_bm25_and_in_anothers_index(tmp_path):
    write_set(tmp_path / "data" / "retrieval" / "tiny")
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "model")
    faults = {
        "no-text": {"queries": [("q1", "")]},
        "unknown": {"qrels": [("q1", "d9", 1)]},
        "twice": {"corpus": [*DOCUMENTS, DOCUMENTS[0]]},
    }
    bad = [write_set(tmp_path / name, **changed) for name, changed in faults.items()]
    (write_set(tmp_path / "train", "jsonl") / "qrels" / "test.tsv").rename(tmp_path / "train" / "qrels" / "train.tsv")
    bad += [tmp_path / "train", tmp_path / "missing"]
    options = {"tasks": "documents", "data": str(tmp_path / "data"), "index_model": str(tmp_path / "model")}
    found = evaluate(["bm25", str(tmp_path / "model")], **options)
    lexical, model = found.scores.values()
    assert not [name for name in lexical if "asymmetric" in name]
    assert lexical["documents/tiny ndcg@10"] == pytest.approx((1 + 2 / (2 + 1 / np.log2(3))) / 3)
    assert model["asymmetric documents/tiny ndcg@10"] == model["documents/tiny ndcg@10"]
    sets = ",".join(map(str, [*bad, tmp_path / "data" / "retrieval" / "tiny"]))
    with pytest.raises(
        EvaluationFailed, match=r"^documents/no-text of \S*model failed: .* \(4 more failed\) The other"
    ) as failed:
        evaluate(tmp_path / "model", retrieval=sets)
    (row,) = failed.value.result.results["models"]
    assert list(row["failed"]) == [f"documents/{path.name}" for path in bad] and "documents/tiny map" in row["scores"]
    assert "only of train (train.tsv); add them, or give --split=train" in row["failed"]["documents/train"]
    assert "is neither a folder" in row["failed"]["documents/missing"]
    with pytest.raises(EvaluationFailed, match="9 more failed") as failed:
        evaluate(["bm25", tmp_path / "model"], tasks="documents", retrieval=f"{sets},{write_set(tmp_path / 'other')}")
    both = failed.value.result.scores.values()
    assert len(both) == 2 and not any("documents/average ndcg@10" in scores for scores in both)
    assert not any("\n" in line for line in row["failed"].values())
    with pytest.raises(InputError, match="is not a cross-encoder"):
        evaluate(tmp_path / "model", tasks="documents", retrieval=sets, reranker=str(tmp_path / "model"))


def test_the_index_is_encoded_once_for_all_models(tmp_path, monkeypatch):
    folder = str(write_set(tmp_path / "tiny"))
    for seed, name in enumerate(("index", "one", "two")):
        save(tiny_model(tmp_path / "tokenizer", seed=seed), tmp_path / name)
    encoded, embed = [], candidates.Candidate.embed

    def counting(candidate, *given, **options):
        plain = embed(candidate, *given, **options)

        def embed_and_count(texts, **role):
            encoded.append(Path(candidate.spec).name)
            return plain(texts, **role)

        return embed_and_count

    monkeypatch.setattr(candidates.Candidate, "embed", counting)
    students = [tmp_path / "one", tmp_path / "two"]
    found = evaluate(students, tasks="documents", retrieval=folder, index_model=str(tmp_path / "index"))
    assert all("asymmetric documents/tiny ndcg@10" in scores for scores in found.scores.values())
    assert encoded.count("one") == encoded.count("two") == 2  # queries and documents
    assert encoded.count("index") == 1


def test_queries_and_documents_are_read_behind_prompts_of_their_own(tmp_path):
    folder = str(write_set(tmp_path / "tiny"))
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "model")
    scores = [
        evaluate(tmp_path / "model", tasks="documents", retrieval=folder, **prompts).scores[str(tmp_path / "model")]
        for prompts in (
            {}, {"query_prompt": "cat: ", "document_prompt": "dog: "}, {"prompt": "cat: "}, {"query_prompt": "cat: ", "document_prompt": "cat: "},
        )
    ]  # fmt: skip
    embed = Embedder(load_model(str(tmp_path / "model"))).encode
    known = read_test(folder)
    in_roles = (lambda texts, prompt=prompt: embed([prompt + text for text in texts]) for prompt in ("cat: ", "dog: "))
    assert scores[1] == documents.scored(documents.ranked_by_vectors(*in_roles, known), known) != scores[0]
    assert scores[2] == scores[3]


def test_documents_are_scored_by_the_judgements_of_the_named_split(tmp_path):
    folder = str(with_dev(write_set(tmp_path / "tiny"), [("q2", "d1", 1)]))
    found = {split: evaluate("bm25", tasks="documents", retrieval=folder, split=split) for split in ("test", "dev")}
    scores = {split: result.scores["bm25"] for split, result in found.items()}
    assert scores["test"]["documents/tiny ndcg@10"] > scores["dev"]["documents/tiny-dev ndcg@10"] == 0
    assert found["dev"].results["protocol"]["documents/tiny-dev"].endswith("; judgements of the split dev")


def test_own_retrieval_sets_choose_the_checkpoint_of_a_training(tmp_path):
    folders = [write_set(tmp_path / name, form) for name, form in (("own", "tsv"), ("more", "jsonl"))]
    sets = ",".join(map(str, folders))
    lone = r"own has no judgements of the split dev \(qrels/dev.tsv\), only of test \(qrels.tsv\); add them, or give"
    with pytest.raises(InputError, match=f"{lone} --config.evals.retrieval_split=test.$"):
        dev.read_dev_sets(Config(objective={}, evals=Evals(retrieval=sets)))
    for folder in folders:
        with_dev(folder, [("q1", "d3", 1), ("q2", "d1", 1)])
    config = Config(objective={}, evals=Evals(retrieval=sets))
    own = dev.read_dev_sets(config)
    tasks = dev_metric.available_tasks(named={}, graded=own.pairs, agreement_task=None, retrieval=own.retrieval)
    asked = []

    def embed(sentences, *, role):
        asked.append(role)
        return np.eye(3)[[sum(word in text for word in ("sleep", "park")) for text in sentences]]

    expected = [
        documents.scored(
            documents.ranked_by_vectors(partial(embed, role="query"), partial(embed, role="document"), known), known
        )
        for known in own.retrieval
    ]
    asked.clear()
    chosen = dev_metric.chosen_metric(tasks)
    assert tasks[chosen](embed) == {
        "retrieval-dev/ndcg@10": pytest.approx(
            np.mean([score[f"documents/{name} ndcg@10"] for score, name in zip(expected, ("own", "more"), strict=True)])
        )
    }
    assert asked == ["query", "document"] * 2
    on_test = dev.read_dev_sets(Config(objective={}, evals=Evals(retrieval=sets, retrieval_split="test"))).retrieval
    assert documents.mean_ndcg(on_test, embed).keys() == {"retrieval-test/ndcg@10"}
    assert suite.headings(["retrieval-dev/ndcg@10"]) == {"retrieval-dev/ndcg@10": "retrieval dev, nDCG@10"}
    assert dev.held_out_rows(Evals(retrieval=sets), rows=1000) == 0
    assert dev.held_out_rows(Evals(retrieval=sets, best="agreement/recall@10"), rows=1000) == 100
    assert tasks[chosen](Reranker()) == {}
    with pytest.raises(InputError, match="student.kind=cross_encoder is a cross-encoder; leave it out"):
        dev.read_dev_sets(replace(config, student=CrossEncoder()))
    with pytest.raises(InputError, match="retrieval set x/y/z: x/y/z is neither a folder"):
        dev.read_dev_sets(Config(objective={}, evals=Evals(retrieval="x/y/z")))
