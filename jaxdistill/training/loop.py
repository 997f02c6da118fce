"""The training loop: read a step's batch, run the step, then, when due, write metrics, evaluate the student, save the state.

A checkpoint of step s holds the state after s updates, and is written only when all losses up to s are known to be finite.
"""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from jaxdistill.core import Array, Batch, Diverged, InputError, Params, Tokens, TrainState, platform
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.core.cluster import processes
from jaxdistill.core.runtime import Interrupted, Interrupts
from jaxdistill.data.batches import Batches
from jaxdistill.data.packing import Shape, Shapes
from jaxdistill.training.build import profiled_steps
from jaxdistill.training.dev import Evaluator
from jaxdistill.training.finish import Outcome, outcome_of
from jaxdistill.training.metrics import Callback, Goodput, Metrics, product_flops, say
from jaxdistill.training.run import Run
from jaxdistill.training.workdir.checkpoint import Checkpoints
from jaxdistill.training.workdir.folder import Workdir

STOPPING = "stopping after this step and its evaluation; a second signal ends the run at once, without saving"
"""Printed after the first signal."""
STEPS_IN_FLIGHT = 8
"""Most steps dispatched but not finished. NOTE: without a bound, several CPU devices deadlock in a collective."""
BATCHES_AHEAD = 2
"""Number of batches that a thread prepares while the devices compute."""

MIN_POINTS = 3
"""Fewest times that a short run logs its metrics; its curves could otherwise be a single point."""

log = logging.getLogger(__name__)


