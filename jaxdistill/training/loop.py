"""The training loop. It reads a step's batch, runs the step, and when due, writes metrics, evaluates the student, saves the state.

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

from jaxdistill.core import Array, Batch, Diverged, InputError, Tokens, TrainState, platform
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.core.cluster import processes
from jaxdistill.core.runtime import Interrupted, Interrupts
from jaxdistill.data.batches import Batches
from jaxdistill.data.packing import Shape, Shapes
from jaxdistill.training.build import Run, profiled_steps
from jaxdistill.training.dev import Evaluator
from jaxdistill.training.metrics import Callback, Goodput, Metrics, product_flops, say
from jaxdistill.training.workdir.checkpoint import Checkpoints
from jaxdistill.training.workdir.folder import Workdir

STEPS_IN_FLIGHT = 8
"""Maximum number of steps that are dispatched but not finished. NOTE: without a bound, several CPU devices deadlock in a collective."""

log = logging.getLogger(__name__)


def train(run: Run, workdir: Workdir, *, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
    """Trains from the latest checkpoint, or from step 0. Returns the `Evaluator`'s record, with two more entries: `seconds`, the time
    that training took in this process, and `spent`, the seconds of each activity of `Goodput`. Raises `Interrupted` after a signal,
    once the state is saved, and `Diverged` if a loss or a score is not finite, or a score cannot be computed."""
    begun = time.monotonic()
    goodput = Goodput()
    options, evals, optimizer = run.config.run, run.config.evals, run.config.optimizer
    steps = run.program.steps
    signal_notice = "stopping after this step and its evaluation; a second signal ends the run at once, without saving"
    log_every = min(options.log_every, max(steps // 3, 1))  # at least three points in the curves of a short run
    checkpoints = Checkpoints(workdir, keep=options.keep, keep_steps=evals.average)
    try:
        with Interrupts(signal_notice) as interrupts, contextlib.ExitStack() as stack:
            # Not for a run whose last step is saved, which calls no step, nor on CPUs, which compile fast.
            compile_early = steps not in checkpoints.steps and platform(run.mesh) != "cpu"
            train_step = CountedStep(run, goodput, compile_early=compile_early)
            with goodput.spent("checkpoints"):
                state, record = first_or_restored(run, checkpoints)
            start = int(state.step)
            is_new = record["before"] is None
            metrics = Metrics(run, goodput, stack, start=start, is_new=is_new, callbacks=callbacks)
            evaluator = Evaluator(run, record)

            def evaluate(step: int, state: TrainState) -> None:
                metrics.report(step)
                with goodput.spent("evaluation"):
                    scores = evaluator.evaluate(step, state.evaluated_params)
                metrics.write(step, scores)

            def save(step: int, state: TrainState) -> None:
                metrics.report(step)
                with goodput.spent("checkpoints"):
                    checkpoints.save(state, record)

            if is_new:
                evaluate(start, state)
                save(start, state)
            elif start == steps and (record.get("evaluated", start) != start or record["best"] is None):
                # `run.steps` was lowered to the step of a checkpoint that was not evaluated, or whose best checkpoint is gone.
                evaluate(start, state)
            stop = start if evaluator.reason_to_stop() else steps  # a run that has stopped early stays so
            trace_first, trace_last = profiled_steps(options.profile) if processes.is_first() else (0, 0)
            trace_first = max(trace_first, start + 1)  # if the run is resumed, the steps that are left are traced
            trace = stack.enter_context(contextlib.ExitStack())
            stop_vote = processes.StopVote(run.mesh, delay=STEPS_IN_FLIGHT)
            batches = stack.enter_context(contextlib.closing(prefetch(run.batches, start, stop)))
            for step in range(start + 1, stop + 1):
                with goodput.spent("data"):
                    batch = meshes.place_batch(next(batches), run.mesh)
                if step == trace_first and step <= trace_last:
                    jax.block_until_ready(state)
                    trace.enter_context(jax.profiler.trace(str(run.workdir / "profile")))
                with jax.profiler.StepTraceAnnotation("train", step_num=step):
                    state, scalars = train_step(state, batch)
                if step == trace_last:
                    jax.block_until_ready(scalars)
                    trace.close()
                metrics.add(step, scalars)
                is_last = step == steps
                is_evaluated = is_last or step % evals.every == 0
                if is_last or step % log_every == 0:
                    metrics.report(step)
                if is_evaluated:
                    evaluate(step, state)
                if is_evaluated or step in evals.average or (options.save_every and step % options.save_every == 0):
                    save(step, state)
                if not is_last and (reason := evaluator.reason_to_stop()):
                    say(f"stopped at step {step:,}: {reason}")
                    break
                if status := stop_vote.after_step(interrupts.status):
                    save(step, state)
                    checkpoints.wait()
                    raise Interrupted(status, f": step {step:,} is saved; the same command continues from there")
    except Exception as error:
        with contextlib.suppress(InputError):  # the error already raised is more informative
            checkpoints.close()
        if not isinstance(error, Diverged):
            raise
        kept = checkpoints.steps
        good = f"the checkpoint of step {kept[-1]} is good" if kept else "there is no checkpoint"
        raise Diverged(
            f"training diverged, {error}; {good}. Use another --workdir with a lower optimizer.learning_rate (it is "
            f"{optimizer.learning_rate:g}), optimizer.clip_norm above 0 (it is {optimizer.clip_norm:g}) or run.precision=float32."
        ) from error
    with goodput.spent("checkpoints"):
        checkpoints.close()
    return record | {"seconds": time.monotonic() - begun, "spent": goodput.total}


def first_or_restored(run: Run, checkpoints: Checkpoints) -> tuple[TrainState, dict[str, Any]]:
    """The state and the `Evaluator`'s record of the latest checkpoint, or of step 0; raises `InputError` if they do not fit the options."""
    restored = checkpoints.restore(run.program.like, run.program.shardings)
    if restored is None:
        return run.first_state(run.seeds()), {"best": None, "best_step": 0, "since_best": 0, "before": None}
    state, record = restored
    step = int(state.step)
    log.info("continuing from the checkpoint of step %d in %s", step, checkpoints.folder)
    kept = checkpoints.steps
    average = run.config.evals.average
    missing = [averaged for averaged in average if averaged <= step and averaged not in kept]
    if step > run.program.steps or missing:
        raise InputError(
            f"{run.workdir} is at step {step} and keeps the checkpoints of steps {', '.join(map(str, kept))}, which do not go "
            f"with run.steps={run.program.steps} and evals.average={average}; raise --config.run.steps, or average kept or later steps."
        )
    # The checkpoint of a better step had replaced this record's best one, before the run went back (`run.restore_step`).
    if record["best_step"] not in kept:
        record |= {"best": None, "best_step": step}
    return state, record


