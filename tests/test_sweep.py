"""Sweeps: points of a grid, means and table by hand, studies, and the program: killed, run again, extended, failing."""

import contextlib
import csv
import io
import json
import re
import signal
import subprocess
import time

import pytest
from rich.box import MARKDOWN

from jaxdistill import export, grid, main, sweep
from jaxdistill.core import InputError, InUseError
from jaxdistill.reporting import sweep as comparison
from jaxdistill.reporting.tables import as_text

from conftest import ROOT
from program import environment, refused, start, tiny_arguments

TINY = "configs/congen.py:tiny"
STEPS = 150
"""Enough to be stopped in the middle of them; they take some seconds."""
STUDIES = sorted((ROOT / "configs" / "studies").glob("*.py"))


def row(options, seed, score, *, sts=None, status=0):
    return {
        "point": f"{options} {seed}", "options": options, "seed": seed, "status": status, "failure": None,
        "metric": "pairs/spearman", "score": score, "sts_average": sts,
    }  # fmt: skip


ROWS = [
    row({"a": 0, "b": "x"}, 0, 0.80, sts=0.7),
    row({"a": 0, "b": "x"}, 1, 0.84, sts=0.7),
    row({"a": 1, "b": "x"}, 0, 0.90),
    row({"a": 1, "b": "x"}, 1, None, status=2),
    row({"a": 0, "b": "y"}, 0, None, status=None),
]


def test_a_dict_is_all_combinations_and_a_list_as_it_is_with_seeds_fastest():
    assert sweep.points({"a": [1, 2], "b": ["x"]}) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    assert sweep.points({"a": [1, 2]}, [7, 8]) == [
        {"a": 1, "run.seed": 7},
        {"a": 1, "run.seed": 8},
        {"a": 2, "run.seed": 7},
        {"a": 2, "run.seed": 8},
    ]
    assert sweep.points([{"a": 1, "b": 2}, {"a": 3}]) == [{"a": 1, "b": 2}, {"a": 3}]


def test_an_inline_grid_splits_outside_of_brackets_alone():
    _, grid = sweep.read_grid('a.b=0, 0.5;c.d=(1.0,2.0),(("x","y"),);e.f=cls')
    assert grid == {"a.b": ["0", "0.5"], "c.d": ["(1.0,2.0)", '(("x","y"),)'], "e.f": ["cls"]}


@pytest.mark.parametrize("grid", [None, {}, [], {"a": []}, {"a": 1}, "a", [1], [{}]])
def test_a_grid_without_points_is_refused(grid):
    with pytest.raises(InputError, match="and not empty"):
        sweep.points(grid)


def test_points_have_typed_options_one_name_and_are_there_once():
    chosen = [{"objective.alpha": alpha} for alpha in ("0.5", "0.50", 1)] + [{"student.pooling": "mean:last2"}]
    planned = sweep.plan([TINY], ["--config.run.steps=3"], chosen)
    assert [point.shown for point in planned] == [
        "objective.alpha=0.5 run.seed=0",
        "objective.alpha=1.0 run.seed=0",
        "student.pooling=mean:last2 run.seed=0",
    ]
    assert planned[0].name == "objective.alpha=0.5,run.seed=0"
    assert planned[2].name.startswith("student.pooling=mean-last2,run.seed=0-")
    assert (planned[1].stages[0].objective["alpha"], planned[1].stages[0].run.steps) == (1.0, 3)


def test_several_configs_are_a_column_of_the_grid():
    planned = sweep.plan([TINY, "l2.py:tiny"], [], [{"run.seed": seed} for seed in (0, 1)])
    assert [point.shown for point in planned] == [
        f"config={name} run.seed={seed}" for name in ("congen:tiny", "l2:tiny") for seed in (0, 1)
    ]
    assert [point.stages[0].objective["kind"] for point in planned] == ["congen", "congen", "embedding", "embedding"]
    assert [*sweep.base_options([TINY, "l2.py:tiny"], [])] == ["congen:tiny", "l2:tiny"]
    assert grid.config_names(["a/x.py", "b/x.py"]) == {"a/x.py": "a/x.py", "b/x.py": "b/x.py"}
    with pytest.raises(InputError, match=r"^configs/congen.py:tiny: unknown option --config.objective.alhpa"):
        sweep.plan([TINY, "l2.py:tiny"], [], [{"objective.alhpa": 0.5}])


