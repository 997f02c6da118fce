"""Evaluations replace no file of others, and leave nothing out without a word."""

import pytest

import jaxdistill
from jaxdistill import evaluate
from jaxdistill.core import InputError
from jaxdistill.models.checkpoints.folder import save

from eval_cases import write_set
from program import refused
from tiny_models import tiny_model


def test_relevant_documents_that_the_corpus_lacks_count_as_never_found(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "tiny")
    judged = [("q1", "d1", 1), ("q1", "lost", 1), ("q2", "lost", 1), ("q2", "gone", 1), ("q2", "d9", 0)]
    folder = write_set(tmp_path / "set", qrels=judged)
    (row,) = jaxdistill.evaluate(tmp_path / "tiny", retrieval=folder).results["models"]
    assert f"{folder}/corpus.tsv.gz lacks 2 of the relevant documents; they count as never found" in caplog.text
    assert row["scores"]["documents/set recall@10"] == pytest.approx(1 / 4)


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Two models, a text and graded pairs in the working directory."""
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("one", "two")):
        save(tiny_model(tmp_path / "tokenizer", seed=seed), tmp_path / name)
    (tmp_path / "a.txt").write_text("the cat sleeps\nrain\n")
    (tmp_path / "p.tsv").write_text("1\tthe cat\train\n2\tthe dog\ta dog\n3\ta\tb\n")
    return tmp_path


def test_evaluate_replaces_no_file_of_others_and_no_results_of_other_inputs(models, capsys):
    arguments, out = ["--model=one", "--pairs=p.tsv"], models / "results.json"
    (models / "report").mkdir()
    for page, more in (out, []), (models / "report" / "index.html", ["--out=report/"]):
        page.write_text('{"accuracy": 1.0}')
        said = refused(evaluate, [*arguments, *more], capsys)
        assert f"{page.name} is not of evaluate; move it, or give another" in said
        assert page.read_text() == '{"accuracy": 1.0}'
    out.unlink()
    evaluate.main(arguments)
    evaluate.main(arguments)  # the same again
    before = out.read_text()
    for other in (["--model=two"], ["--model=one", "--prompt=rain "], ["--model=one", "--tasks=geometry,pairs"]):
        said = refused(evaluate, [*other, arguments[1]], capsys)
        assert f"results.json was made from other inputs ({other[-1][2:].partition('=')[0]} was " in said
    with pytest.raises(InputError, match="results.json was made from other inputs"):
        jaxdistill.evaluate("two", pairs="p.tsv", out="results.json")
    pairs = (models / "p.tsv").read_text()
    (models / "p.tsv").write_text(pairs.replace("3\ta", "0\ta"))
    assert "results.json was made from other inputs (pairs was" in refused(evaluate, arguments, capsys)
    (models / "p.tsv").write_text(pairs)
    assert out.read_text() == before
