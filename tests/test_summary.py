"""The plot of a training and the table that compares models."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from jaxdistill.core import InputError
from jaxdistill.reporting.plots import _series, _smooth, read_curves, training_plot
from jaxdistill.reporting.tables import (
    Costs,
    Gain,
    Measured,
    StageRow,
    as_text,
    comparison_table,
    no_gain,
    plain_number,
    score_table,
    stage_table,
)
from jaxdistill.training.results.finish import _ending
from jaxdistill.training.run import Dev


def write_metrics(path, steps=500):
    random = np.random.default_rng(0)
    rows = []
    for step in range(0, steps, 5):
        rows.append(
            {"step": step, "loss": 3 + 4 * np.exp(-step / 80) + 0.1 * random.normal(), "sentences_per_s": 900.0}
        )
        if step % 100 == 0:
            rows.append({"step": step, "agreement/spearman": 0.96 - 0.15 * np.exp(-step / 150)})
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return rows


def pixels(path):
    from matplotlib.image import imread

    return imread(path)


def test_the_plot_shows_what_the_file_says(tmp_path):
    write_metrics(tmp_path / "metrics.jsonl")
    image = pixels(training_plot(tmp_path / "metrics.jsonl", tmp_path / "out" / "training.png"))
    assert image.shape[0] > 600 and image.shape[1] > 900
    (tmp_path / "flat.jsonl").write_text('{"step": 0, "loss": 1.0}\n{"step": 1, "loss": 1.0}')
    flat = pixels(training_plot(tmp_path / "flat.jsonl", tmp_path / "flat.png"))
    assert image.shape == flat.shape and (image != flat).any()


def test_a_resumed_run_draws_each_step_once_and_skips_what_is_not_finite():
    rows = [
        {"step": 2, "loss": 1.0},
        {"step": 4, "loss": float("nan")},
        {"step": 3, "loss": 2.0},
        {"step": 2, "loss": 5},
    ]
    assert _series(rows, "loss") == [(2, 5), (3, 2.0)]


def test_the_curves_of_a_run_are_its_loss_and_every_dev_score(tmp_path):
    rows = [
        {"step": 0, "qnli-dev/auc": 0.5, "sts-b-dev/spearman": 0.1, "retrieval-dev/ndcg@10": 0.2},
        {"step": 2, "loss": 3.0, "sentences_per_s": 9.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    curves = read_curves(tmp_path / "metrics.jsonl")
    assert curves.loss == [(2, 3.0)]
    assert curves.metrics == {
        "qnli-dev/auc": [(0, 0.5)],
        "sts-b-dev/spearman": [(0, 0.1)],
        "retrieval-dev/ndcg@10": [(0, 0.2)],
    }


def test_smoothing_is_the_mean_of_the_last_values():
    assert _smooth([1.0, 3.0, 5.0, 1.0], 2) == [1.0, 2.0, 4.0, 3.0]


@pytest.mark.parametrize("content", ["", '{"step": 1}'])
def test_a_file_that_was_emptied_is_drawn_without_curves(tmp_path, content):
    (tmp_path / "m.jsonl").write_text(content)
    assert training_plot(tmp_path / "m.jsonl", tmp_path / "x.png").stat().st_size > 1000


def test_a_damaged_or_absent_file_is_an_error(tmp_path):
    (tmp_path / "m.jsonl").write_text("{")
    with pytest.raises(InputError, match="m.jsonl:1 is not valid JSON"):
        training_plot(tmp_path / "m.jsonl", tmp_path / "x.png")
    with pytest.raises(InputError, match="no such file"):
        training_plot(tmp_path / "absent.jsonl", tmp_path / "x.png")


def test_the_comparison_has_a_line_for_whatever_was_measured():
    text = as_text(
        comparison_table(
            {
                "teacher": Measured(
                    agreement=1.0, costs=Costs(parameters=22_713_216, size_bytes=90_868_376, sentences_per_s=410.4)
                ),
                "student before": Measured(agreement=0.7612, auc=0.75123, costs=Costs(parameters=17_389_824)),
                "student after": Measured(agreement=0.96344, costs=Costs(parameters=17_389_824, size_bytes=69_600_000)),
            }
        )
    )
    lines = {line.split("  ")[1].strip(): line.split() for line in text.splitlines() if "  " in line}
    assert lines["agreement with the teacher (Spearman × 100)"][-3:] == ["100.00", "76.12", "96.34"]
    assert lines["dev pairs (AUC × 100)"][-3:] == ["-", "75.12", "-"]
    assert lines["parameters"][-3:] == ["22,713,216", "17,389,824", "17,389,824"]
    assert lines["weights file (MB)"][-3:] == ["90.9", "-", "69.6"]
    assert lines["encoding (sentences/s)"][-3:] == ["410", "-", "-"]
    assert "STS" not in text and "graded" not in text
    assert "student before" in text


def test_scores_are_shown_times_100_with_two_decimals():
    text = as_text(
        score_table({"runs/a": {"sts12": 0.723749, "average": 0.7887}, "b": {"sts12": 0.5}}, ["sts12", "average"])
    )
    rows = [line.split() for line in text.splitlines()]
    assert ["runs/a", "72.37", "78.87"] in rows
    assert ["b", "50.00", "-"] in rows


def test_brackets_and_colons_are_shown_as_they_are():
    name = "m[b]x[/bold] :smile: \\[i]"
    tables = [
        score_table({name: {name: 0.5}}, [name], what=name),
        comparison_table({name: Measured(pairs=0.5)}, title=name),
        stage_table(
            [StageRow(number=1, form="bi", student=name, dev=Gain(metric=name, before=None, after=None), sts=None)]
        ),
    ]
    assert [as_text(table, width=200).count(name) for table in tables] == [3, 2, 2]


def test_advice_after_no_gain_fits_the_length_of_the_training():
    config = SimpleNamespace(optimizer=SimpleNamespace(learning_rate=0.01))
    run = SimpleNamespace(dev=Dev(tasks={}, best="dev"), config=config, exports_last=False)

    def ending(last_step):
        outcome = SimpleNamespace(best_step=0, averaged=[], seconds=6.0, last_step=last_step)
        return _ending(run, outcome, "NO GAIN: dev")

    assert "NO GAIN: dev; 6 steps are too few to tell: train for more (--config.run.steps)\n" in ending(6)
    assert "NO GAIN: dev; try another optimizer.learning_rate than 0.01\n" in ending(500)


def test_a_stage_that_gained_nothing_says_so():
    assert no_gain("dev", 0.5, 0.51, step=4) == ""
    of_mean = no_gain("dev", 0.5, 0.4, step=0, averaged=[0, 4])
    assert of_mean.endswith("is 40.00 after it; the export is the mean of the checkpoints of steps 0, 4")
    assert no_gain("dev", 0.5, 0.4, step=4, last=True).endswith("is 40.00 after it; the export is the last checkpoint")
    line = no_gain("dev", 0.5, 0.5, step=0)
    assert line.startswith("NO GAIN: dev was 50.00") and line.endswith("the export is the untrained student")
    shown = dict(form="bi", student="s", sts=None)
    gained, lost = (Gain(metric="dev", before=0.5, after=after, warning=no) for after, no in ((0.512, ""), (0.5, line)))
    rows = [StageRow(number=1, dev=gained, **shown), StageRow(number=2, dev=lost, **shown)]
    text = as_text(stage_table(rows))
    assert "+1.20" in text and text.count("NO GAIN") == 1 and "paper" not in text
    rows = [StageRow(number=1, dev=lost, paper=0.7832, **shown), StageRow(number=2, dev=lost, **shown)]
    assert "paper's STS" in (text := as_text(stage_table(rows))) and "78.32" in text


def test_measures_have_decimals_by_their_size():
    assert [plain_number(value) for value in (-1.23456, 29.8389, 140.4, 22565376)] == [
        "-1.2346",
        "29.8",
        "140",
        "22,565,376",
    ]
