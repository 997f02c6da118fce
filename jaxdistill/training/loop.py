"""The training loop: read a step's batch, run the step, then, when due, write metrics, evaluate the student, save the state.

A checkpoint of step s holds the state after s updates, and is written only when all losses up to s are known to be finite.
"""

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax

from jaxdistill.cluster import mesh as meshes
from jaxdistill.cluster import processes
from jaxdistill.core import Array, Batch, Diverged, InputError, Params, TrainState, platform
from jaxdistill.data.batches import Batches
from jaxdistill.inference import Embedder
from jaxdistill.signals import Interrupted, Interrupts
from jaxdistill.training.ahead import StepPrograms
from jaxdistill.training.collapse import measured_spread, sample_of, watched_spread
from jaxdistill.training.console import say
from jaxdistill.training.goodput import Goodput
from jaxdistill.training.metrics import Callback, Metrics
from jaxdistill.training.outcome import Outcome, open_checkpoints, outcome_of
from jaxdistill.training.profiling import Profiler
from jaxdistill.training.run import Run
from jaxdistill.training.schedule import patience_of, schedule_of
from jaxdistill.workdir.bucket import Workdir
from jaxdistill.workdir.checkpoint import Checkpoints
from jaxdistill.workdir.folder import refuse_other_dev_score

STOPPING = "stopping after this step and its evaluation; a second signal ends the run at once, without saving"
"""Printed after the first signal."""
STEPS_IN_FLIGHT = 8
"""Most steps dispatched but not finished. NOTE: without a bound, several CPU devices deadlock in a collective."""
BATCHES_AHEAD = 2
"""Number of batches that a thread prepares while the devices compute."""

log = logging.getLogger(__name__)


def train(run: Run, workdir: Workdir, *, progress: bool, callbacks: Sequence[Callback] = ()) -> Outcome:
    """Trains from the latest checkpoint of the workdir, or from step 0, to the end.

    Args:
      workdir: where the checkpoints are.
      callbacks: called with each line of metrics; an exception from one ends the training.

    Raises:
      Interrupted: after a signal, when the state is saved.
    """
    begun, goodput = time.monotonic(), Goodput()
    program, data = run.program, run.text.batches
    schedule = schedule_of(run.config, program.steps)
    checkpoints = open_checkpoints(run, workdir)
    try:
        with Interrupts(STOPPING) as interrupts, contextlib.ExitStack() as stack:
            # A finished run needs no step, and CPUs compile fast.
            ahead = program.steps not in checkpoints.steps and platform(program.mesh) != "cpu"
            train_step = StepPrograms(run, ahead=ahead)
            with goodput.spent("checkpoints"):
                state, record = _first_or_restored(run, checkpoints)
            start, is_new = int(state.step), record["before"] is None
            if not is_new:
                _check_averaged(run, checkpoints, start)
            stack.enter_context(_advised(run, checkpoints))
            options = {"start": start, "is_new": is_new, "progress": progress, "callbacks": callbacks}
            metrics = stack.enter_context(contextlib.closing(Metrics(run, schedule, goodput, **options)))
            profiler = Profiler(run.config.run.profile if processes.is_first() else "", run.workdir)
            stack.enter_context(contextlib.closing(profiler))
            evaluator = Evaluator(run, record)

            def evaluate(step: int, state: TrainState) -> None:
                metrics.report(step)
                with goodput.spent("evaluation"):
                    scores = evaluator.evaluate(step, state.params["student"])
                metrics.write(step, scores)
                metrics.restart_clock(step)

            def save(step: int, state: TrainState) -> None:
                metrics.report(step)
                with goodput.spent("checkpoints"):
                    checkpoints.save(state, record)
                metrics.restart_clock(step)

            # The last checkpoint of a run that was killed and is now asked for fewer steps was not evaluated.
            if is_new or (start == program.steps and record.get("evaluated", start) != start):
                evaluate(start, state)
            if is_new:
                save(start, state)
            stop = start if evaluator.reason_to_stop() else program.steps
            in_flight = deque[Array](maxlen=STEPS_IN_FLIGHT)
            stop_vote = processes.StopVote(program.mesh, delay=STEPS_IN_FLIGHT)
            batches = stack.enter_context(contextlib.closing(prefetch(data, start, stop)))
            for step in range(start + 1, stop + 1):
                with goodput.spent("data"):
                    batch = meshes.place_batch(next(batches), program.mesh, data.groups)
                with goodput.spent("steps"):
                    profiler.before_step(step, state)
                with (
                    goodput.step(program.train_step, state, program.teacher_params, batch),
                    jax.profiler.StepTraceAnnotation("train", step_num=step),
                ):
                    with jax.transfer_guard("disallow"):  # an implicit transfer would stall every step
                        state, scalars = train_step(state, program.teacher_params, batch)
                    # The loss, not the state: the next step donates the state's buffers.
                    if len(in_flight) == STEPS_IN_FLIGHT:
                        jax.block_until_ready(in_flight[0])
                    in_flight.append(scalars["loss"])
                with goodput.spent("steps"):
                    profiler.after_step(step, scalars)
                metrics.add(step, scalars)
                if schedule.logs(step):
                    metrics.report(step)
                if schedule.evaluates(step):
                    evaluate(step, state)
                if schedule.saves(step):
                    save(step, state)
                if step < program.steps and (reason := evaluator.reason_to_stop()):
                    say(f"stopped at step {step:,}: {reason}")
                    break
                if status := stop_vote.after_step(interrupts.status):
                    save(step, state)
                    checkpoints.wait()
                    say(f"interrupted: step {step:,} is saved; the same command continues from there")
                    raise Interrupted(status)
    except Exception:
        checkpoints.abandon()
        raise
    with goodput.spent("checkpoints"):
        checkpoints.close()
    return outcome_of(run, record, workdir, seconds=time.monotonic() - begun, spent=goodput.total)


