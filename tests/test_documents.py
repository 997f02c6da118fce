"""Retrieval of documents: sets in BEIR's forms, measures against trec_eval, roles, the index of another model."""

import fnmatch
import json
from dataclasses import replace

import datasets
import numpy as np
import pytest
import pytrec_eval
from pyarrow import Table, parquet

from jaxdistill.config.options import Config, Evals
from jaxdistill.core import InputError, PairScorer
from jaxdistill.evals import documents, suite
from jaxdistill.evals.documents import ordered, query_measures, read_set, set_files
from jaxdistill.evals.evaluation import Sources
from jaxdistill.models.students import CrossEncoder
from jaxdistill.objectives.simcse import SimCSE
from jaxdistill.training import dev

from eval_cases import DOCUMENTS, QRELS, QUERIES, read_test, with_dev, write_set


def test_measures_equal_those_of_trec_eval():
    rng = np.random.default_rng(0)
    names = [f"d{number}" for number in range(300)]
    judged = {
        f"q{query}": {name: int(rng.integers(-1, 4)) for name in rng.choice(names, 20, replace=False)}
        | {names[query]: 2}
        for query in range(40)
    } | {"q40": {names[0]: 0, names[1]: -1}}
    scores = rng.integers(0, 40, (41, 250)) / 7  # many ties
    rows = np.stack([rng.permutation(300)[:250] for _ in judged])
    empty = dict(documents=dict.fromkeys(names, ""), queries=dict.fromkeys(judged, ""), queries_in_corpus=())
    test_set = documents.RetrievalSet(name="drawn", split="test", judged=judged, **empty)
    rankings = dict(zip(judged, ordered((scores, rows), test_set), strict=True))
    runs = {
        query: {names[row]: float(score) for row, score in zip(*pair, strict=True)}
        for query, pair in zip(judged, zip(rows, scores, strict=True), strict=True)
    }
    trec_measures = {"ndcg_cut.10", "recall.10,100", "map", "recip_rank"}
    expected = pytrec_eval.RelevanceEvaluator(judged, trec_measures).evaluate(runs)
    top = {query: {name: 10.0 - rank for rank, name in enumerate(ranked[:10])} for query, ranked in rankings.items()}
    first = pytrec_eval.RelevanceEvaluator(judged, {"recip_rank"}).evaluate(top)
    mean = lambda name, measures=expected: np.mean([measures[query][name] for query in judged])  # noqa: E731 - short
    actual = [query_measures(rankings[query], judged[query]) for query in judged]
    assert {name: np.mean([row[name] for row in actual]) for name in actual[0]} == pytest.approx(
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
    test_set = read_test(write_set(tmp_path / "tiny"))
    ranking = documents.ranked_by_vectors(embed, embed, test_set)
    scores = documents.scored(ranking, test_set, "tiny").scores
    # q1: d1, d3, d2; q2: d3, d1, d2; q4 has no relevant document.
    assert scores["tiny ndcg@10"] == pytest.approx((1 + 1 / np.log2(4)) / 3)
    assert scores["tiny mrr@10"] == pytest.approx((1 + 1 / 3) / 3)
    other = documents.ranked_by_vectors(embed, lambda texts: embed(texts)[:, ::-1], test_set)  # another model's index
    assert documents.scored(other, test_set, "tiny").scores["tiny map"] < scores["tiny map"]


def test_a_query_that_is_a_document_does_not_find_itself(tmp_path):
    corpus = [("q1", "Topic", "Do cats sleep?"), ("q2", "", "It rains."), ("q3", "", "Who?"), ("d1", "", "They sleep.")]
    queries = [("q1", "Do cats sleep?"), ("q2", "Where do dogs run?"), ("q3", "Who?")]
    qrels = [("q1", "d1", 1), ("q2", "q2", 1), ("q3", "q3", 1)]
    folder = str(write_set(tmp_path / "tiny", corpus=corpus, queries=queries, qrels=qrels))
    test_set = read_test(folder)
    assert test_set.queries_in_corpus == {"q1", "q3"}  # q2 has the id of another text
    ranking = np.array([[0.9, 0.3, 0.2, 0.8]] * 3), np.array([[0, 1, 2, 3]] * 3)
    names = ordered(ranking, test_set)
    assert names == [["d1", "q2", "q3"], ["q1", "d1", "q2", "q3"], ["q1", "d1", "q2", "q3"]]  # q3 is judged relevant

    def by_topic(texts, role=""):  # without themselves, all find their answers first
        return np.array(
            [(1.0, 0.1 * text.startswith("They")) if "sleep" in text else (-1.0, "Who" in text) for text in texts]
        )

    assert documents.mean_ndcg([test_set], by_topic) == {"retrieval-test/ndcg@10": 1.0}


def test_all_sets_of_a_data_folder_are_scored_and_two_of_one_name_are_refused(tmp_path):
    for name in ("a/plain", "retrieval/more", "retrieval/plain"):
        write_set(tmp_path / name)
    plan = suite.planned(["documents"], Sources(data=str(tmp_path), index_model="other"))
    assert [test_set.name for _, test_set in plan.sets] == [
        f"{prefix}documents/{name}" for name in ("more", "plain") for prefix in ("", "asymmetric ")
    ]
    folders = (str(tmp_path / "a" / "plain"), str(tmp_path / "retrieval" / "plain"))
    with pytest.raises(InputError, match="two sets are called 'documents/plain'; rename one"):
        suite.planned(["documents"], Sources(retrieval=folders))


def test_own_retrieval_sets_choose_the_checkpoint_of_a_training(tmp_path):
    folders = [write_set(tmp_path / name, form) for name, form in (("own", "tsv"), ("more", "jsonl"))]
    evals = Evals(retrieval=",".join(map(str, folders)))
    config = Config(objective=SimCSE(), evals=evals)
    lone = r"own is not a retrieval set .* with judgements of the split dev: .* judgements of test. Add them, or give"
    with pytest.raises(InputError, match=f"{lone} --config.evals.retrieval_split=test.$"):
        dev.dev_tasks(config)
    for folder in folders:
        with_dev(folder, [("q1", "d3", 1), ("q2", "d1", 1)])
    roles = []

    def embed(sentences, *, role):
        roles.append(role)
        return np.eye(3)[[sum(word in text for word in ("sleep", "park")) for text in sentences]]

    ((metric, task),) = dev.dev_tasks(config).items()
    # Both sets: d3 is the second of q1, behind d1; d1 is the second or third of q2, behind d2 or d2 and d3.
    (score,) = task(embed).values()
    assert metric == "retrieval-dev/ndcg@10" and 0 < score < 1 and roles == ["query", "document"] * 2
    assert task(PairScorer(lambda *_: [], embed)) == {}
    with pytest.raises(InputError, match="is for students with vectors, not for cross_encoder"):
        dev.dev_tasks(replace(config, student=CrossEncoder()))


@pytest.mark.parametrize("form", ["tsv", "jsonl", "parquet"])
def test_all_forms_give_the_same_set(tmp_path, form):
    actual = read_test(write_set(tmp_path / "tiny", form))
    assert actual.name == "tiny"
    assert actual.documents == {"d1": "Cats They sleep.", "d2": "Dogs run in the park.", "d3": "Rain It rains in May."}
    assert list(actual.queries) == ["q1", "q2", "q4"]  # that are judged
    assert actual.judged == {"q1": {"d1": 2, "d3": 1}, "q2": {"d2": 1}, "q4": {"d1": 0}}
    headers = {
        "corpus": ("_ID", "TITLE", "TEXT"),
        "queries": ("ID", "TEXT"),
        "qrels": ("QUERY-ID", "CORPUS-ID", "SCORE"),
    }
    parts = {"corpus": DOCUMENTS, "queries": QUERIES, "qrels": QRELS}
    parts = {part: [header, *parts[part]] for part, header in headers.items()}
    assert read_test(write_set(tmp_path / "upper" / "tiny", **parts)) == actual


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"qrels": [("q1", "d9", 1)]}, r"qrels.tsv: no query has a relevant document that .*corpus.tsv.gz has"),
        ({"qrels": [*QRELS, ("q1", "d1", 1)]}, r"qrels.tsv has two grades of d1 for the query q1; keep one"),
        (
            {"qrels": [("q1", "d1", "yes"), ("q1", "d1", "yes")]},
            r"qrels.tsv: a judgement is .* separated by tabs .invalid literal for int.*yes",
        ),
        ({"qrels": [("q1", "d1", "0.5"), *QRELS]}, r"a judgement is .* a whole number, .*int.*0.5"),  # no header
        ({"qrels": [("doc_id", "query", "grade"), ("d1", "q1", 1)]}, "column doc_id before the query's; exchange them"),
        ({"corpus": [*DOCUMENTS, ("d1", "", "again")]}, r"corpus.tsv.gz has the id 'd1' twice"),
        ({"corpus": [*DOCUMENTS, ("d1 end\nof a line", "", "a")]}, "'d1 end' has no text; remove it, or a line end"),
    ],
)
def test_a_faulty_set_is_one_line_with_its_file(tmp_path, changed, words):
    with pytest.raises(InputError, match=words) as error:
        read_test(write_set(tmp_path / "bad", **changed))
    assert "\n" not in str(error.value)


