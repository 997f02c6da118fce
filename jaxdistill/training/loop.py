"""The training loop: restores, steps, evaluates and saves until the last step, a lack of progress or an interrupt.

Order of operations, never changed: a step's batch is read, the step runs, and then, where due, its metrics are written,
the student is evaluated, and the state is saved. A checkpoint of step s holds the state after s updates, and is written
only when all losses up to s are known to be finite.
"""

import contextlib
import logging
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import jax
import numpy as np

from jaxdistill.cli import Interrupted, Interrupts
from jaxdistill.cluster import mesh as meshes
from jaxdistill.cluster import processes
from jaxdistill.config import Evals, flat
from jaxdistill.core import Array, Batch, InputError, Params, TrainState
from jaxdistill.data.batches import prefetch
from jaxdistill.inference import Embedder
from jaxdistill.students.parts.student import widths_of
from jaxdistill.training.hooks import collapse
from jaxdistill.training.hooks.goodput import Goodput
from jaxdistill.training.hooks.profile import Profile
from jaxdistill.training.metrics import Callback, Progress, Writers
from jaxdistill.training.outcome import Outcome, open_checkpoints, outcome_of
from jaxdistill.training.run import Run
from jaxdistill.training.said import say
from jaxdistill.workdir.checkpoint import Checkpoints
from jaxdistill.workdir.folder import refuse_other_dev_score

log = logging.getLogger(__name__)

STEPS_IN_FLIGHT = 8
"""Steps that may be waiting on the devices. NOTE: without a bound, several CPU devices deadlock in a collective."""

LEAST_POINTS = 3
"""Logged metrics of a short run, whose curves would be a single point otherwise."""


class Diverged(InputError):
    """The loss is not finite, or the student is of no use any more."""


def train(run: Run, *, progress: bool, shared: bool = True, callbacks: Sequence[Callback] = ()) -> Outcome:
    """Trains from the latest checkpoint of the workdir, or from step 0, to the end.

    Args:
      shared: whether all processes see the workdir.
      callbacks: called with the metrics that are written; what one raises ends the training.
    """
    begun, goodput = time.monotonic(), Goodput()
    checkpoints = open_checkpoints(run, shared=shared)
    try:
        with Interrupts() as interrupts:
            with goodput.spent("checkpoints"):
                state, track = _first_or_restored(run, checkpoints)
                _check_kept(run, checkpoints, int(state.step), is_new=track["before"] is None)
            loop = _Loop(run, checkpoints, goodput, int(state.step), track, progress, callbacks)
            with contextlib.closing(loop):
                state = loop.run_steps(state, interrupts)
    except Exception:
        checkpoints.abandon()
        raise
    with goodput.spent("checkpoints"):
        checkpoints.close()
    return outcome_of(run, track, shared, time.monotonic() - begun, goodput.total)


def _first_or_restored(run: Run, checkpoints: Checkpoints) -> tuple[TrainState, dict[str, Any]]:
    """The latest readable checkpoint, or the state before step 1 with what the evaluations have seen so far."""
    restored = checkpoints.restore(run.like, run.shardings)
    if restored is None:
        return run.first_state(run.seeds()), {"best": None, "best_step": 0, "since_best": 0, "before": None}
    log.info("continuing from the checkpoint of step %d in %s", restored.step, checkpoints.folder)
    if restored.step > run.steps:
        raise InputError(
            f"{run.workdir} is at step {restored.step}, beyond the {run.steps} steps asked for; raise run.steps."
        )
    if run.best not in (restored.progress["before"] or {run.best: None}):
        refuse_other_dev_score(run.workdir, ", ".join(restored.progress["before"]), run.best)
    return restored.state, restored.progress


def _check_kept(run: Run, checkpoints: Checkpoints, step: int, *, is_new: bool) -> None:
    """Raises `InputError` if a run that continues at `step` has removed a checkpoint of evals.average already."""
    gone = [wanted for wanted in run.config.evals.average if wanted <= step and wanted not in checkpoints.steps]
    if gone and not is_new:
        raise InputError(
            f"evals.average={run.config.evals.average}: the checkpoint of step {gone[0]} was not kept; {checkpoints.folder} "
            f"has {', '.join(map(str, checkpoints.steps))}. Give such steps or later ones, or --config.evals.average='()'."
        )


def patience_of(evals: Evals, steps_per_epoch: int) -> int:
    """Evaluations without a better score after which a run stops; 0: it never does."""
    of_epochs = math.ceil(round(evals.patience_epochs * steps_per_epoch / evals.every, 6))
    return min((count for count in (evals.patience, of_epochs) if count), default=0)


