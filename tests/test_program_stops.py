"""Where a training of the real program stops: it diverges, or its scores no longer improve."""

import json

import pytest

from jaxdistill import main
from jaxdistill.core import InputError
from jaxdistill.training.workdir.checkpoint import Checkpoints
from jaxdistill.training.workdir.folder import Workdir

from program import interrupted_at, tiny_arguments

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("program")


NOT_FINITE = dict(optimizer__learning_rate=1e30, optimizer__clip_norm=0.0, optimizer__warmup_fraction=0.0)
COLLAPSE = r"training diverged, at step 10.*collapse.*step {} is good.*lower optimizer.learning_rate \(it is 1000\)"


@pytest.mark.parametrize(
    ("options", "words", "good"),
    [
        (NOT_FINITE, "diverged, the loss is not finite at step .*checkpoint of step {} is good", 0),
        (dict(optimizer__learning_rate=1000.0), COLLAPSE, 5),  # normalised vectors keep the loss finite
    ],
)
def test_a_training_that_diverges_stops_and_names_its_last_good_checkpoint(tmp_path, options, words, good):
    with pytest.raises(InputError, match=words.format(good)):
        main.main([*tiny_arguments(tmp_path, **options), f"--workdir={tmp_path / 'run'}"])
    assert Checkpoints(Workdir(tmp_path / "run")).steps[-1] == good


def test_training_stops_without_a_better_score_and_a_resumed_run_keeps_its_best(folder, capsys, caplog):
    """Each step makes the student worse: the first checkpoint is the best, and the resumed run must keep it."""
    workdir = folder / "patience"
    options = dict(optimizer__learning_rate=0.3, evals__patience=2, run__steps=40, student__prompt="the cat ")
    arguments = [*tiny_arguments(folder, **options), f"--workdir={workdir}"]
    with interrupted_at(5):
        main.main(arguments)
    main.main(arguments)
    out = capsys.readouterr().out + caplog.text
    assert "continuing from the checkpoint of step 5" in out and "stopped at step 10" in out
    before = {path: path.stat().st_mtime_ns for path in (workdir / "export").rglob("*")}
    main.main(arguments)
    assert {path: path.stat().st_mtime_ns for path in (workdir / "export").rglob("*")} == before
    results = json.loads((workdir / "results.json").read_text())
    assert (results["best_step"], results["last_step"]) == (0, 10)
    assert results["scores"]["student after"] == results["scores"]["student before"]
    assert results["no_gain"].startswith("NO GAIN: ") and results["no_gain"].endswith("the untrained student")
    assert results["no_gain"] in out and results["no_gain"] in (workdir / "report.html").read_text()


def test_the_untrained_student_is_no_candidate_where_only_trained_ones_are(folder, capsys):
    options = dict(optimizer__learning_rate=0.3, evals__untrained=False, run__steps=6, evals__every=3)
    arguments = tiny_arguments(folder, **options)
    main.main([*arguments, f"--workdir={folder / 'trained'}"])
    results = json.loads((folder / "trained" / "results.json").read_text())
    assert results["best_step"] > 0 and "the best checkpoint, step" in capsys.readouterr().out
    assert results["scores"]["student after"] != results["scores"]["student before"]