def test_relevant_documents_that_the_corpus_lacks_count_as_never_found(tmp_path, caplog):
    judged = [("q1", "d1", 1), ("q1", "lost", 1), ("q2", "lost", 1), ("q2", "gone", 1), ("q2", "d9", 0)]
    test_set = read_test(folder := write_set(tmp_path / "set", qrels=judged))
    assert f"{folder}/corpus.tsv.gz lacks 2 of the relevant documents; they count as never found" in caplog.text
    ranking = documents.ranked_by_vectors(embed, embed, test_set)
    assert documents.scored(ranking, test_set, "set").scores["set recall@10"] == pytest.approx(1 / 4)


def test_tables_may_have_headers_titles_may_be_missing_and_ids_may_be_numbers(tmp_path):
    swapped = [("_id", "text", "title"), *((name, text, title) for name, title, text in DOCUMENTS)]
    test_set = read_test(write_set(tmp_path / "a", corpus=swapped, queries=[("Query-ID", "Text"), *QUERIES]))
    assert test_set.documents["d1"] == "Cats They sleep." and len(test_set.documents) == 3
    rows = [("q1", "d1", "+1"), ("q1", "d1", "1.0"), ("q1", "unknown", "0"), ("q2", "d2", "-1")]
    assert read_test(write_set(tmp_path / "b", qrels=rows)).judged == {"q1": {"d1": 1, "unknown": 0}, "q2": {"d2": -1}}
    numbers = {"corpus": [(7, float("nan"), "They sleep.")], "queries": [(1, "Do cats sleep?")], "qrels": [(1, 7, 1)]}
    folder = write_set(tmp_path / "c", "jsonl", **numbers)
    lines = [json.dumps({"id": 1, "text": text}) for text in (["Do cats", "sleep?"], "\ud83d")] + ['\n{"id": 1,']
    for line, words in zip(lines, ("record 1 is no text", "surrogates not allowed", ":2 is no JSON"), strict=True):
        (folder / "queries.jsonl").write_text(line)
        with pytest.raises(InputError, match=f"queries.jsonl.*{words}"):
            read_test(folder)
    (folder / "queries.jsonl").write_text(json.dumps({"id": 1, "text": "Do cats sleep?"}))
    path = folder / "qrels" / "test.tsv"
    path.write_text(path.read_text() + "\n \n")
    test_set = read_test(folder)
    assert (test_set.judged, test_set.documents) == ({"1": {"7": 1}}, {"7": "They sleep."})
    path.write_text("score\tcorpus-id\tquery-id\n2\t7\t1\n")
    (folder / "corpus.jsonl").rename(folder / "kept")
    (folder / "corpus.tsv").write_text('"_id"\t"title"\t"text"\n"7"\t""\t"' + "long " * 30_000 + '"\n')
    test_set = read_test(folder)
    assert test_set.judged == {"1": {"7": 2}} and len(test_set.documents["7"]) == 149_999
    folder = write_set(tmp_path / "d", "parquet")
    parquet.write_table(Table.from_pylist([{"query-id": "q1", "text": "a"}]), folder / "queries" / "a.parquet")
    with pytest.raises(InputError, match="a.parquet: each record needs _id .or id. and text .KeyError: 'id'"):
        read_test(folder)