def train(run: Run, workdir: Workdir, *, progress: bool, callbacks: Sequence[Callback] = ()) -> Outcome:
    """Trains from the latest checkpoint of the workdir, or from step 0, to the end.

    Args:
      workdir: where the checkpoints are.
      callbacks: called with each line of metrics; an exception from one ends the training.

    Raises:
      Interrupted: after a signal, when the state is saved.
      Diverged: names the last good checkpoint, and what to change.
    """
    config, program, batches, goodput = run.config, run.program, run.text.batches, Goodput()
    begun = time.monotonic()
    save_every, log_every = config.run.save_every, min(config.run.log_every, max(program.steps // MIN_POINTS, 1))
    checkpoints = Checkpoints(workdir, keep=config.run.keep, keep_steps=config.evals.average)
    try:
        with Interrupts(STOPPING) as interrupts, contextlib.ExitStack() as stack:
            # A finished run needs no step, and CPUs compile fast.
            ahead = program.steps not in checkpoints.steps and platform(program.mesh) != "cpu"
            train_step = StepPrograms(run, ahead=ahead)
            with goodput.spent("checkpoints"):
                state, record = first_or_restored(run, checkpoints)
            start, is_new = int(state.step), record["before"] is None
            metrics = Metrics(run, goodput, start=start, is_new=is_new, progress=progress, callbacks=callbacks)
            stack.enter_context(contextlib.closing(metrics))
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
            first, last = profiled_steps(config.run.profile) if processes.is_first() else (0, 0)
            trace = stack.enter_context(contextlib.ExitStack())
            in_flight, flops = deque[Array](maxlen=STEPS_IN_FLIGHT), dict[Any, float]()
            stop_vote = processes.StopVote(program.mesh, delay=STEPS_IN_FLIGHT)
            coming = stack.enter_context(contextlib.closing(prefetch(batches, start, stop)))
            for step in range(start + 1, stop + 1):
                with goodput.spent("data"):
                    batch = meshes.place_batch(next(coming), program.mesh, batches.groups)
                if step == max(first, start + 1) <= last:  # a resumed run traces the steps that are left
                    jax.block_until_ready(state)
                    trace.enter_context(jax.profiler.trace(str(run.workdir / "profile")))
                shapes, arguments = _shapes(batch), (state, program.teacher_params, batch)
                compiles = shapes not in flops
                if compiles:  # steps that run while the host compiles would take no time
                    with goodput.spent("steps"):
                        jax.block_until_ready(arguments)
                with (
                    goodput.spent("compile" if compiles else "steps"),
                    jax.profiler.StepTraceAnnotation("train", step_num=step),
                ):
                    if compiles:
                        traced = program.train_step.trace(*arguments)  # jit keeps it
                        flops[shapes] = product_flops(traced.jaxpr.jaxpr)
                    with jax.transfer_guard("disallow"):  # an implicit transfer would stall every step
                        state, scalars = train_step(*arguments)
                    # The loss, not the state: the next step donates the state's buffers.
                    if len(in_flight) == STEPS_IN_FLIGHT:
                        jax.block_until_ready(in_flight[0])
                    in_flight.append(scalars["loss"])
                goodput.flops += flops[shapes]
                if step == last:
                    jax.block_until_ready(scalars)
                    trace.close()
                metrics.add(step, scalars)
                is_last = step == program.steps
                is_evaluated = is_last or step % config.evals.every == 0
                if is_last or step % log_every == 0:
                    metrics.report(step)
                if is_evaluated:
                    evaluate(step, state)
                if is_evaluated or step in config.evals.average or (save_every and step % save_every == 0):
                    save(step, state)
                if not is_last and (reason := evaluator.reason_to_stop()):
                    say(f"stopped at step {step:,}: {reason}")
                    break
                if status := stop_vote.after_step(interrupts.status):
                    save(step, state)
                    checkpoints.wait()
                    say(f"interrupted: step {step:,} is saved; the same command continues from there")
                    raise Interrupted(status)
    except Diverged as error:
        checkpoints.close()
        good = (
            f"the checkpoint of step {checkpoints.steps[-1]} is good" if checkpoints.steps else "there is no checkpoint"
        )
        raise Diverged(
            f"training diverged, {error}; {good}. Use another --workdir with a lower optimizer.learning_rate (it is "
            f"{config.optimizer.learning_rate:g}), optimizer.clip_norm above 0 (it is {config.optimizer.clip_norm:g}) or "
            f"run.precision=float32."
        ) from error
    except Exception:
        with contextlib.suppress(InputError):  # the error on its way says more
            checkpoints.close()
        raise
    with goodput.spent("checkpoints"):
        checkpoints.close()
    return outcome_of(run, workdir, record, seconds=time.monotonic() - begun, spent=goodput.total)


def first_or_restored(run: Run, checkpoints: Checkpoints) -> tuple[TrainState, dict[str, Any]]:
    """State and record of evaluations: from the latest checkpoint, or before step 1."""
    restored, average = checkpoints.restore(run.layout.like, run.layout.shardings), run.config.evals.average
    if restored is None:
        return run.first_state(run.text.seeds()), {"best": None, "best_step": 0, "since_best": 0, "before": None}
    log.info("continuing from the checkpoint of step %d in %s", restored.step, checkpoints.folder)
    if restored.step > run.program.steps:
        raise InputError(
            f"{run.workdir} is at step {restored.step}, beyond the {run.program.steps} steps asked for; raise --config.run.steps."
        )
    kept = checkpoints.steps
    if lost := [step for step in average if step <= restored.step and step not in kept]:
        raise InputError(
            f"evals.average={average}: the checkpoint of step {lost[0]} was not kept; {checkpoints.folder} "
            f"has {', '.join(map(str, kept))}. Give such steps or later ones, or --config.evals.average='()'."
        )
    if restored.progress["best_step"] not in kept:  # a later one was better, and the user has removed it
        restored.progress.update(best=None, best_step=restored.step)
    return restored.state, restored.progress


class StepPrograms:
    """A run's step, with a compiled program for each shape of its batches.

    Args:
      ahead: start compiling in threads, one for each shape but the last, which hardly any batch needs. Otherwise, and for the
        last shape, a program is compiled when a batch needs it. A process that fails waits for its threads.
    """

    def __init__(self, run: Run, *, ahead: bool):
        self._step = run.program.train_step
        self._programs: dict[Any, Future] = {}
        self._used: dict[Any, Any] = {}
        if ahead:
            batches = run.text.batches
            shapes, first = batches.usual_shapes, batches.batch_at(0)
            threads = ThreadPoolExecutor(len(shapes), "compile")
            for shape in shapes:
                batch = shaped(first, shape, batches.groups, batches.batch_size)
                compiling = threads.submit(self._compiled, run.layout.like, run.program.teacher_params, batch)
                self._programs[_shapes(batch)] = compiling
            threads.shutdown(wait=False)

    def __call__(self, state: TrainState, teacher_params: Params, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        """One step."""
        shapes = _shapes(batch)
        if shapes in self._programs:
            begun = time.monotonic()
            self._used[shapes], seconds = self._programs.pop(shapes).result()
            slots, waited = " x ".join(map(str, batch.student.ids.shape)), time.monotonic() - begun
            say(
                f"compiled the step for a batch of {slots} token slots in {seconds:.0f} s; training waited for {waited:.0f} s"
            )
        return self._used.get(shapes, self._step)(state, teacher_params, batch)

    def _compiled(self, *arguments: Any) -> tuple[Any, float]:
        begun = time.monotonic()
        return self._step.lower(*arguments).compile(), time.monotonic() - begun


def shaped(batch: Batch, shapes: Shapes, groups: int, batch_size: int) -> Batch:
    """The shapes of a batch like `batch`, with all groups, in other packed shapes: the student's and a live teacher's."""

    def tokens(like: Tokens | None, shape: Shape) -> Any:
        slots = (groups, shape.rows, shape.length)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(slots if x.ndim == 3 else (groups, x.shape[1]), x.dtype), like
        )

    targets: Any = jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), x.dtype), batch.targets)
    return Batch(tokens(batch.student, shapes[0]), tokens(batch.teacher, shapes[-1]), targets)


def _shapes(batch: Batch) -> Any:
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))


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