@pytest.mark.parametrize(
    "given, chosen, words",
    [
        (
            ["--config.objective.alpha=1.0"],
            [{"objective.generalize_view": "crop"}, {"objective.generalize_view": "delete_words"}],
            "generalize_view=crop run.seed=0 and objective.generalize_view=delete_words run.seed=0 are the same training; "
            "objective.generalize_view is not read, because objective.alpha is 1",
        ),
        ([], [{"student.head_init": "normal"}, {"student.head_init": "uniform"}], "because student.head is none"),
        ([], [{"optimizer.b1": 0.9}, {"optimizer.b2": 0.999}], "are the same training. Remove one"),
    ],
)
def test_two_points_that_are_the_same_training_are_refused(given, chosen, words):
    with pytest.raises(InputError, match=re.escape(words)):
        sweep.plan([TINY], given, chosen)


def test_without_a_teacher_its_targets_are_not_read():
    points = [{"student.dims_targets": "projected"}, {"student.dims_targets": "truncated"}]
    with pytest.raises(InputError, match="because objective simcse has no teacher"):
        sweep.plan(["configs/simcse.py:tiny"], [], points)


def test_means_and_deviations_are_over_the_seeds_that_have_a_score():
    first, second, third = comparison.means(ROWS)
    assert (first["options"], first["seeds"]) == ({"a": 0, "b": "x"}, [0, 1])
    assert first["score"]["mean"] == pytest.approx(0.82)
    assert first["score"]["sd"] == pytest.approx(0.02 * 2**0.5)
    assert second["score"] == {"mean": 0.90, "sd": None}
    assert second["sts_average"] is None and third["score"] is None


def test_the_table_has_a_line_for_each_point_and_means_once():
    lines = [
        line.split("|")[1:-1]
        for line in as_text(comparison.sweep_table(ROWS, box=MARKDOWN)).splitlines()
        if "|" in line
    ]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert cells[0] == ["a", "b", "seed", "pairs/spearman × 100", "mean ± s.d.", "STS average × 100", "mean ± s.d."]
    assert cells[2:] == [
        ["0", "x", "0", "80.00", "82.00 ± 2.83", "70.00", "70.00 ± 0.00"],
        ["0", "x", "1", "84.00", "", "70.00", ""],
        ["1", "x", "0", "90.00", "90.00", "-", "-"],
        ["1", "x", "1", "failed (2)", "", "failed (2)", ""],
        ["0", "y", "0", "-", "-", "-", "-"],
    ]


def test_csv_has_scores_and_means():
    first, *_, failed, unborn = csv.DictReader(comparison.sweep_csv(ROWS).splitlines())
    assert (first["a"], first["seed"], first["metric"], first["score"]) == ("0", "0", "pairs/spearman", "0.8")
    assert float(first["score_mean"]) == pytest.approx(0.82) and first["sts_average_sd"] == "0.0"
    assert (failed["status"], failed["score"], failed["score_mean"]) == ("2", "", "0.9")
    assert (unborn["status"], unborn["score_mean"]) == ("", "")


def test_differences_are_paired_by_seed_with_an_interval_by_hand():
    """Differences of 10, 7 and 13 points have the mean 10 and the deviation 3; Student's t of two degrees is 4.3027."""
    scores = {(0, "x"): (0.8, 0.84, 0.82), (1, "x"): (0.9, 0.91, 0.95), (0, "y"): (0.9,), (1, "y"): (0.9, 0.91, None)}
    rows = [row({"a": a, "b": b}, *seed) for (a, b), values in scores.items() for seed in enumerate(values)]
    begin, half = "pairs/spearman × 100, a=1", 4.3027 * 3 / 3**0.5
    assert comparison.difference_lines(rows) == [
        f"{begin}, b=x against a=0: +10.00, 95 % interval {10 - half:+.2f} to {10 + half:+.2f} (paired by seed: 0, 1, 2)",
        f"{begin}, b=y against b=x: +0.00, 95 % interval +0.00 to +0.00 (paired by seed: 0, 1)",
    ]
    assert comparison.difference_lines([*rows, rows[0] | {"metric": "pairs/auc"}]) == []


