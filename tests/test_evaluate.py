"""The evaluation program and function: tasks, missing and failing sets, caches, results, reports."""

import dataclasses
import json
import re

import numpy as np
import pytest
from test_sts import ROWS, write_tsv

import jaxdistill
from jaxdistill import evaluate
from jaxdistill.core import InputError
from jaxdistill.evals import documents, sts, suite
from jaxdistill.evals.agreement import held_out_task
from jaxdistill.evals.evaluation import Evaluation, Model, TestSet, spearman
from jaxdistill.evals.geometry import whitening, whitening_on
from jaxdistill.evals.pairs import read_pairs
from jaxdistill.evaluate import EvaluationFailed
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.models.vectors import similarities

import program
from conftest import TEACHER
from eval_cases import GRADED, read_test, run, sts_scores, write, write_orders
from tiny_models import tiny_model
from tiny_text import made_up

TEACHER_SCORES = {"sts-b": 82.03}
LABELLED = ["label\tsentence"] + [f"{number % 2}\t{['cat', 'rain'][number % 2]} {number % 7}" for number in range(60)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path):
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "tiny")
    return str(tmp_path / "tiny")


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    for entry in sts.SETS.values():
        write_tsv(folder / "sts" / entry.file, ROWS)
    write(folder / "sts" / "stsb.dev.tsv.gz", GRADED)
    write(folder / "transfer" / "mr.all.tsv.gz", LABELLED)
    write(folder / "transfer" / "cr.all.tsv.gz", LABELLED)
    write_tsv(tmp_path / "own.tsv.gz", ROWS)
    return folder


def test_averages_need_all_sets_and_come_after_them():
    scores = {f"auc/{name}": value for name, value in (("qqp", 0.5), ("qnli", 0.6), ("mrpc", 0.7))}
    assert suite.with_averages(scores) == {**scores, "auc/average": pytest.approx(0.6)}
    assert suite.with_averages({"auc/qqp": 0.5}) == {"auc/qqp": 0.5}
    scores = {"sts12": 0.1, "sts12/a": 0.9, "sts12/mean": 0.9, "sts12/weighted mean": 0.8, "auc/qqp": 0.5}
    scores |= {name: 0.2 for name in sts.TESTS[1:]}
    averages = {"average": (0.1 + 6 * 0.2) / 7, "average/mean": (0.9 + 6 * 0.2) / 7, "average/weighted mean": 2 / 7}
    averaged = suite.with_averages(scores)  # sets without subsets count as a whole
    assert averaged == pytest.approx(scores | averages) and list(averaged)[-4:] == [*averages, "auc/qqp"]
    scores = {"documents/a ndcg@10": 0.5, "documents/b ndcg@10": 0.7, "documents/b map": 0.1}
    average = scores | {"documents/average ndcg@10": pytest.approx(0.6)}
    assert suite.with_averages(scores) == suite.with_averages(scores, failed=["sts12"]) == average
    assert suite.with_averages(scores, failed=["documents/c"]) == scores
    crossed = {"documents/a+b ndcg@10": 0.1}
    assert suite.with_averages(scores | crossed) == average | crossed


def test_scores_are_plain_finite_numbers(tmp_path):
    def values(score):
        evaluation = Evaluation(task="mine", scores=(), sets=lambda sources: (), run=lambda *_: {"mine/a": score})
        result = suite.measured(evaluation, TestSet(name="mine", is_repeatable=False), Model(embed=list), tmp_path)
        return result.scores["mine/a"]

    assert type(values(np.float32(0.5))) is float and values(np.float32(0.5)) == 0.5
    for wrong in (float("nan"), np.float32("inf")):
        with pytest.raises(InputError, match="mine: the score 'mine/a' is .*, no finite number"):
            values(wrong)


