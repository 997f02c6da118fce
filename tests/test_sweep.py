"""Sweeps: the points of grids, files and command lines, the table by hand, and the program: stopped, run again, failing."""

import contextlib
import csv
import io
import json
import re
import shutil
import signal
import subprocess

import pytest

from jaxdistill import main, sweep
from jaxdistill.config import load_study, shipped_configs
from jaxdistill.core import InputError
from jaxdistill.evals.report import as_text
from jaxdistill.training.workdir import folder as workdirs

from program import environment, refused, start, tiny_arguments, wait_for

TINY = "configs/congen.py:tiny"
STEPS = 150
"""Enough to be stopped in the middle of them; they take some seconds."""
GOOD = "objective.alpha=0.25,run.seed=0"
"""Folder of the point that trains."""


def planned(*, specs=(TINY,), options=None, grid=({},), seeds=()):
    return sweep.plan(specs, options or {}, grid, seeds)


def row(a, seed, score, *, sts=None, status=0):
    return {
        "point": f"a={a},{seed}", "options": {"a": a}, "seed": seed, "status": status,
        "metric": None if score is None else "pairs/spearman", "score": score, "sts_average": sts,
    }  # fmt: skip


def test_points_have_a_folder_and_the_options_of_their_training():
    points = planned(options={"run.steps": 3}, grid=[{"objective.alpha": "0.5"}, {"student.pooling": "mean:last2"}])
    assert [point["options"] for point in points] == [
        {"objective.alpha": "0.5"},
        {"student.pooling": "mean:last2"},
    ]
    assert sweep.compared(points)[["objective.alpha", "student.pooling"]].values.tolist() == [
        ["0.5", "-"],
        ["-", "mean:last2"],
    ]
    assert points[0]["point"] == "objective.alpha=0.5,run.seed=0"
    assert points[1]["point"].startswith("student.pooling=mean-last2,run.seed=0-")
    (stage,) = points[0]["stages"]
    assert (stage.objective.alpha, stage.run.steps) == (0.5, 3)


def test_several_configs_are_a_column_and_seeds_are_those_of_every_stage():
    specs = [TINY, "ckd.py:tiny-two-stage"]
    points = planned(specs=specs, seeds=(3, 4))
    assert [(point["options"], point["seed"]) for point in points] == [
        ({"config": spec}, seed) for spec in specs for seed in (3, 4)
    ]
    assert [[stage.run.seed for stage in point["stages"]] for point in points] == [[3], [4], [3, 3], [4, 4]]
    with pytest.raises(InputError, match=r"^ckd.py:tiny-two-stage: unknown option --config.stage1.objective.alhpa"):
        planned(specs=specs[1:], grid=[{"stage1.objective.alhpa": 0.5}])


@pytest.mark.parametrize("path", shipped_configs("studies"), ids=lambda path: path.stem)
def test_the_points_of_a_study_are_options_of_its_config_and_its_docstring_has_the_command(path):
    config, grid = load_study(path.stem)
    grid = sweep.combinations(grid)
    assert len(planned(specs=[config], grid=grid)) == len(grid) > 1
    assert f"--grid={path.stem} " in path.read_text()


def test_table_and_csv_have_means_and_deviations_over_the_seeds(tmp_path):
    scores = [(0, 0, 0.80), (0, 1, 0.84), (0, 2, 0.82), (1, 0, 0.90), (1, 1, 0.91), (1, 2, 0.95)]
    rows = [row(a, seed, score, sts=0.7) for a, seed, score in scores] + [row("x", 0, None, status=2)]
    (tmp_path / "sweep.csv").write_text(sweep.compared(rows).to_csv(index=False))
    first, *_, failed = csv.DictReader((tmp_path / "sweep.csv").read_text().splitlines())
    assert (first["a"], first["seed"], first["metric"], first["score"]) == ("0", "0", "pairs/spearman", "0.8")
    assert float(first["score_mean"]) == pytest.approx(0.82) and float(first["score_sd"]) == pytest.approx(0.02)
    assert (failed["status"], failed["score"], failed["score_mean"]) == ("2", "", "")
    lines = [re.split(r"\s{2,}", line.strip()) for line in as_text(sweep.table(rows), width=200).splitlines()]
    first, second, failed = [cells for cells in lines if cells[0] in ("0", "1", "x")]
    assert first == ["0", "3", "pairs/spearman", "82.00 ± 2.00", "70.00 ± 0.00"]
    assert second[3:] == ["92.00 ± 2.65", "70.00 ± 0.00"] and failed == ["x", "1", "-", "-", "-"]


