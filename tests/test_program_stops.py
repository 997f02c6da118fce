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


@pytest.mark.parametrize(
    ("options", "words", "good"),
    [
        (dict(learning_rate=1e30, clip_norm=0.0, warmup_fraction=0.0), "the loss is not finite at step ", 0),
        # Normalised vectors keep the loss finite at this learning rate.
        (dict(learning_rate=1000.0), r"at step 10.*collapse.*lower optimizer.learning_rate \(it is 1000\)", 5),
    ],
)
def test_a_training_that_diverges_stops_and_names_its_last_good_checkpoint(folder, options, words, good):
    workdir, options = folder / f"diverged{good}", {f"optimizer__{name}": value for name, value in options.items()}
    with pytest.raises(InputError, match=f"training diverged, (?=.*the checkpoint of step {good} is good){words}"):
        main.main([*tiny_arguments(folder, **options), f"--workdir={workdir}"])
    assert Checkpoints(Workdir(workdir)).steps[-1] == good


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