def test_scores_are_printed_and_written(tiny, data, tmp_path, capsys):
    out = tmp_path / "results" / "results.json"
    files = [f"--data={data}", f"--pairs={tmp_path / 'own.tsv.gz'}", f"--out={out}"]
    evaluate.main([f"--model={tiny}", "--tasks=sts,pairs,transfer,speed", "--paper=congen:tinybert-l4", *files])
    report = json.loads(out.read_text())
    (paper,) = report["papers"]
    assert len(paper["scores"]) == 10 and paper["scores"]["sts12"] == 0.743
    (row,) = report["models"]
    expected = sts_scores(Embedder(load_model(tiny)).encode, data) | {"pairs": row["scores"]["sts12"]}
    assert {name: row["scores"][name] for name in expected} == pytest.approx(expected)
    assert (row["digest"], row["pooling"]) == (load_model(tiny).digest(), "mean")
    assert row["scores"]["speed/parameters"] == row["parameters"] and row["size_bytes"] > 0 and not row["failed"]
    assert set(report["protocol"]) == set(report["files"])
    assert "SimCSE" in report["protocol"]["sts12"] and "folds" in report["protocol"]["transfer/mr"]
    gold = read_pairs(tmp_path / "own.tsv.gz").scores
    assert spearman(gold, np.array(row["details"]["pairs"]), name="pairs") == pytest.approx(row["scores"]["pairs"])
    assert {*sts.TESTS} <= row["details"].keys()
    assert report["seed"] == 1111 and {"jaxdistill", "jax", "python"} <= set(report["versions"])
    captured = capsys.readouterr()
    assert f"{100 * expected['average']:.2f}" in captured.out and "sick-r" in captured.out
    assert re.search(rf"STS, average of 7 +{100 * expected['average']:.2f} +78.54\b", captured.out)
    assert [line.split(":")[0] for line in captured.err.splitlines() if "skipped" in line] == ["skipped"] * 5


def test_results_say_how_each_model_reads(tmp_path):
    """The index model takes --max_length and --document_prompt."""
    folder = write_orders(tmp_path / "set")
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "student")
    save(tiny_model(tmp_path / "tokenizer", seed=1), tmp_path / "teacher")
    index_model = [f"--index_model={tmp_path / 'teacher'}"]
    prompts = ["--query_prompt=cat: ", "--document_prompt=dog: ", "--max_length=6"]
    options = [f"--model={tmp_path / 'student'}", "--tasks=documents", "--data=", f"--retrieval={folder}", *index_model]
    evaluate.main([*options, *prompts, f"--out={tmp_path}/report/"])
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    (row,), index = results["models"], results["index_model_reading"]
    assert (row["max_length"], row["role_prompts"]) == (6, {"query": "cat: ", "document": "dog: "})
    assert (index["max_length"], index["role_prompts"]) == (6, {"query": "the cat ", "document": "dog: "})
    assert (results["inputs"]["data"], results["inputs"]["retrieval"]) == ("", [str(folder)])


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_truncated_vectors_have_a_row_for_each_width(tmp_path, similarity):
    folder = write_orders(tmp_path / "set")
    model = tiny_model(tmp_path / "tokenizer")
    definition = dataclasses.replace(model.definition, similarity=similarity)
    save(dataclasses.replace(model, definition=definition), tiny := str(tmp_path / "tiny"))
    options = dict(retrieval=folder, index_model=tiny, dims=(8, 16))
    result = jaxdistill.evaluate(tiny, **options)
    assert [row["vector_bytes"] for row in result.results["models"]] == [32, 64]
    test_set, embedder = read_test(folder), Embedder(load_model(tiny))
    query, document = (
        lambda texts, role=role: embedder.encode(texts, role=role)[:, :8] for role in ("query", "document")
    )
    ranking = documents.ranked_by_vectors(query, document, test_set, similarity=similarity)
    expected = documents.scored(ranking, test_set, f"documents/{test_set.name}").scores
    scores = result.scores[f"{tiny} (8)"]
    assert {name: scores[name] for name in expected} == pytest.approx(expected)
    assert {name: scores[f"asymmetric {name}"] for name in expected} == pytest.approx(expected)
    for wrong in (17, 0, "many"):
        with pytest.raises(InputError, match=f"dims={wrong}: the vectors of .*tiny have 16 numbers"):
            jaxdistill.evaluate(tiny, **options | {"dims": wrong})
    with pytest.raises(InputError, match=f"dims=8: {tiny}.{tiny} scores pairs and has no vectors to truncate"):
        jaxdistill.evaluate(f"{tiny}+{tiny}", **options)


