"""Joins the processes of a run through JAX's distributed runtime, compares their inputs, and divides work among them.

A run on several hosts is one program in several processes. Each sees the same text and plans the same batches, but reads
only its part of them; the first one writes. JAX connects the processes, notices when one dies, and then ends the others.
"""

import collections
import contextlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Integer

from jaxdistill.core import InputError, PairScorer, RoleEmbed, Scorer, error_line, first_few
from jaxdistill.core.files import writing
from jaxdistill.core.runtime import last_line

Result = TypeVar("Result")

HEARTBEAT_SECONDS = 15
"""Silence after which JAX counts a process as dead and ends the others."""
VERDICT_SECONDS = HEARTBEAT_SECONDS + 5.0
"""Time within which JAX ends this process, with a status that makes launchers restart it, if another one's death caused its error."""
FAILED = 1
"""Exit status after an error other than `InputError`."""


class SharedError(InputError):
    """An `InputError` that all processes raise in the same call."""


@contextlib.contextmanager
def connected(facts: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Joins the processes of the run, if there are several; enter it before using JAX's devices.

    `facts` returns what must be the same in all processes. Raises `InputError` if JAX does not find the others, or, in every process,
    if the facts differ. If a process never joins, JAX aborts.
    """
    if jax.distributed.is_initialized() or not may_have_others():
        yield
        return
    # JAX's preemption service would take SIGTERM away from the program's own handler, and handles no other signal.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        seconds = int(os.environ.get("JAXDISTILL_JOIN_SECONDS") or 60)
        # If a process never joins, JAX aborts with a stack trace; this line says what it was waiting for.
        print(f"joining the other processes, for at most {seconds} s (JAXDISTILL_JOIN_SECONDS)", flush=True)
        # JAX finds the others on TPU hosts, or by SLURM's, Open MPI's or Kubernetes' variables, or these.
        count_text, index_text = (os.environ.get(f"JAX_{name}") for name in ("NUM_PROCESSES", "PROCESS_ID"))
        jax.distributed.initialize(
            num_processes=int(count_text) if count_text else None,
            process_id=int(index_text) if index_text else None,
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=24 * 60 * 60,  # the first process may still upload files
        )
    except Exception as error:  # JAX asks servers, and those packages' errors have no common base
        raise InputError(
            f"JAX cannot join the processes of this run ({error_line(error)}); set JAX_COORDINATOR_ADDRESS=FIRST_HOST:PORT and "
            "JAX_NUM_PROCESSES, the same for all, and for each its own JAX_PROCESS_ID from 0; or JAX_NUM_PROCESSES=1 for "
            "processes that train on their own."
        ) from error
    if count() == 1:
        yield
        return
    try:
        with agreed() as all_facts:
            all_facts |= facts()
        yield
    except BaseException as error:
        # Says why this process ends, and exits at once: a normal exit would wait for the others, which JAX then ends.
        expected = last_line(error)
        text, status = expected or ("".join(traceback.format_exception(error)), FAILED)
        if not expected:  # the error may come from a collective that failed because another process has died
            os.write(2, b"\nan error; JAX says soon if another process has died\n")
            time.sleep(VERDICT_SECONDS)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os.write(2, f"\n{text.rstrip()}\n".encode())
        if is_first():
            time.sleep(3.0)  # when this process ends, the others end, and they must print their errors first
        os._exit(status)


def may_have_others() -> bool:
    """Whether a launcher's variables or the kind of host suggest that this process is one of several."""
    if os.environ.get("JAX_NUM_PROCESSES") == "1":
        return False
    if os.environ.get("JAX_COORDINATOR_ADDRESS") or "JOB_COMPLETION_INDEX" in os.environ:
        return True
    if any(os.environ.get(name, "1") not in ("", "1") for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")):
        return True
    has_tpus = os.path.exists("/dev/accel0") or os.path.exists("/dev/vfio/0")
    return has_tpus and os.environ.get("JAX_PLATFORMS", "").lower() != "cpu"


@contextlib.contextmanager
def agreed() -> Iterator[dict[str, Any]]:
    """Yields a dict to fill with facts (JSON values), which all processes compare as the block ends: if any differs, all raise the
    same `InputError`, which names the differences."""
    facts: dict[str, Any] = {}
    yield facts
    first, *others = gathered(facts)
    for number, other in enumerate(others, start=1):
        keys = [key for key in {**first, **other} if first.get(key) != other.get(key)]
        if keys:
            shown = first_few(
                [f"{key} is {first.get(key)!r} in the first, {other.get(key)!r} in the other" for key in keys]
            )
            raise InputError(
                f"process 0 and process {number} do not run the same training ({shown}); start all with the same "
                "command, files and version, or with JAX_NUM_PROCESSES=1 for separate trainings."
            )


def gathered(value: Any) -> list[Any]:
    """The value (JSON) that each process passes, in the order of the processes; all must call this together."""
    if count() == 1:
        return [value]
    content = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([len(content)], np.int32)).ravel()
    # The size of a message is a power of two, at least 4 KiB, so that few shapes are compiled.
    padded = np.zeros(max(1 << (int(sizes.max()) - 1).bit_length(), 1 << 12), np.uint8)
    padded[: len(content)] = content
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def wait(what: str) -> None:
    """Barrier: waits until all processes have called this; `what` documents the call."""
    gathered(what)


class StopVote:
    """Makes all processes stop after the same step, without ever making a step wait for another process.

    Every step starts a maximum over the processes' requested exit statuses, which is read `delay` steps later, when it is ready anyway.
    """

    def __init__(self, mesh: Mesh, *, delay: int):
        self._sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._delay = delay
        self._votes: collections.deque[Integer[jax.Array, ""]] = collections.deque()
        self._highest = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def after_step(self, status: int) -> int:
        """The status with which all processes exit after this step, or 0 to go on; every process calls it after every step, with the
        status of the signal that it received, or 0."""
        if count() == 1:
            return status
        local = np.full(len(self._sharding.addressable_devices), status, np.int32)
        self._votes.append(self._highest(jax.make_array_from_process_local_data(self._sharding, local)))
        return int(self._votes.popleft()) if len(self._votes) > self._delay else 0


def folder_owner(folder: Path) -> int:
    """Index of the first process that sees the same folder as this one; all must call this together."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{index()}.") as file:
            seen = [(folder / name).exists() for name in gathered(Path(file.name).name)]
            wait("all have looked")
    return seen.index(True)


def run_in_all(work: Callable[[], Result]) -> Result:
    """The result of `work`, which may call models of `over_processes`; all must call this together. An `InputError` in one process is
    raised in all, so that none waits forever."""
    problem, result = "", None
    try:
        result = work()
    except SharedError:
        raise
    except InputError as error:
        problem = str(error)
    # A process whose work failed calls this while others may still be in a call inside theirs, which then raises its problem.
    problems = [reported for reported in gathered(problem) if reported]
    if problems:
        raise SharedError(problems[0])
    return cast(Result, result)


def over_processes(embed: RoleEmbed | Scorer) -> Any:
    """Divides a model's sentences among the processes; all must call the result together, with the same sentences."""
    if count() == 1:
        return embed
    if isinstance(embed, Scorer):

        def score(first: Sequence[str], second: Sequence[str]) -> Float[np.ndarray, " n"]:
            return _in_slices(len(first), lambda rows: embed.score(first[rows], second[rows]))

        return PairScorer(score, cast(Any, embed))

    def embed_slices(sentences: Sequence[str], *, role: str | Sequence[str] = "") -> Float[np.ndarray, "n e"]:
        return _in_slices(
            len(sentences), lambda rows: embed(sentences[rows], role=role if isinstance(role, str) else role[rows])
        )

    return embed_slices


def _in_slices(rows: int, compute: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Computes a slice of the rows in each process, and returns all rows; an `InputError` in one process is raised in all."""
    if not rows:
        return compute(slice(0, 0))
    size = -(-rows // count())  # rounded up
    # A process for which no row is left computes the last one once more, which is cut off below.
    begin = min(index() * size, rows - 1)
    part = run_in_all(lambda: np.asarray(compute(slice(begin, begin + size))))
    padded = np.zeros((size, *part.shape[1:]), part.dtype)
    padded[: len(part)] = part
    # As bytes, because JAX would convert float64 to float32.
    gathered_bytes = multihost_utils.process_allgather(padded.view(np.uint8), tiled=True)
    return gathered_bytes.view(part.dtype)[:rows]


def is_first() -> bool:
    """Whether this process writes and prints for all."""
    return index() == 0


def index() -> int:
    """The index of this process in the run, from 0."""
    return jax.process_index() if jax.distributed.is_initialized() else 0


def count() -> int:
    """Number of processes in the run."""
    return jax.process_count() if jax.distributed.is_initialized() else 1
