"""Joins the processes of a run, has them agree before anything is written, and ends all when one ends.

A run on several hosts is one program in several processes. Each sees the same text and plans the same batches, of which it
reads its part; the first writes. Where they do not start alike, they would hang in a collective or destroy each other's files.
"""

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from jaxdistill.cli import error_of_input, error_status, status_of
from jaxdistill.core import InputError
from jaxdistill.processes import channel as channels
from jaxdistill.processes import launch
from jaxdistill.processes.channel import Channel, end_process
from jaxdistill.processes.relay import Relay

JOIN_SECONDS = 25
"""How long processes wait for each other at the start, unless JAXDISTILL_JOIN_SECONDS says otherwise."""

FAILED = 1
"""Exit status after an error that is no `InputError`."""

_channel: Channel | None = None
"""To the other processes; None for a process on its own."""


@contextlib.contextmanager
def joined(facts: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Joins the processes of the run, if there are several; to be entered before JAX's devices are used.

    Args:
      facts: gives what must be the same in all of them; not called where there is one process.

    Raises:
      InputError: in every process, if one does not come, or the facts differ.
    """
    global _channel
    place = launch.own_place() if _channel is None else None
    if place is None:
        yield
        return
    seconds = float(os.environ.get("JAXDISTILL_JOIN_SECONDS") or JOIN_SECONDS)
    _channel, port = channels.opened(place, timeout_s=seconds)
    try:
        with _telling_the_others(_channel):
            with agreed() as own:
                own.update(facts())
            _start_jax(place, port, seconds)
            yield
            gathered("done")  # process 0 ends last, and serves the others till then
    finally:
        _channel = None


def _start_jax(place: launch.Place, port: int, seconds: float) -> None:
    # It would take SIGTERM away from the program.
    jax.config.update("jax_enable_preemption_service", False)
    target = (
        (place.host, port) if place.index == 0 else ("127.0.0.1", Relay((place.host, port), timeout_s=seconds).port)
    )
    try:
        jax.distributed.initialize(
            "{}:{}".format(*target),
            num_processes=place.count,
            process_id=place.index,
            local_device_ids=place.devices,
            cluster_detection_method="deactivate",
            initialization_timeout=int(seconds) + 1,
        )
    except (ValueError, IndexError, RuntimeError) as error:
        raise InputError(f"JAX could not join the processes ({str(error).splitlines()[0]}).") from error


@contextlib.contextmanager
def _telling_the_others(channel: Channel) -> Iterator[None]:
    """Ends the other processes with this one, in one line that says why.

    NOTE this one is ended here: JAX's own end would wait for the others, which do not come there any more.
    """
    try:
        yield
    except KeyboardInterrupt as stopped:
        channel.leave("it was interrupted", status=status_of(stopped))
        end_process(f"interrupted{stopped}", status_of(stopped))
    except BaseException as error:
        if known := error_of_input(error):
            channel.leave(str(known), status=error_status(known))
            end_process(f"error: {known}", error_status(known))
        channel.await_loss(2.0)
        channel.leave(f"{type(error).__name__}: {error}".splitlines()[0], status=FAILED)
        end_process(traceback.format_exc(), FAILED)
    channel.leave()


@contextlib.contextmanager
def agreed() -> Iterator[dict[str, Any]]:
    """Yields facts for its body to fill, name to value as JSON can hold it; they must be the same in every process.

    Raises:
      InputError: in every process, with the facts that differ.
    """
    facts: dict[str, Any] = {}
    yield facts
    if _channel is None:
        return
    problem = _difference(_channel.exchange(facts), _channel.names)
    if problem:
        _channel.leave()
        raise InputError(problem)


def _difference(facts: list[dict[str, Any]], names: list[str]) -> str:
    """What sets the processes apart; empty where nothing does."""
    for index, others in enumerate(facts):
        keys = [key for key in {**facts[0], **others} if facts[0].get(key) != others.get(key)]
        if keys:
            shown = "; ".join(
                f"{key} is {facts[0].get(key)!r} in the first, {others.get(key)!r} in the other" for key in keys
            )
            return (
                f"{names[0]} and {names[index]} do not run the same training ({shown}); start all with the same command, "
                f"files and version, or with JAX_NUM_PROCESSES=1 for trainings of their own."
            )
    return ""


def gathered(value: Any) -> list[Any]:
    """What each process gives, as JSON can hold it; waits for all."""
    return [value] if _channel is None else _channel.exchange(value)


def stop_status(asked: int, step: int, stop_at: int) -> int:
    """Exit status with which the run stops after `step`, or 0; all processes stop after the same step.

    Processes do not wait for each other here, except where one was asked to stop.

    Args:
      asked: exit status with which this process was asked to stop, by a signal; 0: it was not.
      step: the step that this process has started last; each process calls this after every step.
      stop_at: the step after which to stop if the first process learns now that one was asked; no process may have come
        beyond it.
    """
    return asked if _channel is None else _channel.stop_status(asked, step, stop_at)


def finishing() -> contextlib.AbstractContextManager[None]:
    """Inside, the end of another process does not end this one, which needs none of them for what it still does."""
    return contextlib.nullcontext() if _channel is None else _channel.finishing()


def is_first() -> bool:
    """Whether this process writes and talks for all."""
    return _channel is None or _channel.place.index == 0


def index() -> int:
    """The number of this process among those of the run."""
    return 0 if _channel is None else _channel.place.index


def count() -> int:
    """How many processes the run has."""
    return 1 if _channel is None else _channel.place.count