def test_results_name_the_hub_as_source_and_its_scores_are_not_cached(tiny, data, cache, monkeypatch):
    pairs = sts.read_set("sts-b", data)
    monkeypatch.setattr(sts, "read_set", lambda *_: pairs)
    results = jaxdistill.evaluate(tiny, tasks="sts-b", data="").results
    assert "mteb/stsbenchmark-sts on the Hugging Face hub" in results["protocol"]["sts-b"]
    assert not (cache / "scores").exists()


def test_an_ensemble_scores_pairs_by_the_mean_cosine_and_has_no_vectors(tiny, data, tmp_path, capsys):
    save(tiny_model(tmp_path / "tokenizer", seed=1), tmp_path / "other")
    models, out = [tiny, str(tmp_path / "other")], tmp_path / "results.json"
    options = ["--tasks=sts-b-dev,geometry", f"--data={data}", f"--out={out}"]
    _, errors = run([f"--model={(spec := '+'.join(models))}", f"--model={tiny}", *options], capsys, status=2)
    ensemble, single = json.loads(out.read_text())["models"]
    pairs = sts.read_set("sts-b-dev", data)
    cosines = [similarities(Embedder(load_model(model)).encode, pairs.first, pairs.second) for model in models]
    expected = spearman(pairs.scores, np.mean(cosines, axis=0), name="")
    assert ensemble["scores"] == {"sts-b-dev": pytest.approx(expected)}
    assert single["scores"]["sts-b-dev"] != pytest.approx(expected) and "geometry/anisotropy" in single["scores"]
    assert ensemble["parameters"] == 2 * single["parameters"] and len(ensemble["members"]) == 2
    assert [line for line in errors if line.startswith("failed")] == [
        f"failed: geometry of {spec}: {spec} is an ensemble: it has no vectors of sentences; score pairs."
    ]


def test_quotes_of_a_table_are_read_as_its_prefix_says(tiny, tmp_path):
    """Also where scores are cached."""
    sentences = ['"rain"', '"cat"', '"the dog"', "cat", "dog"]
    rows = [f"{number}\tthe cat sleeps\t{text}" for number, text in enumerate(sentences)]
    path = write(tmp_path / "own.tsv", ["score\tsentence1\tsentence2", *rows])
    raw, quoted = (
        jaxdistill.evaluate(tiny, pairs=f"{prefix}:{path}", entities="").scores[tiny] for prefix in ("raw", "quoted")
    )
    assert raw != quoted


def test_a_loaded_model_is_scored_as_it_was_loaded(tiny, data):
    pairs = data.parent / "own.tsv.gz"
    loaded = jaxdistill.load(tiny, max_length=4)
    as_loaded, short = jaxdistill.evaluate(loaded, pairs=pairs), jaxdistill.evaluate(tiny, max_length=4, pairs=pairs)
    assert as_loaded.scores == short.scores != jaxdistill.evaluate([tiny], pairs=pairs).scores
    assert as_loaded.results["models"][0]["max_length"] == 4 and as_loaded.results_file is as_loaded.report is None
    with pytest.raises(
        InputError, match="max_length and prompt are of models given by name; give them to jaxdistill.load"
    ):
        jaxdistill.evaluate(loaded, pairs=pairs, max_length=8)
    for duplicates in ([jaxdistill.load(tiny)], [tiny]):
        with pytest.raises(InputError, match="tiny is given more than once, but scores are named by model"):
            jaxdistill.evaluate([loaded, *duplicates], pairs=pairs)