class Evaluator:
    """Runs all dev evaluations, and notes the best score.

    Args:
      record: best score, its step, evaluations without a better one and so on; checkpoints keep it.
    """

    def __init__(self, run: Run, record: dict[str, Any]):
        self.run, self.record = run, record
        self.patience = patience_of(run.config.evals, run.text.batches.steps_per_epoch)
        evaluated = run.config.student.evaluated(run.models.student)
        self.embedder = Embedder(evaluated, mesh=run.program.mesh, compute_dtype=run.program.compute_dtype, params={})
        watched = run.config.evals.collapse != "off" and not evaluated.definition.reads_pairs
        self.sample = sample_of(run.text.store) if watched else []

    def evaluate(self, step: int, params: Params) -> dict[str, float]:
        """The scores of a student with these parameters and the spread of its vectors; prints the scores."""
        record, config = self.record, self.run.config.evals
        scores, spread = self.scores(step, params), {}
        if self.sample:
            spread = measured_spread(partial(self.embedder.encode, params=params, prompt=""), self.sample)
            stops = config.collapse == "stop"
            record["widest"] = watched_spread(step, spread, record.get("widest", {}), stops=stops)
        record["evaluated"] = step
        if step == 0:
            record["before"] = scores
        if step or config.untrained:
            note_score(record, step, scores, best=self.run.dev.best, is_last=self.run.exports_last)
        best_now = not self.run.exports_last and record["best"] is not None and record["best_step"] == step
        shown = ", ".join(f"{name} {100 * value:.2f}" for name, value in scores.items())
        say(f"step {step:,}: {shown or 'no dev set'}{' (best)' if best_now else ''}")
        return scores | spread

    def scores(self, step: int, params: Params) -> dict[str, float]:
        """All dev metrics; raises `Diverged` if a score cannot be computed or is not finite."""
        try:
            scores = self.run.dev.scores(self.embedder.as_embed(params))
            for name, score in scores.items():
                if not math.isfinite(score):  # no later score could beat it
                    raise InputError(f"{name} is {score}")
        except InputError as error:
            if step == 0:
                raise
            raise Diverged(f"at step {step}: {str(error).rstrip('.')}") from error
        return scores

    def reason_to_stop(self) -> str:
        """Why the training should stop early; empty: it should not."""
        if not self.patience or self.record["since_best"] < self.patience:
            return ""
        return f"{self.record['since_best']} evaluations without a better {self.run.dev.best}"


