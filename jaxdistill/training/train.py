"""Trains a built run: restores the state, wires the hooks, runs the loop, and returns the resulting student.

The order of operations never changes: read a step's batch, run the step, then, when due, write metrics, evaluate the
student, and save the state. A checkpoint of step s holds the state after s updates, and is written only when all losses up
to s are known to be finite.
"""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from jaxdistill.cli import Interrupted, Interrupts
from jaxdistill.cluster import mesh as meshes
from jaxdistill.cluster import processes
from jaxdistill.core import Array, Batch, InputError, TrainState, platform
from jaxdistill.data.batches import Batches
from jaxdistill.training.ahead import StepPrograms
from jaxdistill.training.hooks.collapse import Collapse, sample_of
from jaxdistill.training.hooks.dev_scores import DevScores
from jaxdistill.training.hooks.goodput import Goodput
from jaxdistill.training.hooks.hook import Diverged, Hook
from jaxdistill.training.hooks.metrics import Callback
from jaxdistill.training.hooks.profile import Profile
from jaxdistill.training.hooks.recorder import Recorder, Saving
from jaxdistill.training.results.outcome import Outcome, open_checkpoints, outcome_of
from jaxdistill.training.run import Run
from jaxdistill.training.said import say
from jaxdistill.training.step import TrainStep
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
    """
    begun, goodput = time.monotonic(), Goodput()
    checkpoints = open_checkpoints(run, workdir)
    try:
        with Interrupts(STOPPING) as interrupts:
            # A finished run needs no step, and CPUs compile fast.
            ahead = run.program.steps not in checkpoints.steps and platform(run.program.mesh) != "cpu"
            programs = StepPrograms(run, ahead=ahead)
            with goodput.spent("checkpoints"):
                state, track = _first_or_restored(run, checkpoints)
                step, is_new = int(state.step), track["before"] is None
                _check_kept(run, checkpoints, step, is_new=is_new)
            recorder = Recorder(run, goodput, first_step=step, is_new=is_new, shown=progress, callbacks=callbacks)
            with contextlib.ExitStack() as stack, _advised(run, checkpoints):
                hooks = hooks_of(run, checkpoints, track, recorder=recorder, goodput=goodput)
                # A stack unwinds from its end, so hooks close in the order in which they are called.
                for hook in reversed(hooks):
                    stack.callback(hook.close)
                run_steps(run, state, hooks, programs=programs, goodput=goodput, interrupts=interrupts, is_new=is_new)
    except Exception:
        checkpoints.abandon()
        raise
    with goodput.spent("checkpoints"):
        checkpoints.close()
    return outcome_of(run, track, workdir, seconds=time.monotonic() - begun, spent=goodput.total)


def run_steps(
    run: Run,
    state: TrainState,
    hooks: Sequence[Hook],
    *,
    programs: TrainStep,
    goodput: Goodput,
    interrupts: Interrupts,
    is_new: bool,
) -> TrainState:
    """Runs the remaining steps and the hooks; returns the last state.

    Args:
      programs: the step, compiled for the shapes of batches.
      is_new: no checkpoint was restored.

    Raises:
      Interrupted: after a signal, when the hooks have saved their state.
    """
    stop_vote = processes.StopVote(run.program.mesh, delay=STEPS_IN_FLIGHT)
    in_flight = deque[Array](maxlen=STEPS_IN_FLIGHT)
    start = int(state.step)
    for hook in hooks:
        hook.at_start(start, state, is_new=is_new)
    stop = start if _reasons_to_stop(hooks) else run.program.steps
    with contextlib.closing(prefetch(run.text.batches, start, stop)) as batches:
        for step in range(start + 1, stop + 1):
            with goodput.spent("data"):
                batch = meshes.place_batch(next(batches), run.program.mesh, run.text.batches.groups)
            for hook in hooks:
                hook.before_step(step, state)
            with (
                goodput.step(run.program.train_step, state, run.program.teacher_params, batch),
                jax.profiler.StepTraceAnnotation("train", step_num=step),
            ):
                with jax.transfer_guard("disallow"):  # an implicit transfer would stall every step
                    state, metrics = programs(state, run.program.teacher_params, batch)
                # The loss, not the state: the next step donates the state's buffers.
                if len(in_flight) == STEPS_IN_FLIGHT:
                    jax.block_until_ready(in_flight[0])
                in_flight.append(metrics["loss"])
            for hook in hooks:
                hook.after_step(step, state, metrics)
            if step < run.program.steps and (reasons := _reasons_to_stop(hooks)):
                say(f"stopped at step {step:,}: {'; '.join(reasons)}")
                break
            if status := stop_vote.after_step(interrupts.status):
                for hook in hooks:
                    hook.at_interrupt(step, state)
                say(f"interrupted: step {step:,} is saved; the same command continues from there")
                raise Interrupted(status)
    return state


def _reasons_to_stop(hooks: Sequence[Hook]) -> list[str]:
    return [reason for hook in hooks if (reason := hook.reason_to_stop())]


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


def _check_kept(run: Run, checkpoints: Checkpoints, step: int, *, is_new: bool) -> None:
    """Raises `InputError` if a run that continues at `step` has already removed a checkpoint that evals.average names."""
    gone = [wanted for wanted in run.config.evals.average if wanted <= step and wanted not in checkpoints.steps]
    if gone and not is_new:
        raise InputError(
            f"evals.average={run.config.evals.average}: the checkpoint of step {gone[0]} was not kept; {checkpoints.folder} "
            f"has {', '.join(map(str, checkpoints.steps))}. Give such steps or later ones, or --config.evals.average='()'."
        )


def hooks_of(
    run: Run, checkpoints: Checkpoints, track: dict[str, Any], *, recorder: Recorder, goodput: Goodput
) -> list[Hook]:
    """The hooks of a run in the order in which the loop calls them; each relies on the ones before it.

    Args:
      track: the record of evaluations, which checkpoints keep.
    """
    evals, watched = run.config.evals, []
    if evals.collapse != "off" and not run.models.student.definition.reads_pairs:
        watched = sample_of(run.text.store)
    collapse = Collapse(watched, track, stops=evals.collapse == "stop") if watched else None
    return [
        Profile(run.config.run.profile if processes.is_first() else "", run.workdir, goodput),
        recorder,
        DevScores(run, track, recorder=recorder, goodput=goodput, collapse=collapse),
        Saving(checkpoints, track, recorder=recorder, goodput=goodput),
    ]


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