def test_models_are_compared_with_a_teacher_on_a_text(tiny, tmp_path):
    save(tiny_model(tmp_path / "tokenizer", seed=1), tmp_path / "teacher")
    teacher = str(tmp_path / "teacher")
    sentences = [f"the cat sleeps {number} rain {number % 7}" for number in range(20)]
    (tmp_path / "text.txt").write_text("\n".join([*sentences, *sentences]) + "\n")
    scores = jaxdistill.evaluate(tiny, text=tmp_path / "text.txt", teacher=teacher).scores
    vectors = jaxdistill.load(teacher, precision="float32").encode(sentences)
    task = held_out_task(dict(zip(sentences, vectors, strict=True)), seed=0)
    assert scores[tiny] == pytest.approx(task(jaxdistill.load(tiny, precision="float32").encode))
    assert scores[teacher] == pytest.approx(dict.fromkeys(task.metrics, 1.0)) and scores[tiny]["agreement/recall@1"] < 1
    with pytest.raises(InputError, match="needs text=FILE with sentences and teacher=MODEL; give both"):
        jaxdistill.evaluate(tiny, text=tmp_path / "text.txt")


def test_whitened_vectors_have_mean_zero_and_the_identity_as_covariance_where_they_vary():
    random = np.random.default_rng(0)  # of unequal variances, and correlated
    mixing = random.standard_normal((8, 8)) * np.logspace(0, -2, 8)
    vectors = (random.standard_normal((4000, 8)) @ mixing + 3.0).astype(np.float32)
    white = whitening(vectors)(vectors)
    np.testing.assert_allclose(white.mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(np.cov(white, rowvar=False), np.eye(8), atol=1e-3)
    vectors[:, 3] = vectors[:, 4]
    expected = np.diag([1.0] * 7 + [0.0])
    np.testing.assert_allclose(np.cov(whitening(vectors)(vectors), rowvar=False), expected, atol=1e-3)


def test_whitened_vectors_are_scored_and_not_mistaken_for_others(tiny, data, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(made_up(60)) + "\n")
    embed = Embedder(load_model(tiny)).encode
    transform = whitening_on(embed, [str(tmp_path / "text.txt")])
    pairs = sts.read_set("sts-b-dev", data)
    plain, whitened = (
        spearman(pairs.scores, similarities(encoder, pairs.first, pairs.second), name="")
        for encoder in (embed, lambda texts: transform(embed(texts)))
    )
    assert plain != pytest.approx(whitened)
    options = {"whiten": tmp_path / "text.txt"}
    for extra, score in (({}, plain), (options, whitened), ({}, plain)):
        result = jaxdistill.evaluate(tiny, tasks="sts-b-dev", data=data, **extra)
        assert result.scores[tiny]["sts-b-dev"] == pytest.approx(score)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--whiten=x.txt", "--index_model=absent"], "so it excludes index_model"),
        (["--whiten=x.txt", "--dims=4"], "so it excludes whiten"),
        (
            ["--tasks=sts-b-dev", "--data=DATA", "--whiten=DATA/sts/stsb.dev.tsv.gz"],
            "is a test set of this evaluation",
        ),
    ],
)
def test_bad_options_are_one_clear_error_before_a_model_is_loaded(arguments, message, data):
    with pytest.raises(InputError, match=message) as error:
        evaluate.main(["--model=absent", "--out=", *(text.replace("DATA", str(data)) for text in arguments)])
    assert "\n" not in str(error.value)