def note_score(record: dict[str, Any], step: int, scores: dict[str, float], *, best: str, is_last: bool) -> None:
    """Notes in the record whether these scores are the best so far.

    Args:
      best: the metric that decides.
      is_last: the latest scores always count as the best.
    """
    score, highest = scores.get(best, 0.0), record["best"]  # the metric may be missing only if `is_last`
    record["since_best"] = 0 if highest is None or score > highest else record["since_best"] + 1
    if is_last or highest is None or score >= highest:  # at equal scores the later one, trained for longer
        record |= {"best": score, "best_step": step, "scores": scores}


def _first_or_restored(run: Run, checkpoints: Checkpoints) -> tuple[TrainState, dict[str, Any]]:
    """State and record of evaluations: from the latest checkpoint or that of `run.restore_step`, or before step 1."""
    chosen = run.config.run.restore_step
    # A run that has already gone back, and was stopped since, continues from its latest step.
    back = chosen >= 0 and not checkpoints.went_back_to(chosen)
    restored = checkpoints.restore(run.layout.like, run.layout.shardings, step=chosen if back else None)
    if restored is not None and back:
        checkpoints.drop_after(chosen)
        restored.progress["went_back_to"] = chosen
        if restored.progress["best_step"] not in checkpoints.steps:  # a later one was better, and is removed too
            restored.progress.update(best=None, best_step=chosen)
    if restored is None:
        return run.first_state(run.text.seeds()), {"best": None, "best_step": 0, "since_best": 0, "before": None}
    log.info("continuing from the checkpoint of step %d in %s", restored.step, checkpoints.folder)
    if restored.step > run.program.steps:
        raise InputError(
            f"{run.workdir} is at step {restored.step}, beyond the {run.program.steps} steps asked for; raise --config.run.steps."
        )
    if run.dev.best not in (restored.progress["before"] or {run.dev.best: None}):
        refuse_other_dev_score(run.workdir, next(iter(restored.progress["before"])), run.dev.best)
    return restored.state, restored.progress


def _check_averaged(run: Run, checkpoints: Checkpoints, step: int) -> None:
    """Raises `InputError` if a run that continues at `step` has already removed a checkpoint that evals.average names."""
    average = run.config.evals.average
    if gone := [needed for needed in average if needed <= step and needed not in checkpoints.steps]:
        raise InputError(
            f"evals.average={average}: the checkpoint of step {gone[0]} was not kept; {checkpoints.folder} "
            f"has {', '.join(map(str, checkpoints.steps))}. Give such steps or later ones, or --config.evals.average='()'."
        )


@contextlib.contextmanager
def _advised(run: Run, checkpoints: Checkpoints) -> Iterator[None]:
    """Adds the last good checkpoint and advice to a `Diverged`."""
    try:
        yield
    except Diverged as error:
        checkpoints.wait()
        kept, options = checkpoints.steps, run.config.optimizer
        good = f"the checkpoint of step {kept[-1]} is good" if kept else "no checkpoint was written before"
        raise Diverged(
            f"training diverged, {error}; {good}. Use another --workdir with a lower optimizer.learning_rate (it is "
            f"{options.learning_rate:g}), optimizer.clip_norm above 0 (it is {options.clip_norm:g}) or "
            f"run.precision=float32."
        ) from error


def prefetch(batches: Batches, start: int, stop: int) -> Generator[Batch]:
    """Yields the batches of steps `start` to `stop - 1`, which one thread prepares."""
    thread = ThreadPoolExecutor(1, "prefetch")
    try:
        ahead = deque(thread.submit(batches.batch_at, step) for step in range(start, min(start + BATCHES_AHEAD, stop)))
        for step in range(start + BATCHES_AHEAD, stop + BATCHES_AHEAD):
            batch = ahead.popleft().result()
            if step < stop:
                ahead.append(thread.submit(batches.batch_at, step))
            yield batch
    finally:
        thread.shutdown(cancel_futures=True)