def test_a_set_of_the_hub_is_fetched_with_its_judgements(tmp_path, monkeypatch):
    def snapshot_download(name, *, repo_type, allow_patterns):
        source, fetched = tmp_path / "hub" / name, tmp_path / "snapshots" / name / "0a1b2c"
        if repo_type != "dataset" or not source.is_dir():
            raise OSError(f"404: no {repo_type} {name}")
        for path in source.rglob("*"):
            part = str(path.relative_to(source))
            if path.is_file() and any(fnmatch.fnmatch(part, pattern) for pattern in allow_patterns):
                (fetched / part).parent.mkdir(parents=True, exist_ok=True)
                (fetched / part).write_bytes(path.read_bytes())
        return str(fetched)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    (write_set(tmp_path / "hub" / "ORG" / "tiny", "parquet") / "corpus-embeddings.npy").write_bytes(b"large")
    test_set = read_test("ORG/tiny")
    assert test_set.name == "tiny" and test_set.judged == {"q1": {"d1": 2, "d3": 1}, "q2": {"d2": 1}, "q4": {"d1": 0}}
    assert not list(tmp_path.glob("snapshots/**/*.npy"))
    write_set(tmp_path / "hub" / "ORG" / "other", "parquet")
    assert set_files("ORG/tiny+ORG/other", split="test").name == "tiny+other"
    with pytest.raises(InputError, match="ORG/absent is no folder, and cannot be fetched"):
        set_files("ORG/absent", split="test")