class _Loop:
    """State of the loop in one process."""

    def __init__(
        self,
        run: Run,
        checkpoints: Checkpoints,
        goodput: Goodput,
        first_step: int,
        track: dict[str, Any],
        shown: bool,
        callbacks: Sequence[Callback],
    ):
        self.run, self.checkpoints, self.goodput, self.track = run, checkpoints, goodput, track
        leads = processes.is_first()
        written = -1 if self.is_new else first_step  # a killed run may have written step 0 without saving it
        self.writers = None
        if leads:
            self.writers = Writers(run.workdir, last_step=written, config=flat(run.config), callbacks=callbacks)
        self.first_step = first_step
        self.bar = Progress(
            first_step=first_step,
            steps=run.steps,
            batch_size=run.batches.batch_size,
            shown=shown,
            seconds_left=self.seconds_left,
        )
        evaluated = run.config.student.evaluated(run.student, widths_of(run.teachers))
        self.embedder = Embedder(evaluated, mesh=run.mesh, compute_dtype=run.compute_dtype, params={})
        watches = run.config.evals.collapse != "off" and not run.student.definition.reads_pairs
        self.watched = collapse.sample_of(run.store) if watches else []
        self.profile = Profile(run.config.run.profile if leads else "", run.workdir)
        self.stop_vote = processes.StopVote(run.mesh, delay=STEPS_IN_FLIGHT)
        self.pending: list[tuple[int, Mapping[str, Array]]] = []
        """Steps whose metrics are still on the devices."""

    def run_steps(self, state: TrainState, interrupts: Interrupts) -> TrainState:
        """Runs the remaining steps; returns the last state."""
        run, evals, options = self.run, self.run.config.evals, self.run.config.run
        start, log_every = int(state.step), min(options.log_every, max(run.steps // LEAST_POINTS, 1))
        if self.is_new:
            self.evaluate(0, state)
            self.save(state)
        elif start == run.steps and self.track.get("evaluated", start) != start:  # a killed run was asked to end here
            self.evaluate(start, state)
        stop = start if self.out_of_patience else run.steps
        with contextlib.closing(prefetch(run.batches, start, stop)) as batches:
            for step in range(start + 1, stop + 1):
                with self.goodput.spent("data"):
                    placed = meshes.place_batch(next(batches), run.mesh, run.batches.groups)
                state = self.train_step(step, state, placed)
                self.bar.advance()
                last = step == run.steps
                if step % log_every == 0 or last:
                    self.report(step)
                evaluated = step % evals.every == 0 or last
                if evaluated:
                    self.evaluate(step, state)
                if evaluated or (options.save_every and step % options.save_every == 0):
                    self.save(state)
                if evaluated and not last and self.out_of_patience:
                    say(f"stopped at step {step:,}: {self.track['since_best']} evaluations without a better {run.best}")
                    break
                if status := self.stop_vote.after_step(interrupts.status):
                    self.save_and_exit(state, step, status)
        return state

    def train_step(self, step: int, state: TrainState, batch: Batch) -> TrainState:
        """One update; waits where too many steps are in flight."""
        run = self.run
        with self.goodput.spent("steps"):
            self.profile.before(step, state)
        with self.goodput.step(run.train_step, state, run.teacher_params, batch):
            with jax.transfer_guard("disallow"):  # nothing else goes to or from the devices in a step
                state, metrics = run.train_step(state, run.teacher_params, batch)
            self.pending.append((step, metrics))
            if len(self.pending) > STEPS_IN_FLIGHT:
                jax.block_until_ready(self.pending[-STEPS_IN_FLIGHT - 1][1]["loss"])
        with self.goodput.spent("steps"):
            self.profile.after(step, metrics)
        return state

    def report(self, step: int) -> None:
        """Fetches the metrics of all steps since the last report and writes their means."""
        if not self.pending:
            return
        with self.goodput.spent("steps"):
            fetched = [(number, jax.device_get(metrics)) for number, metrics in self.pending]
        self.pending.clear()
        bad = [number for number, metrics in fetched if not math.isfinite(metrics["loss"])]
        if bad:
            self.stop_non_finite(bad)
        means = {name: float(np.mean([metrics[name] for _, metrics in fetched])) for name in fetched[0][1]}
        rate = self.bar.rate(step)
        means |= {"learning_rate": float(np.asarray(self.run.schedule(step - 1))), "sentences_per_s": rate}
        means |= self.goodput.taken()
        self.bar.show(means["loss"], rate)
        if self.writers:
            self.writers.write(step, means)

    def evaluate(self, step: int, state: TrainState) -> None:
        """Runs every dev evaluation and tracks the best score."""
        self.report(step)
        student, widths = self.run.config.student, widths_of(self.run.teachers)
        params = student.evaluated_params(self.run.student, state.params["student"], widths)
        with self.goodput.spent("evaluation"):
            scores = self.scores(step, params)
            spread = self.watch_collapse(step, params) if self.watched else {}
        self.track["evaluated"] = step
        if step == 0:
            self.track["before"] = scores
        if step or self.run.config.evals.untrained:
            self.compare(step, scores)
        best_now = not self.run.exports_last and self.track["best"] is not None and self.track["best_step"] == step
        shown = ", ".join(f"{name} {100 * value:.2f}" for name, value in scores.items())
        say(f"step {step:,}: {shown}{' (best)' if best_now else ''}")
        if self.writers:
            self.writers.write(step, scores | spread)
        self.bar.restart(step)

    def scores(self, step: int, params: Params) -> dict[str, float]:
        """All dev metrics; a student that none can judge any more has diverged."""
        scores: dict[str, float] = {}
        try:
            for task in self.run.tasks.values():
                scores |= task(self.embedder.as_embed(params))
            for name, score in scores.items():
                if not math.isfinite(score):  # it would never be beaten
                    raise InputError(f"{name} is {score}")
        except InputError as error:
            if step == 0:
                raise
            self.stop_diverged(f"at step {step}: {str(error).rstrip('.')}")
        return scores

    def watch_collapse(self, step: int, params: Params) -> dict[str, float]:
        """The spread of the student's vectors; reports a collapse, or stops the run, as `evals.collapse` says."""
        spread = collapse.measured_spread(partial(self.embedder.encode, params=params, prompt=""), self.watched)
        highest = self.track.get("widest", {})
        found = collapse.collapse_of(spread, highest)
        self.track["widest"] = collapse.highest_of(spread, highest)
        if not found:
            return spread
        if self.run.config.evals.collapse == "stop":
            self.stop_diverged(f"at step {step}: the student's vectors collapse: {found}")
        log.warning("step %d: the student's vectors collapse: %s; evals.collapse=stop ends such a run", step, found)
        return spread

    def compare(self, step: int, scores: dict[str, float]) -> None:
        """Notes whether these scores are the best so far."""
        score, best = scores[self.run.best], self.track["best"]
        self.track["since_best"] = 0 if best is None or score > best else self.track["since_best"] + 1
        if self.run.exports_last or best is None or score >= best:  # of equals the later, which was trained for longer
            self.track |= {"best": score, "best_step": step, "scores": scores}

    def seconds_left(self, step: int) -> float:
        """Time of the training after `step`: the remaining steps at the mean of those so far, compilation not counted, and
        the remaining evaluations and checkpoints as the latest ones. 0: not known yet."""
        goodput, options, every = self.goodput, self.run.config.run, self.run.config.evals.every
        taken = goodput.total["data"] + goodput.total["steps"]
        steps = self.run.steps
        evaluations = -(-steps // every) - step // every if step < steps else 0
        saves = steps // options.save_every - step // options.save_every if options.save_every else 0
        apart = evaluations * goodput.last["evaluation"] + (evaluations + saves) * goodput.last["checkpoints"]
        return taken / (step - self.first_step) * (steps - step) + apart if step > self.first_step else 0.0

    @property
    def is_new(self) -> bool:
        """Whether step 0 is still to be evaluated and saved: nothing was restored."""
        return self.track["before"] is None

    @property
    def out_of_patience(self) -> bool:
        """Whether the score has not improved for as many evaluations as the options allow."""
        patience = patience_of(self.run.config.evals, self.run.batches.steps_per_epoch)
        return bool(patience) and self.track["since_best"] >= patience

    def save(self, state: TrainState) -> None:
        self.report(int(state.step))
        with self.goodput.spent("checkpoints"):
            self.checkpoints.save(state, self.track)
        self.bar.restart(int(state.step))

    def stop_non_finite(self, bad: list[int]) -> NoReturn:
        span = f"step {bad[0]}" if len(bad) == 1 else f"steps {bad[0]} to {bad[-1]}"
        self.stop_diverged(f"the loss is not finite at {span}")

    def stop_diverged(self, what: str) -> NoReturn:
        """Raises `Diverged` with the last good checkpoint and what to try."""
        self.checkpoints.wait()
        kept, options = self.checkpoints.steps, self.run.config.optimizer
        good = f"the checkpoint of step {kept[-1]} is good" if kept else "no checkpoint was written before"
        raise Diverged(
            f"training diverged, {what}; {good}. Use another --workdir with a lower optimizer.learning_rate (it is "
            f"{options.learning_rate:g}), optimizer.clip_norm above 0 (it is {options.clip_norm:g}) or run.precision=float32."
        )

    def save_and_exit(self, state: TrainState, step: int, status: int) -> NoReturn:
        """Saves an interrupted run and raises `Interrupted`."""
        self.save(state)
        self.checkpoints.wait()
        say(f"interrupted: step {step:,} is saved; the same command continues from there")
        raise Interrupted(status)

    def close(self) -> None:
        with self.goodput.spent("steps"):
            self.profile.close()
        self.bar.close()
        if self.writers:
            self.writers.close()