def arguments(folder, *flags, **overrides):
    options = dict(run__steps=STEPS, run__log_every=100, evals__every=STEPS, student__dropout=0.0) | overrides
    return [*tiny_arguments(folder, **options), f"--workdir={folder / 'sweep'}", *flags]


def test_a_dry_run_lists_the_points_and_writes_nothing(tmp_path, capsys):
    flags = ["--config.objective.alpha=0, 0.5", "--config.data.columns='text,second'", "--seeds=3", "--dry_run"]
    sweep.main(arguments(tmp_path, *flags))
    assert capsys.readouterr().out.splitlines() == [
        "point 1 of 2: objective.alpha=0,run.seed=3",
        "point 2 of 2: objective.alpha=0.5,run.seed=3",
    ]
    assert not (tmp_path / "sweep").exists()


@pytest.fixture(scope="module")
def swept_twice(tmp_path_factory):
    """(folder, output) of a sweep of two points that Ctrl-C stopped in the first, and that was then run again; an option of the
    second point is wrong."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "grid.py").write_text('GRID = [{"objective.alpha": 0.25}, {"student.dims": "(999,)"}]')
    flags = arguments(folder, f"--grid={folder / 'grid.py'}")
    process = start("sweep", flags)
    metrics = folder / "sweep" / GOOD / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.read_text(), process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130 and "the same command continues" in output
    assert not list((folder / "sweep").glob("*/results.json"))
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(io.StringIO()) as output:
        patched.setenv(
            "XLA_FLAGS", environment()["XLA_FLAGS"]
        )  # its trainings are programs of their own, on one device
        with pytest.raises(SystemExit) as stopped:
            sweep.main(flags)
    assert stopped.value.code == 1
    log = (folder / "sweep" / f"{GOOD}.log").read_text()
    assert "is saved" in log and "continuing from the checkpoint of step" in log
    return folder, output.getvalue()


def test_a_stopped_sweep_ends_with_the_scores_of_its_points_and_names_those_that_failed(swept_twice):
    folder, output = swept_twice
    good, failed = csv.DictReader((folder / "sweep" / "sweep.csv").read_text().splitlines())
    assert (good["objective.alpha"], good["status"], good["metric"]) == ("0.25", "0", "agreement/spearman")
    scores = workdirs.read_note(folder / "sweep" / GOOD / "results.json")["scores"]["student after"]
    assert float(good["score"]) == scores[good["metric"]]
    log = folder / "sweep" / f"{GOOD}.log"
    assert f"point 1 of 2: {GOOD}, log {log} ... {100 * float(good['score']):.2f}\n" in output
    assert " ... failed with status 2: error: student.dims=999 must be from 1 to" in output
    assert (failed["status"], failed["score"]) == ("2", "")


def test_a_finished_point_is_not_trained_again_and_has_an_export_without_checkpoints(swept_twice, capsys, monkeypatch):
    folder, _ = swept_twice
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a training was started"))
    (folder / "one.py").write_text('GRID = [{"objective.alpha": 0.25}]')
    sweep.main(arguments(folder, f"--grid={folder / 'one.py'}"))
    assert capsys.readouterr().out.count("(done before)") == 1
    point = folder / "sweep" / GOOD
    assert not (point / "checkpoints").exists() and (point / "export" / "model.safetensors").is_file()
    main.main([*arguments(folder)[:-1], "--config.objective.alpha=0.25", f"--workdir={point}"])
    assert "is finished" in capsys.readouterr().out


def test_points_of_another_text_are_not_compared(swept_twice, capsys, monkeypatch):
    folder, _ = swept_twice
    other = shutil.copytree(folder / "sweep" / GOOD, folder / "sweep" / "objective.alpha=0.75,run.seed=0")
    monkeypatch.setattr(sweep, "is_finished", lambda *_: True)
    changed = workdirs.read_note(other / "inputs.json") | {workdirs.TEXT_FILES: "of another text"}
    (other / "inputs.json").write_text(json.dumps(changed))
    line = refused(sweep, arguments(folder, "--config.objective.alpha=0.25,0.75"), capsys)
    assert "have changed between points" in line and "give another workdir" in line
