"""The training loop: its log, its record of scores, its warnings, and where its time goes."""

import json
import logging
import re

import pytest

from jaxdistill import main
from jaxdistill.core import InputError
from jaxdistill.training import dev, loop, metrics

from program import tiny_arguments, write_text

pytestmark = pytest.mark.usefixtures("one_device")


def noted(scores, *, exports_last):
    """Best step, evaluations since and scores of the best step after each of these scores."""
    record = {"best": None, "since_best": 0}
    for step, score in enumerate(scores):
        dev.note_score(record, step, {"dev": score, "step": step}, best="dev", exports_last=exports_last)
        yield record["best_step"], record["since_best"], record["scores"]["step"]


def test_a_tie_is_the_best_but_no_progress_and_exports_last_takes_the_last_step():
    history = list(noted((0.5, 0.5, 0.4, 0.5, 0.6, 0.6), exports_last=False))
    assert history == [(0, 0, 0), (1, 1, 1), (1, 2, 1), (3, 3, 3), (4, 0, 4), (5, 1, 5)]
    assert [step for step, _, _ in noted((0.5, 0.6, 0.4), exports_last=True)] == [0, 1, 2]


def test_a_run_that_ends_before_its_best_step_has_the_scores_of_its_own_last_step(tmp_path, monkeypatch):
    scores = iter([0.1, 0.5, 0.4, 0.3, 0.6, 0.3])  # of steps 0 to 4, and of step 3 again
    monkeypatch.setattr(dev.Dev, "scores", lambda self, embed: {"agreement/spearman": next(scores)})
    workdir = tmp_path / "w"
    main.main([*tiny_arguments(tmp_path, run__steps=4, evals__every=1), f"--workdir={workdir}"])
    assert "1" not in {path.name for path in (workdir / "checkpoints").iterdir()}  # it gave way to step 4, the best
    main.main([*tiny_arguments(tmp_path, run__steps=3, evals__every=1, run__restore_step=3), f"--workdir={workdir}"])
    results = json.loads((workdir / "results.json").read_text())
    assert results["best_step"] == 3 and results["scores"]["student after"]["agreement/spearman"] == 0.3


def test_each_run_of_a_workdir_appends_its_output_to_the_log(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("jaxdistill"), "level", logging.INFO)
    with metrics.logged(tmp_path, "first"):
        logging.getLogger("jaxdistill.data").warning("%d damaged", 2)
        metrics.say("step 1")
        metrics.note("| a |\n| b |")
        assert "| b |" in (tmp_path / "train.log").read_text()
    metrics.say("of no run")
    for command, error in (("second", InputError("training diverged")), ("third", KeyboardInterrupt())):
        with pytest.raises(type(error)), metrics.logged(tmp_path, command):
            raise error
    lines = (tmp_path / "train.log").read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    first = ["$ first", "2 damaged", "step 1", "| a |", "| b |"]
    assert [line[20:] for line in lines] == [*first, "$ second", "error: training diverged", "$ third", "interrupted"]
    (tmp_path / "train.log").unlink()
    (tmp_path / "train.log").symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"full: '{tmp_path}'"), metrics.logged(tmp_path, "fourth"):
        raise OSError(28, "full")  # ENOSPC
    assert capsys.readouterr() == ("step 1\nof no run\n", "")  # no traceback of the log's own


def test_a_run_logs_where_its_time_goes_saves_steps_and_traces_requested_ones(tmp_path):
    write_text(tmp_path)
    workdir = tmp_path / "w"
    options = dict(run__steps=6, run__log_every=50, evals__every=6, run__save_every=4, evals__average=(3, 6))
    main.main([*tiny_arguments(tmp_path, **options), f"--workdir={workdir}", "--profile=3:4"])
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if "loss" in line]
    assert [line["step"] for line in logged] == [2, 3, 4, 6]  # a short run has a curve all the same; saves report too
    for line in logged:
        assert all(line[f"seconds/{name}"] >= 0 for name in metrics.ACTIVITIES)
        assert 0 < line["goodput"] < 1
    assert max(line["tflops_per_s"] for line in logged) > 0
    assert logged[0]["seconds/compile"] > 0 and logged[0]["seconds/evaluation"] > 0  # of the untrained student
    seconds = json.loads((workdir / "results.json").read_text())["seconds_of_activities"]
    assert set(seconds) == set(metrics.ACTIVITIES) and seconds["checkpoints"] > 0
    assert {path.name for path in (workdir / "checkpoints").iterdir()} >= {"3", "4", "6"}
    (trace,) = (workdir / "profile").rglob("*.xplane.pb")
    assert b"step_num" in trace.read_bytes()


def test_accelerators_run_the_programs_that_threads_compiled_and_learn_the_same(tmp_path, monkeypatch, capsys):
    write_text(tmp_path)
    losses, compiled = [], loop.CountedStep._compile
    for platform in ("cpu", "tpu"):
        calls = []
        monkeypatch.setattr(loop, "platform", lambda mesh, platform=platform: platform)
        monkeypatch.setattr(
            loop.CountedStep, "_compile", lambda *call, calls=calls: calls.append(call) or compiled(*call)
        )
        arguments = tiny_arguments(tmp_path, run__steps=2, evals__every=2, data__pack_shapes=3)
        main.main([*arguments, f"--workdir={tmp_path / platform}"])
        lines = (tmp_path / platform / "metrics.jsonl").read_text().splitlines()
        losses.append([line["loss"] for line in map(json.loads, lines) if "loss" in line])
        assert len(calls) in ((0,) if platform == "cpu" else (1, 2))
        assert ("compiled the step for a batch of 8 x " in capsys.readouterr().out) == (platform == "tpu")
    assert losses[0] == losses[1]


def test_sources_with_objectives_of_their_own_train_in_turn(tmp_path):
    """ConGen on plain sentences, and pairs that contrast."""
    write_text(tmp_path)
    pairs = [f"question {number}\tthe old answer {number}" for number in range(64)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["query\tpositive", *pairs]))
    options = dict(
        data__text=f"{tmp_path}/text.txt,{tmp_path}/pairs.tsv", data__weights="(1.0,1.0)", data__objectives="('congen','contrastive')",
        data__columns="(('text','text|query'),('positive','positive|text'))", objective__kind="congen+contrastive",
        objective__queue_size=None, objectives__congen__queue_size=40, objectives__congen__generalize_view="text",
        student__dropout=0.1, optimizer__schedule="constant", optimizer__warmup_fraction=0.0, evals__every=3, evals__best="last",
    )  # fmt: skip
    main.main([*tiny_arguments(tmp_path, **options, run__steps=6), f"--workdir={tmp_path / 'run'}"])
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    lines = [line for line in records if "loss" in line]
    turns = [line["loss/congen"] is None for line in lines]
    assert turns == [line["loss/contrastive"] is not None for line in lines] and turns in (
        [True, False] * 3,
        [False, True] * 3,
    )