def test_nanobeir_is_a_collection_of_the_hub_with_judgements_of_1(tmp_path, monkeypatch):
    queries = [{"_id": "q1", "text": "rain"}, {"_id": "q2", "text": "cats"}]
    corpus = [{"_id": f"d{n}", "text": text} for n, text in enumerate(("It rains.", "A cat.", "Snow."))]
    rows = {"queries": queries, "corpus": corpus, "qrels": [{"query-id": "q1", "corpus-id": "d0"}, {"query-id": "q2", "corpus-id": "d1"}]}  # fmt: skip
    requests = []

    def load_dataset(name, part, *, split):
        requests.append((name, part, split))
        return datasets.Dataset.from_list(rows[part])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path))
    plan = suite.planned(["nanobeir"], Sources(data=""))
    assert len(plan.sets) == 13 and not plan.absent
    assert ("sentence-transformers/NanoBEIR-en", "qrels", "NanoTouche2020") in requests and len(requests) == 39
    read = read_test("sentence-transformers/NanoBEIR-en:NanoNQ")  # from the cache
    assert (read.name, read.judged, len(requests)) == ("NanoNQ", {"q1": {"d0": 1}, "q2": {"d1": 1}}, 39)


def test_each_split_has_its_own_judgements_and_a_lone_file_counts_as_test(tmp_path):
    folder = with_dev(write_set(tmp_path / "tiny"), [("q2", "d2", 1)])
    on_dev, test = (set_files(str(folder), split=split) for split in ("dev", "test"))
    assert (on_dev.qrels.name, test.qrels.name) == ("dev.tsv", "qrels.tsv")
    assert (read_set(on_dev).split, read_set(on_dev).judged) == ("dev", {"q2": {"d2": 1}})
    error = (
        r"tiny is not .* with judgements of the split train: .* qrels/train.tsv; it has judgements of dev, test. Add"
    )
    with pytest.raises(InputError, match=f"{error} them, or give split=dev.$"):
        set_files(str(folder), split="train")
    assert set_files(str(folder.rename(tmp_path / "a:b")), split="dev").name == "a:b"
    hub_folder = write_set(tmp_path / "hub", "parquet")
    (tmp_path / "hub-qrels" / "dev.tsv").write_text("q1\td2\t1\n")
    assert read_set(set_files(str(hub_folder), split="dev")).judged == {"q1": {"d2": 1}}