def test_lines_of_the_plot_are_the_choices_of_the_other_options():
    several = [row({"a": a, "b": b}, 0, 0.1 * a + (b == "y")) for b in "xy" for a in (1, 2)]
    assert comparison.score_lines(several) == {
        "b=x": [(1, {0: 0.1}), (2, {0: 0.2})],
        "b=y": [(1, {0: 1.1}), (2, {0: 1.2})],
    }
    decided = [row({"model": "big", "pooling": "cls"}, 0, 0.5), row({"model": "small", "pooling": "mean"}, 0, 0.4)]
    assert comparison.score_lines(decided) == {"": [("big", {0: 0.5}), ("small", {0: 0.4})]}


@pytest.mark.parametrize(
    "values, axis",
    [
        ([0.0, 0.5, 1.0], "linear"),
        ([1, 20], "linear"),
        ([1, 21], "log"),
        ([0, 100], "linear"),
        (["cls", 1], "category"),
        ([True, False], "category"),
    ],
)
def test_the_axis_follows_the_values(values, axis):
    assert comparison.axis_of(values) == axis


@pytest.mark.parametrize("values", [[0.1, 0.5], [128, 65536], ["cls", "mean:last4", "x" * 200]])
def test_every_kind_of_axis_is_drawn(values, tmp_path):
    rows = [row({"a": value}, seed, 0.5 + seed / 10) for value in values for seed in (0, 1)]
    comparison.sweep_plot(rows, tmp_path / "sweep.png", title="t")
    assert (tmp_path / "sweep.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_says_what_was_found_and_its_points_are_options_of_its_config(path):
    config, grid = sweep.read_grid(path.stem)
    planned = sweep.plan([config], [], sweep.points(grid))
    assert len(planned) == len(sweep.points(grid)) > 1
    assert f"--grid={path.stem} " in sweep.load_config_module(path).__doc__
    assert "jaxdistill" not in path.read_text().split('"""')[2]


def arguments(folder, *more, **overrides):
    options = dict(run__steps=STEPS, run__log_every=100, evals__every=STEPS, student__dropout=0.0) | overrides
    return [*tiny_arguments(folder, **options), f"--workdir={folder / 'sweep'}", *more]


@pytest.mark.parametrize(
    "more, words",
    [
        (["--grid=objective.alfa=0,1"], "Did you mean --config.objective.alpha?"),
        (["--grid=objective.alpha=much"], "alpha"),
        (["--grid=objective.alpha="], "not empty"),
        (["--grid=congen_alfa"], "Did you mean congen_alpha?"),
        (["--grid=run.steps=2,3"], "run.steps is in the grid and on the command line"),
        (["--grid=run.seed=1", "--seeds=0"], "give it once"),
        (["--grid=objective.alpha=0", "--seed=0"], "Did you mean --seeds?"),
    ],
)
def test_a_wrong_grid_is_one_line_before_anything_runs(more, words, tmp_path, capsys):
    assert words in refused(sweep, arguments(tmp_path, *more), capsys)
    assert not (tmp_path / "sweep").exists()


def test_a_study_that_cannot_be_read_and_a_foreign_folder_are_one_line(tmp_path, capsys):
    (tmp_path / "broken.py").write_text("GRID = {")
    assert "broken.py cannot be read (SyntaxError" in refused(
        sweep, arguments(tmp_path, f"--grid={tmp_path / 'broken.py'}"), capsys
    )
    assert "is not empty and not the folder of a sweep" in refused(
        sweep, [f"--config={TINY}", "--grid=objective.alpha=0", f"--workdir={tmp_path}"], capsys
    )
    assert "--config is missing" in refused(sweep, ["--grid=objective.alpha=0", f"--workdir={tmp_path}"], capsys)
    assert "needs --grid, --seeds or several configs" in refused(sweep, arguments(tmp_path), capsys)


def test_dry_run_lists_the_points_and_writes_nothing(tmp_path, capsys):
    sweep.main(arguments(tmp_path, "--grid=objective.alpha=0,0.5", "--seeds=3", "--dry_run"))
    assert capsys.readouterr().out.splitlines() == [
        "point 1 of 2: objective.alpha=0.0 run.seed=3",
        "point 2 of 2: objective.alpha=0.5 run.seed=3",
    ]
    sweep.main([f"--config={TINY},l2.py:tiny", "--seeds=0", "--dry_run", f"--workdir={tmp_path / 'sweep'}"])
    assert capsys.readouterr().out.splitlines() == [
        "point 1 of 2: config=congen:tiny run.seed=0",
        "point 2 of 2: config=l2:tiny run.seed=0",
    ]
    assert not (tmp_path / "sweep").exists()


def wait_for(path, process, seconds=120.0):
    end = time.monotonic() + seconds
    while not path.exists() or not path.read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def swept(given):
    """(output, status) of a sweep in this process; its trainings are programs of their own, on one device."""
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(io.StringIO()) as said:
        patched.setenv("XLA_FLAGS", environment()["XLA_FLAGS"])
        try:
            sweep.main(given)
            status = 0
        except SystemExit as stopped:
            status = stopped.code
    return said.getvalue(), status


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(folder, output) of a sweep of two points that Ctrl-C stopped in the first, and that was then run again."""
    folder = tmp_path_factory.mktemp("sweep")
    given = arguments(folder, "--grid=objective.alpha=0.25,0.75")
    process = start("sweep", given)
    wait_for(folder / "sweep" / "objective.alpha=0.25,run.seed=0" / "metrics.jsonl", process)
    process.send_signal(signal.SIGINT)
    stopped, _ = process.communicate(timeout=200)
    assert process.returncode == 130 and "the same command continues" in stopped
    assert not list((folder / "sweep").glob("*/results.json"))
    out, status = swept(given)
    assert status == 0 and "is saved" in (log := (folder / "sweep" / "objective.alpha=0.25,run.seed=0.log").read_text())
    assert "continuing from the checkpoint of step" in log
    return folder, out


def report_of(folder):
    return json.loads((folder / "sweep" / "sweep.json").read_text())


def test_a_sweep_that_was_stopped_ends_with_table_plot_and_numbers(finished):
    folder, out = finished
    rows = report_of(folder)["points"]
    assert [(row["options"], row["seed"], row["status"]) for row in rows] == [
        ({"objective.alpha": 0.25}, 0, 0),
        ({"objective.alpha": 0.75}, 0, 0),
    ]
    tabulated = (folder / "sweep" / "sweep.md").read_text()
    for number, row in enumerate(rows, start=1):
        results = json.loads((folder / "sweep" / row["point"] / "results.json").read_text())
        assert results["config"]["objective.alpha"] == row["options"]["objective.alpha"]
        assert row["metric"] == "agreement/spearman"
        assert row["score"] == results["scores"]["student after"]["agreement/spearman"]
        shown = f"{100 * row['score']:.2f}"
        alpha, log = row["options"]["objective.alpha"], folder / "sweep" / f"{row['point']}.log"
        assert f"point {number} of 2: objective.alpha={alpha} run.seed=0, log {log} ... {shown} (" in out
        assert f" {shown} |" in tabulated and f"step {STEPS}:" in log.read_text()
    assert (folder / "sweep" / "sweep.png").read_bytes()[:4] == b"\x89PNG"


def test_a_finished_sweep_trains_nothing_again(finished, capsys, monkeypatch):
    folder, _ = finished
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a training was started"))
    before = report_of(folder)
    sweep.main(arguments(folder, "--grid=objective.alpha=0.25,0.75"))
    assert capsys.readouterr().out.count("(done before)") == 2
    assert report_of(folder) == before


def test_points_of_another_text_are_not_compared(finished, capsys, monkeypatch):
    folder, _ = finished
    monkeypatch.setattr(sweep, "text_digest", lambda text, own_parts: "of another text")
    before = report_of(folder)
    line = refused(sweep, arguments(folder, "--grid=objective.alpha=0.25,0.75"), capsys)
    assert "has changed since" in line and "--workdir" in line and report_of(folder)["points"][1] == before["points"][1]


def test_a_finished_point_has_no_checkpoints_and_says_so(finished, tmp_path, capsys):
    folder, _ = finished
    point = folder / "sweep" / "objective.alpha=0.25,run.seed=0"
    assert not list((folder / "sweep").glob("*/checkpoints"))
    line = refused(export, [f"--workdir={point}", "--step=1", f"--out={tmp_path / 'out'}"], capsys)
    assert "a sweep removes them when a point is finished" in line and f"{point / 'export'}" in line
    before = (point / "export" / "model.safetensors").stat().st_mtime_ns
    main.main([*arguments(folder)[:-1], "--config.objective.alpha=0.25", f"--workdir={point}"])
    assert "is finished" in capsys.readouterr().out
    assert (point / "export" / "model.safetensors").stat().st_mtime_ns == before


def test_a_sweep_over_configs_continues_with_the_same_configs_alone(tmp_path):
    specs = [TINY, "l2.py:tiny"]
    rows = [{"point": point.name, "options": point.options, "seed": 0} for point in sweep.plan(specs, [], [{}])]
    report = {"base": sweep.base_options(specs, []), "points": rows}
    (tmp_path / "sweep.json").write_text(json.dumps(report))
    sweep.refuse_other_sweep(tmp_path, sweep.plan(specs, [], [{}]))
    with pytest.raises(InputError, match="optimizer.b1: 0.9 there, 0.5 now"):
        sweep.refuse_other_sweep(tmp_path, sweep.plan(specs, ["--config.optimizer.b1=0.5"], [{}]))


def test_another_config_and_a_smaller_grid_are_refused_with_the_difference(finished, capsys):
    folder, _ = finished
    other = arguments(folder, "--grid=objective.alpha=0.25,0.75", optimizer__learning_rate=0.01)
    assert "optimizer.learning_rate: 0.0005 there, 0.01 now" in refused(sweep, other, capsys)
    smaller = arguments(folder, "--grid=objective.alpha=0.25,0.5")
    assert "also has objective.alpha=0.75,run.seed=0" in refused(sweep, smaller, capsys)


def test_a_training_that_still_runs_is_not_joined_by_another(tmp_path):
    (point,) = sweep.plan([TINY], [], [{"objective.alpha": 0.5}])
    with sweep.locked(tmp_path / point.name), pytest.raises(InUseError, match="in use by another run"):
        sweep.train_point(point, tmp_path)


# Last: it extends the sweep of the tests above.
def test_a_point_that_fails_is_told_and_the_others_stay(finished):
    folder, _ = finished
    study = folder / "failing.py"
    points = [{"objective.alpha": 1.0, "student.dims": "(999,)"}, {"objective.alpha": 0.25}, {"objective.alpha": 0.75}]
    study.write_text(f"GRID = {points}")
    out, status = swept(arguments(folder, f"--grid={study}"))
    assert status == sweep.POINT_FAILED
    said = "failed with status 2: error: student.dims=(999,) goes beyond the student's vectors"
    assert f"point 1 of 3: objective.alpha=1.0 student.dims=[999] run.seed=0, log {folder / 'sweep'}" in out
    assert f".log ... {said}" in out
    assert out.count("(done before)") == 2
    failed, *others = report_of(folder)["points"]
    assert (failed["status"], failed["score"]) == (2, None) and all(row["score"] for row in others)
    tabulated = (folder / "sweep" / "sweep.md").read_text()
    assert "failed (2)" in tabulated and said in tabulated