class CountedStep:
    """Calls the training step of a run, with at most `STEPS_IN_FLIGHT` unfinished calls, and adds time and operations to `goodput`.
    The first call with batches of a shape counts as `compile`, the others as `steps`. With `compile_early`, threads compile the step
    for all usual shapes of a batch from the start; if the run fails, Python exits only when they have finished."""

    def __init__(self, run: Run, goodput: Goodput, *, compile_early: bool):
        self._step = run.program.train_step
        self._teacher_params = run.teacher_params
        self._goodput = goodput
        self._in_flight = deque[Array](maxlen=STEPS_IN_FLIGHT)
        """Losses of the latest steps."""
        # By the `shape_key` of a batch: operations of the step, programs that threads compile, and those that they have compiled.
        self._flops: dict[Any, float] = {}
        self._compiling: dict[Any, Future] = {}
        self._compiled: dict[Any, Any] = {}
        if compile_early:
            batch = run.batches.batch_at(0)
            threads = ThreadPoolExecutor(len(run.batches.usual_shapes), "compile")
            for shapes in run.batches.usual_shapes:
                like = abstract_batch(batch, shapes, run.batches.groups, run.batches.batch_size)
                compiling = threads.submit(self._compile, run.program.like, run.teacher_params, like)
                self._compiling[shape_key(like)] = compiling
            threads.shutdown(wait=False)

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        key = shape_key(batch)
        arguments = state, self._teacher_params, batch
        is_new = key not in self._flops
        if is_new:  # otherwise the time of steps that run while the host compiles would count as compiling
            with self._goodput.spent("steps"):
                jax.block_until_ready(arguments)
        with self._goodput.spent("compile" if is_new else "steps"):
            if is_new:
                self._flops[key] = product_flops(self._step.trace(*arguments).jaxpr.jaxpr)  # jit keeps the trace
            if key in self._compiling:
                self._compiled[key], seconds = self._compiling.pop(key).result()
                slots = " x ".join(map(str, batch.student.ids.shape))
                say(f"compiled the step for a batch of {slots} token slots in {seconds:.0f} s")
            with jax.transfer_guard("disallow"):  # an implicit transfer would stall every step
                state, scalars = self._compiled.get(key, self._step)(*arguments)
            # Waits for losses, not for states, whose buffers the next step takes over.
            if len(self._in_flight) == STEPS_IN_FLIGHT:
                jax.block_until_ready(self._in_flight[0])
            self._in_flight.append(scalars["loss"])
        self._goodput.flops += self._flops[key]
        return state, scalars

    def _compile(self, *arguments: Any) -> tuple[Any, float]:
        """The compiled step for arguments of these shapes, and the seconds that compiling took."""
        begun = time.monotonic()
        compiled = self._step.lower(*arguments).compile()
        return compiled, time.monotonic() - begun


def abstract_batch(batch: Batch, shapes: Shapes, groups: int, batch_size: int) -> Batch:
    """Shapes and dtypes of a batch of all processes, with tokens packed into `shapes` (the student's first, the teacher's last).
    `batch` is this process's part of any batch: it has the same dtypes, and the same axes after the first."""

    def abstract_tokens(tokens: Tokens | None, shape: Shape) -> Any:
        slots = (groups, shape.rows, shape.length)
        assert tokens is None or tokens.parts is None  # only CPUs divide rows, and they do not compile early
        return jax.tree.map(  # `first` is [groups, sentences], all other arrays are [groups, rows, slots]
            lambda x: jax.ShapeDtypeStruct(slots if x.ndim == 3 else (groups, x.shape[1]), x.dtype), tokens
        )

    by_example = jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), x.dtype), batch)
    student, teacher = abstract_tokens(batch.student, shapes[0]), abstract_tokens(batch.teacher, shapes[-1])
    return by_example._replace(student=student, teacher=teacher)


def shape_key(batch: Batch) -> tuple[tuple[int, ...], ...]:
    """The shapes of a batch's arrays, which identify the compiled program that it needs."""
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))


def prefetch(batches: Batches, start: int, stop: int) -> Generator[Batch]:
    """Yields the batches of steps `start` to `stop - 1`, counted from 0, while a thread prepares the next two."""
    thread = ThreadPoolExecutor(1, "prefetch")
    pending = deque[Future[Batch]]()
    try:
        for step in range(start, stop):
            pending.append(thread.submit(batches.batch_at, step))
            if len(pending) == 3:
                yield pending.popleft().result()
        for future in pending:
            yield future.result()
    finally:
        thread.shutdown(cancel_futures=True)