def test_a_failing_evaluation_does_not_stop_the_others(tiny, data, tmp_path, capsys):
    """A malformed line, a label of the wrong type, a model of an unknown family: a line each, the rest goes on."""
    write(data / "transfer" / "mr.all.tsv.gz", [*LABELLED, "1\tone\ttoo many"])
    write(data / "transfer" / "subj.all.tsv.gz", ["label\tsentence", "positive\tfine"])
    unknown, out = tmp_path / "unknown", tmp_path / "report"
    unknown.mkdir()
    (unknown / "config.json").write_text('{"model_type": "mamba"}')
    options = ["--tasks=transfer,geometry", f"--data={data}", f"--out={out}/"]
    _, errors = run([f"--model={unknown}", f"--model={tiny}", *options], capsys, status=2)
    report = json.loads((out / "results.json").read_text())
    (model,) = report["models"]
    assert set(model["failed"]) == {"transfer/mr", "transfer/subj"} and list(report["failed"]) == [str(unknown)]
    assert "mr.all.tsv.gz (Error tokenizing data. C error: Expected 2 fields" in model["failed"]["transfer/mr"]
    assert "label 'positive' is not one of 0, 1" in model["failed"]["transfer/subj"]
    assert {"transfer/cr", "geometry/anisotropy"} <= set(model["scores"]) and (out / "index.html").exists()
    assert len([line for line in errors if line.startswith("failed: ")]) == 3
    assert "mamba" in " ".join(errors) and errors[-1].startswith("error: 3 of the evaluations or models failed")
    with pytest.raises(
        EvaluationFailed, match="^transfer/mr of .*tiny failed: .*1 more failed.* error's `res"
    ) as failed:
        jaxdistill.evaluate(tiny, tasks="transfer", data=data)
    assert "transfer/cr" in failed.value.result.scores[tiny]


def test_a_finished_set_is_not_scored_twice_unless_the_precision_differs(tiny, data, capsys, monkeypatch):
    options = [f"--model={tiny}", "--tasks=transfer,geometry", f"--data={data}", "--out="]
    before, _ = run(options, capsys)

    def never(*_, **__):
        raise InputError("measured again")

    monkeypatch.setattr(Embedder, "encode", never)
    again, _ = run(options, capsys)
    assert again == before
    _, errors = run([*options, "--precision=bfloat16"], capsys, status=2)
    assert sum("measured again" in line for line in errors) == 3


def test_foreign_files_and_results_of_other_inputs_are_not_replaced(tiny, data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs, out = tmp_path / "own.tsv.gz", tmp_path / "results.json"
    (tmp_path / "link").symlink_to(pairs)
    arguments = [f"--model={tiny}", f"--pairs={pairs}"]
    evaluate.main(arguments)
    assert not out.exists()  # without --out, the scores are only printed
    arguments.append("--out=results.json")
    for input_file in (pairs, tmp_path / "link"):
        assert "is not of evaluate; move it" in program.refused(evaluate, [*arguments, f"--out={input_file}"], capsys)
    out.write_text('{"accuracy": 1.0}')
    line = program.refused(evaluate, arguments, capsys)
    assert "results.json is not of evaluate; move it, or give another" in line
    assert out.read_text() == '{"accuracy": 1.0}'
    out.unlink()
    evaluate.main(arguments)
    evaluate.main(arguments)  # the same again
    before = out.read_text()
    line = program.refused(evaluate, [*arguments, "--prompt=rain "], capsys)
    assert "results.json was made from other inputs (prompt was " in line
    write_tsv(pairs, ROWS[1:])
    assert "results.json was made from other inputs (pairs was" in program.refused(evaluate, arguments, capsys)
    assert out.read_text() == before


def test_the_teacher_has_its_published_scores(data_folder, tmp_path):
    out = tmp_path / "results.json"
    options = [f"--model={TEACHER}", f"--tasks={','.join(TEACHER_SCORES)}", f"--data={data_folder}", f"--out={out}"]
    program.run("evaluate", options, variables={"XLA_FLAGS": ""})
    (scores,) = [model["scores"] for model in json.loads(out.read_text())["models"]]
    assert {name: 100 * scores[name] for name in TEACHER_SCORES} == pytest.approx(TEACHER_SCORES, abs=0.02)
