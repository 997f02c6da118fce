"""What the training loop writes down and remembers of its steps and evaluations, without a training."""

import contextlib
from types import SimpleNamespace

import pytest

from jaxdistill.core import InputError
from jaxdistill.training import collapse, loop
from jaxdistill.training.dev_scores import DevScores
from jaxdistill.training.run import Dev
from jaxdistill.training.schedule import Schedule
from jaxdistill.workdir.checkpoint import Restored


def test_a_run_beyond_the_steps_asked_for_is_refused():
    run = SimpleNamespace(
        layout=SimpleNamespace(like=None, shardings=None),
        program=SimpleNamespace(steps=10),
        dev=Dev(tasks={}, best="dev"),
        workdir="w",
    )
    for step, words in ((10, ""), (11, "w is at step 11, beyond the 10 steps asked for; raise --config.run.steps")):
        restored = Restored(step, None, {"before": {"dev": 0.5}})
        checkpoints = SimpleNamespace(folder="w/checkpoints", restore=lambda *given, restored=restored: restored)
        with pytest.raises(InputError, match=words) if words else contextlib.nullcontext():
            loop._first_or_restored(run, checkpoints)


def judged(*, exports_last: bool) -> SimpleNamespace:
    """What `DevScores.compare` reads, before the first evaluation."""
    run = SimpleNamespace(dev=Dev(tasks={}, best="dev"), exports_last=exports_last)
    return SimpleNamespace(run=run, track={"best": None, "since_best": 0})


def test_the_last_evaluation_counts_where_asked():
    state = judged(exports_last=True)
    for step, score in enumerate((0.5, 0.6, 0.4)):
        DevScores.compare(state, step, {"dev": score})
        assert (state.track["best_step"], state.track["scores"]["dev"]) == (step, score)


def test_an_equal_score_is_the_best_but_no_progress():
    state = judged(exports_last=False)
    found = []
    for step, score in enumerate((0.5, 0.5, 0.4, 0.5, 0.6, 0.6)):
        DevScores.compare(state, step, {"dev": score, "step": step})
        found.append((state.track["best_step"], state.track["since_best"], state.track["scores"]["step"]))
    assert found == [(0, 0, 0), (1, 1, 1), (1, 2, 1), (3, 3, 3), (4, 0, 4), (5, 1, 5)]


def test_steps_are_saved_at_evaluations_at_save_every_and_for_a_mean_of_checkpoints():
    schedule = Schedule(steps=20, log_every=1, evaluate_every=15, save_every=6, averaged=(4, 12))
    assert [step for step in range(1, 21) if schedule.saves(step)] == [4, 6, 12, 15, 18, 20]


def test_vectors_that_gather_slowly_collapse_too(monkeypatch, caplog):
    """Each spread is more than a quarter of the one before."""
    watched = collapse.Collapse([], {}, stops=False)
    embedder = SimpleNamespace(encode=len)
    warned = []
    for step, spread in enumerate((0.4, 0.2, 0.11, 0.09)):
        found = {collapse.SPREAD: spread, collapse.RANK: 9.0}
        monkeypatch.setattr(collapse, "measured_spread", lambda embed, sentences, found=found: found)
        watched.spread(step, {}, embedder)
        warned.append("fell from 0.4" in caplog.text)
    assert warned == [False, False, False, True]
