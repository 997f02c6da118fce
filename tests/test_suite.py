"""What names mean, what is not there, what fails alone, and what is not measured twice."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from jaxdistill import candidates, scoring
from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.core import InputError, Scorer
from jaxdistill.evals import bitext, multilingual, sts, suite
from jaxdistill.evals.beir_files import set_files
from jaxdistill.evals.caches import EmbeddingCache, ScoreCache
from jaxdistill.evals.documents import specs
from jaxdistill.evals.evaluation import Sources
from jaxdistill.evals.pairs import pairs_spearman, read_pairs
from jaxdistill.paths import public_name
from jaxdistill.reporting.model_card import Checkpoint, Facts, Origin, write_facts
from jaxdistill.reporting.tables import as_text, score_table

from eval_cases import GRADED, on_a_circle, run, sts_scores, write
from tiny_models import tiny_model

LABELLED = ["label\tsentence"] + [f"{number % 2}\t{['cat', 'rain'][number % 2]} {number % 7}" for number in range(60)]


@pytest.fixture(autouse=True)
def no_memory_of_other_tests(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tiny(tmp_path):
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "tiny")
    return str(tmp_path / "tiny")


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    write(folder / "sts" / "stsb.dev.tsv.gz", GRADED)
    write(folder / "transfer" / "mr.all.tsv.gz", LABELLED)
    write(folder / "transfer" / "cr.all.tsv.gz", LABELLED)
    return folder


def units(names, **sources):
    return [unit.name for unit in suite.planned(names, Sources(**sources)).units]


def test_every_name_has_its_units(data_folder):
    groups = [name for name in suite.groups() if name != "agreement"]  # its text is the user's
    names, sources = units(groups, data=str(data_folder)), Sources(data=str(data_folder))
    assert names == [
        *sts.SETS,
        *(f"sts17/{track}" for track in multilingual.TRACKS),
        *(f"transfer/{name}" for name in ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")),
        *("nli/sick-e", "nli/snli", "auc/qqp", "auc/qnli", "auc/mrpc"),
        *(f"bitext/{name}" for name in bitext.SETS),
        *(
            "nearest",
            *(f"documents/{set_files(spec, split='test').name}" for spec in specs(sources)),
            "geometry",
            "speed",
        ),
    ]
    assert not suite.planned(groups, sources).absent
    assert all(unit.protocol for unit in suite.planned(groups, sources).units)


def test_entities_are_a_unit_a_language_and_asymmetric_retrieval_comes_with_an_index_model(tmp_path):
    files = tuple(str(write(tmp_path / name, ["query\tentity\tlabel"])) for name in ("de.tsv.gz", "fr.tsv.gz"))
    assert units(["retrieval"], entities=files) == ["entity/de", "entity/fr"]
    names = units(["retrieval"], entities=files[:1], asymmetric=True)
    assert names == ["entity/de", "asymmetric entity/de"]
    with pytest.raises(InputError, match="--entities has two files for 'de'"):
        units(["retrieval"], entities=(*files, str(tmp_path / "other.de.tsv")))


def test_german_and_french_tracks_are_scored_where_the_folder_has_them(tmp_path):
    for track in (*multilingual.TRACKS, "en-de"):
        write(tmp_path / "multilingual" / f"sts17.{track}.test.tsv.gz", ["1.0\ta\tb", "2.0\tc\td"])
    assert units(["multilingual"], data=str(tmp_path))[-2:] == ["sts17/en-tr", "sts17/en-de"]
    assert not suite.planned(["multilingual"], Sources(data=str(tmp_path))).absent


def test_what_is_not_there_is_a_line_each(data):
    plan = suite.planned(["transfer", "geometry", "nli"], Sources(data=str(data)))
    assert [unit.name for unit in plan.units] == ["transfer/mr", "transfer/cr", "geometry"]
    assert len(plan.absent) == 5 + 2
    assert plan.absent[0].reason == f"transfer/subj: {data}/transfer/subj.all.tsv.gz is not there."
    assert plan.absent[2].reason == f"transfer/sst2: {data}/transfer/sst2.train.tsv.gz is not there, and 2 more."


def test_without_a_data_folder_only_sts_is_left():
    plan = suite.planned(["sts", "transfer", "multilingual", "retrieval"], Sources())
    assert [unit.name for unit in plan.units] == list(sts.SETS)
    assert all("needs --data=FOLDER" in missing.reason for missing in plan.absent)


def test_averages_are_of_all_sets_of_a_group():
    scores = {f"auc/{name}": value for name, value in (("qqp", 0.5), ("qnli", 0.6), ("mrpc", 0.7))}
    assert suite.with_averages(scores) == {**scores, "auc/average": pytest.approx(0.6)}
    assert suite.with_averages({"auc/qqp": 0.5}) == {"auc/qqp": 0.5}


def test_the_averages_of_sts_stand_behind_its_sets_and_count_sets_without_subsets_as_a_whole():
    scores = {"sts12": 0.1, "sts12/a": 0.9, "sts12/mean": 0.9, "sts12/weighted mean": 0.8, "auc/qqp": 0.5}
    scores |= {name: 0.2 for name in sts.TESTS[1:]}
    found = suite.with_averages(scores)
    averages = {"average": (0.1 + 6 * 0.2) / 7, "average/mean": (0.9 + 6 * 0.2) / 7, "average/weighted mean": 2 / 7}
    assert found == pytest.approx(scores | averages)
    assert list(found)[-4:] == [*averages, "auc/qqp"]
    assert "average/mean" not in suite.with_averages({name: 0.2 for name in sts.TESTS})
    assert suite.with_averages({"sts12": 0.1, "sts12/mean": 0.9}) == {"sts12": 0.1, "sts12/mean": 0.9}


def test_a_digest_follows_the_files(data):
    def digest():
        return suite.planned(["transfer"], Sources(data=str(data))).units[0].digest()

    before = digest()
    assert digest() == before
    write(data / "transfer" / "mr.all.tsv.gz", LABELLED[:-1])
    assert digest() != before


def test_a_file_under_another_name_is_read_again(tmp_path, tiny, capsys):
    """A text that is read from the memory of a .tsv would hide that it is no gzip file and no .csv."""
    rows = "\n".join("\t".join(line.split("\t")[1:]) for line in GRADED)
    for name in ("good.tsv", "bad.tsv.gz", "bad.csv"):
        (tmp_path / name).write_text(rows)
    options = [f"--model={tiny}", "--tasks=pairs", "--out="]
    run([*options, f"--pairs={tmp_path}/good.tsv"], capsys)
    _, errors = run([*options, f"--pairs={tmp_path}/bad.tsv.gz"], capsys, status=2)
    assert "not a complete gzip file" in errors[0]
    _, errors = run([*options, f"--pairs={tmp_path}/bad.csv"], capsys, status=2)
    assert "1 fields, 3 are expected" in errors[0]


def test_subsets_by_hand(tmp_path):
    """Subset a is ranked rightly (1), subset b of half as many pairs wrongly (-1)."""
    angles = {f"s{angle}": angle for angle in (10, 20, 30, 40, 50, 60)} | {"s0": 0}
    rows = ["a\t5\ts0\ts10", "a\t4\ts0\ts20", "a\t3\ts0\ts30", "a\t2\ts0\ts40", "b\t0\ts0\ts50", "b\t1\ts0\ts60"]
    write(tmp_path / "sts" / "sts12.test.tsv.gz", ["subset\tscore\tsentence1\tsentence2", *rows])
    embed = on_a_circle(angles)
    scores = sts_scores(embed, tmp_path, ["sts12"], subsets=True)
    whole = scores.pop("sts12")
    assert scores == pytest.approx(
        {"sts12/a": 1.0, "sts12/b": -1.0, "sts12/mean": 0.0, "sts12/weighted mean": (4 * 1 - 2 * 1) / 6}
    )
    assert whole == pytest.approx(1 - 6 * 2 / (6 * 35))  # all pairs together: two neighbouring ranks are exchanged
    assert sts_scores(embed, tmp_path, ["sts12"]) == {"sts12": whole}


def test_the_program_writes_what_it_measured_into_a_folder(tiny, data, tmp_path, capsys):
    options = [f"--model={tiny}", "--tasks=sts-b-dev,transfer,geometry,speed", f"--data={data}"]
    write(data / "sts" / "stsb.test.tsv.gz", GRADED)
    out, errors = run([*options, f"--out={tmp_path}/report/"], capsys)
    report = json.loads((tmp_path / "report" / "results.json").read_text())
    (model,) = report["models"]
    assert model["failed"] == {} and len(report["absent"]) == 5
    assert set(model["seconds_of_task"]) == set(report["protocol"])
    assert set(report["protocol"]) == set(report["files"])
    assert set(report["files"]) == {"sts-b-dev", "transfer/mr", "transfer/cr", "geometry", "speed"}
    assert model["scores"]["speed/parameters"] == model["parameters"] and model["size_bytes"] > 0
    assert report["seed"] == 1111 and "folds" in report["protocol"]["transfer/mr"]
    assert f"{100 * model['scores']['transfer/mr']:.2f}" in out and "geometry/uniformity" in out
    assert [line.split(":")[0] for line in errors if line.startswith("skipped")] == ["skipped"] * 5


def test_strict_refuses_an_absent_set(tiny, data, capsys):
    _, errors = run([f"--model={tiny}", "--tasks=transfer", f"--data={data}", "--strict", "--out="], capsys, status=2)
    assert len(errors) == 1 and "subj.all.tsv.gz is not there" in errors[0] and "--strict" in errors[0]


def test_a_finished_unit_is_not_run_twice(tiny, data, capsys, monkeypatch):
    options = [f"--model={tiny}", "--tasks=transfer,geometry", f"--data={data}", "--out="]
    before, _ = run(options, capsys)

    def never(*_, **__):
        raise AssertionError("measured again")

    monkeypatch.setattr(candidates.Candidate, "embed", lambda *_, **__: never)
    again, _ = run(options, capsys)
    assert again == before


def test_sentences_that_sets_share_are_encoded_once():
    asked = []

    def embed(sentences):
        asked.append(list(sentences))
        return np.array([[len(sentence), 1.0] for sentence in sentences]).reshape(-1, 2)

    once = EmbeddingCache(embed)
    np.testing.assert_array_equal(once(["a", "bb", "a"]), [[1, 1], [2, 1], [1, 1]])
    np.testing.assert_array_equal(once(["ccc", "bb"]), [[3, 1], [2, 1]])
    assert once([]).shape == (0, 2)
    assert [sentence for sentences in asked for sentence in sentences] == ["a", "bb", "ccc"]


def test_a_reranker_reads_each_pair_once():
    asked = []

    class Lengths:
        def score(self, first, second):
            asked.extend(zip(first, second, strict=True))
            return np.array([len(one) - len(other) for one, other in zip(first, second, strict=True)])

    once = ScoreCache(Lengths())
    np.testing.assert_array_equal(once.score(["a", "bb", "a"], ["x", "x", "x"]), [0, 1, 0])
    np.testing.assert_array_equal(once.score(["a", "a", "x"], ["x", "xyz", "a"]), [0, -2, 0])
    assert once.score([], []).shape == (0,)
    assert asked == [("a", "x"), ("bb", "x"), ("a", "xyz"), ("x", "a")]
    assert isinstance(once, Scorer)


def test_what_fails_costs_itself_only(tiny, data, tmp_path, capsys):
    """A malformed line, a label of the wrong type, a model of an unknown family: a line each, the rest goes on."""
    write(data / "transfer" / "mr.all.tsv.gz", [*LABELLED, "1\tone\ttoo many"])
    write(data / "transfer" / "subj.all.tsv.gz", ["label\tsentence", "positive\tfine"])
    unknown = tmp_path / "unknown"
    unknown.mkdir()
    (unknown / "config.json").write_text('{"model_type": "mamba"}')
    out = tmp_path / "results.json"
    options = ["--tasks=transfer,geometry", f"--data={data}", f"--out={out}"]
    _, errors = run([f"--model={unknown}", f"--model={tiny}", *options], capsys, status=2)
    report = json.loads(out.read_text())
    (model,) = report["models"]
    assert set(model["failed"]) == {"transfer/mr", "transfer/subj"} and list(report["failed"]) == [str(unknown)]
    assert "mr.all.tsv.gz:62: 3 fields, 2 are expected" in model["failed"]["transfer/mr"]
    assert "label 'positive' is not one of 0, 1" in model["failed"]["transfer/subj"]
    assert {"transfer/cr", "geometry/anisotropy"} <= set(model["scores"])
    assert len([line for line in errors if line.startswith("failed: ")]) == 3
    assert "mamba" in " ".join(errors) and errors[-1].startswith("error: 3 of the evaluations or models failed")


def test_what_is_drawn_of_sts_is_sts_b_dev_where_it_was_scored(tiny, data, capsys):
    write(data / "sts" / "stsb.test.tsv.gz", GRADED[:-1])
    plan = suite.planned(["sts"], Sources(data=str(data)))
    candidate = candidates.Candidate(spec=tiny, members=(load_model(tiny),))
    others = candidates.Others(index=None, reranker=None)
    known = candidates.model_of(candidate, others, batch_size=4)
    for units, count in ((plan.units, len(GRADED) - 1), (plan.units[:1], len(GRADED) - 2)):
        _, drawn = scoring.score(candidate, known, units, others)
        assert len(drawn.gold) == count


def test_vectors_that_are_not_numbers_are_a_line_each_and_are_not_remembered(tiny, data, tmp_path, capsys, monkeypatch):
    useless = lambda texts: np.full((len(texts), 4), np.nan)  # noqa: E731 - stands in for a function
    monkeypatch.setattr(candidates.Candidate, "embed", lambda *_, **__: useless)
    options = [f"--model={tiny}", "--tasks=sts-b-dev,transfer,geometry", f"--data={data}", "--out="]
    _, errors = run(options, capsys, status=2)
    failed = [line for line in errors if line.startswith("failed: ")]
    assert len(failed) == 4 and all("NaN or infinity" in line for line in failed)
    assert not list((tmp_path / "cache").glob("scores/*"))


def test_an_index_of_the_model_itself_gives_the_same_scores_and_one_of_another_width_is_refused(tiny, tmp_path, capsys):
    rows = ["query\tentity\tlabel", "the cat\tcat\t1", "the dog\tdog\t1", "rain\train 1\t1"]
    entities, out = write(tmp_path / "de.tsv.gz", rows), tmp_path / "results.json"
    options = [f"--model={tiny}", "--tasks=retrieval", "--data=", f"--entities={entities}", f"--out={out}"]
    run([*options, f"--index_model={tiny}"], capsys)
    scores = json.loads(out.read_text())["models"][0]["scores"]
    assert len(scores) == 6
    for rank in (1, 5, 10):
        assert scores[f"entity/de recall@{rank}"] == scores[f"asymmetric entity/de recall@{rank}"]
    save(tiny_model(tmp_path / "tokenizer", head=8), tmp_path / "narrow")
    options[-1] = f"--out={tmp_path / 'narrow.json'}"
    _, errors = run([*options, f"--index_model={tmp_path / 'narrow'}"], capsys, status=2)
    assert any("the queries have 16 numbers and the index 8" in line for line in errors)


def test_real_tracks_of_sts_2017_have_250_pairs(data_folder):
    for track in multilingual.TRACKS:
        pairs = read_pairs(*multilingual.files(data_folder, track))
        assert len(pairs.scores) == 250
        assert abs(pairs_spearman(lambda texts: np.random.default_rng(0).normal(size=(len(texts), 8)), pairs)) < 0.3


def test_a_folder_has_a_report_that_compares_an_export_with_the_teacher_of_its_run(tiny, data, tmp_path, capsys):
    workdir = tmp_path / "runs" / "l3"
    save(tiny_model(tmp_path / "tokenizer", seed=1), workdir / "export")
    write_facts(
        workdir,
        Facts(
            name="l3",
            origin=Origin(teacher=public_name(tiny)),
            checkpoint=Checkpoint(teacher_scores={"sts-b-dev": 0.5}),
        ),
    )
    lines = [{"step": 0, "pairs/spearman": 0.5}, {"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ["--tasks=sts-b-dev,geometry", f"--data={data}", f"--out={tmp_path}/report/"]
    run([f"--model={workdir / 'export'}", f"--model={tiny}", *options], capsys)
    page = (tmp_path / "report" / "index.html").read_text()
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.S)[1])
    drawn = {figure["id"]: [len(trace["x"]) for trace in figure["data"]] for figure in figures}
    assert drawn == {
        "gold-0": [12], "gold-1": [12], "similarities": [40, 40], "loss": [2], "dev": [1], "size": [1, 1], "geometry": [1, 1]
    }  # fmt: skip
    assert page.count("<small>teacher</small>") == 1
    (score, _) = (
        row["scores"]["sts-b-dev"] for row in json.loads((tmp_path / "report/results.json").read_text())["models"]
    )
    (tmp_path / "report").rename(tmp_path / "of_both")
    out, _ = run([f"--model={workdir / 'export'}", *options], capsys)
    page = (tmp_path / "report" / "index.html").read_text()
    assert f"<small>{score / 0.5:.1%}</small>" in page and ">tiny (by its student" in page
    assert "report: " in out and "index.html" in out
    (workdir / "card.json").write_text('{"of_another_version": 1}')
    (workdir / "metrics.jsonl").write_bytes(b'{"step": 1, \xff')
    (tmp_path / "report" / "index.html").unlink()
    _, errors = run([f"--model={workdir / 'export'}", *options], capsys)
    assert [("card.json" in line, "metrics.jsonl:1" in line) for line in errors] == [(False, True), (True, False)]
    assert (tmp_path / "report" / "index.html").exists()


def test_a_teacher_that_is_named_is_scored_too(tiny, data, tmp_path, capsys):
    save(tiny_model(tmp_path / "tokenizer", seed=1), tmp_path / "student")
    options = [f"--teacher={tiny}", "--tasks=sts-b-dev", f"--data={data}", f"--out={tmp_path}/results.json"]
    run([f"--model={tmp_path / 'student'}", *options], capsys)
    models = json.loads((tmp_path / "results.json").read_text())["models"]
    assert [model["model"] for model in models] == [tiny, str(tmp_path / "student")]
    assert not (tmp_path / "index.html").exists()


def test_scores_are_plain_finite_numbers(tmp_path):
    def values(score):
        unit = SimpleNamespace(name="mine", run=lambda model: {"scores": {"mine/a": score}}, is_repeatable=False)
        return suite.unit_values(unit, None, [], tmp_path)["scores"]["mine/a"]

    assert type(values(np.float32(0.5))) is float and values(np.float32(0.5)) == 0.5
    for wrong in (float("nan"), np.float32("inf"), "high", None):
        with pytest.raises(InputError, match="mine: the score 'mine/a' is .*, no finite number"):
            values(wrong)


def test_names_of_scores_stay_whole_beside_long_names_of_models():
    models = [f"/home/user/projects/distillation/runs/minilm-l3-seed{seed}/export" for seed in range(4)]
    name = "documents/medquad-sample recall@100"
    text = as_text(score_table({name: dict.fromkeys(models, 0.8)}, models), width=160)
    lines = [line.split() for line in text.splitlines()]
    assert [*name.split(), *["80.00"] * 4] in lines
    assert ["Spearman", "×", "100", *(f"minilm-l3-seed{seed}/export" for seed in range(4))] in lines
