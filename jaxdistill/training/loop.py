"""The loop of updates. Everything else that a training does is a hook (`hooks/`); `train.py` wires them in order."""

import contextlib
from collections import deque
from collections.abc import Sequence

import jax

from jaxdistill.cli import Interrupted, Interrupts
from jaxdistill.cluster import mesh as meshes
from jaxdistill.cluster import processes
from jaxdistill.core import Array, TrainState
from jaxdistill.data.prefetch import prefetch
from jaxdistill.training.hooks.goodput import Goodput
from jaxdistill.training.hooks.hook import Hook
from jaxdistill.training.run import Run
from jaxdistill.training.said import say

STEPS_IN_FLIGHT = 8
"""Most steps dispatched but not finished. NOTE: without a bound, several CPU devices deadlock in a collective."""


def run_steps(
    run: Run, state: TrainState, hooks: Sequence[Hook], *, goodput: Goodput, interrupts: Interrupts, is_new: bool
) -> TrainState:
    """Runs the remaining steps and the hooks; returns the last state.

    Args:
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
            with goodput.step(run.program.train_step, state, run.program.teacher_params, batch):
                with jax.transfer_guard("disallow"):  # an implicit transfer would stall every step
                    state, metrics = run.program.train_step(state, run.program.teacher_params, batch)
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
