"""What the training loop writes down and remembers of its steps and evaluations, without a training."""

import contextlib
from types import SimpleNamespace

import pytest

from jaxdistill.config import RunOptions
from jaxdistill.core import InputError
from jaxdistill.training import collapse, loop
from jaxdistill.training.run import Dev
from jaxdistill.training.schedule import Schedule
from jaxdistill.workdir.checkpoint import Restored


def test_a_run_beyond_the_steps_asked_for_is_refused():
    run = SimpleNamespace(
        config=SimpleNamespace(run=RunOptions()),
        layout=SimpleNamespace(like=None, shardings=None),
        program=SimpleNamespace(steps=10),
        dev=Dev(tasks={}, best="dev"),
        workdir="w",
    )
    for step, words in ((10, ""), (11, "w is at step 11, beyond the 10 steps asked for; raise --config.run.steps")):
        restored = Restored(step, None, {"before": {"dev": 0.5}})
        checkpoints = SimpleNamespace(
            folder="w/checkpoints", restore=lambda *args, restored=restored, **options: restored
        )
        with pytest.raises(InputError, match=words) if words else contextlib.nullcontext():
            loop._first_or_restored(run, checkpoints)


def noted(scores, *, is_last):
    """Best step, evaluations since and scores of the best step after each of these scores."""
    record = {"best": None, "since_best": 0}
    for step, score in enumerate(scores):
        loop.note_score(record, step, {"dev": score, "step": step}, best="dev", is_last=is_last)
        yield record["best_step"], record["since_best"], record["scores"]["step"]


def test_the_last_evaluation_counts_where_asked():
    assert [step for step, _, _ in noted((0.5, 0.6, 0.4), is_last=True)] == [0, 1, 2]


def test_an_equal_score_is_the_best_but_no_progress():
    found = list(noted((0.5, 0.5, 0.4, 0.5, 0.6, 0.6), is_last=False))
    assert found == [(0, 0, 0), (1, 1, 1), (1, 2, 1), (3, 3, 3), (4, 0, 4), (5, 1, 5)]


def test_steps_are_saved_at_evaluations_at_save_every_and_for_a_mean_of_checkpoints():
    schedule = Schedule(steps=20, log_every=1, evaluate_every=15, save_every=6, averaged=(4, 12))
    assert [step for step in range(1, 21) if schedule.saves(step)] == [4, 6, 12, 15, 18, 20]


def test_vectors_that_gather_slowly_collapse_too(caplog):
    """Each spread is more than a quarter of the one before."""
    highest, warned = {}, []
    for step, spread in enumerate((0.4, 0.2, 0.11, 0.09)):
        highest = collapse.watched_spread(step, {collapse.SPREAD: spread, collapse.RANK: 9.0}, highest, stops=False)
        warned.append("fell from 0.4" in caplog.text)
    assert warned == [False, False, False, True]
