"""Joins the processes of a run through JAX's distributed runtime, compares their inputs, and divides their work.

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
"""Time to wait after an error. If another process's death caused it, JAX ends this one meanwhile, with a status for a restart."""
FAILED = 1
"""Exit status after an unexpected error."""


class SharedError(InputError):
    """An `InputError` that all processes raise in the same call, so that none waits for another."""


@contextlib.contextmanager
def connected(facts: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Joins the processes of the run, if there are several, for the `with` block; enter it before using JAX's devices.
    `facts` returns what must be the same in all processes, such as the options; if it differs, all raise `InputError`. Raises
    `InputError` too if JAX does not find the other processes. If one never joins, JAX aborts."""
    if jax.distributed.is_initialized() or not may_have_others():
        yield
        return
    # JAX's preemption service would take SIGTERM away from the program's own handler, and handles no other signal.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        seconds = int(os.environ.get("JAXDISTILL_JOIN_SECONDS") or 60)
        # If a process never joins, JAX aborts with a stack trace; this line says what it was waiting for.
        print(f"joining the other processes, for at most {seconds} s (JAXDISTILL_JOIN_SECONDS)", flush=True)
        # Without these variables, JAX finds the others on TPU hosts, or by variables of SLURM, Open MPI or Kubernetes.
        count_text = os.environ.get("JAX_NUM_PROCESSES")
        index_text = os.environ.get("JAX_PROCESS_ID")
        jax.distributed.initialize(
            num_processes=int(count_text) if count_text else None,
            process_id=int(index_text) if index_text else None,
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=24 * 60 * 60,  # the first process may still upload files
        )
    except Exception as error:  # JAX asks servers through packages whose errors have no common base
        raise InputError(
            f"JAX cannot join the processes of this run ({error_line(error)}); set JAX_COORDINATOR_ADDRESS=FIRST_HOST:PORT and "
            "JAX_NUM_PROCESSES, the same for all, and for each its own JAX_PROCESS_ID from 0; or JAX_NUM_PROCESSES=1 for "
            "processes that train on their own."
        ) from error
    if count() == 1:
        yield
        return
    try:
        with agreed() as agreed_facts:
            agreed_facts |= facts()
        yield
    except BaseException as error:
        # Prints the error and exits at once, upon which JAX ends the others; a normal exit would wait for them.
        expected = last_line(error)
        if expected:
            text, status = expected
        else:  # perhaps from a collective that failed because another process has died
            text = "".join(traceback.format_exception(error))
            status = FAILED
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
    if os.environ.get("JAX_COORDINATOR_ADDRESS") or "JOB_COMPLETION_INDEX" in os.environ:  # Kubernetes
        return True
    process_counts = [os.environ.get(name) or "1" for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")]
    if any(number != "1" for number in process_counts):
        return True
    has_tpus = os.path.exists("/dev/accel0") or os.path.exists("/dev/vfio/0")
    return has_tpus and os.environ.get("JAX_PLATFORMS", "").lower() != "cpu"


@contextlib.contextmanager
def agreed() -> Iterator[dict[str, Any]]:
    """Yields a dict to fill with facts (JSON values) that must be the same in all processes.
    They are compared at the end of the `with` block. If any differ, all processes raise the same `InputError`, which names them."""
    facts: dict[str, Any] = {}
    yield facts
    first, *others = gathered(facts)
    for number, other in enumerate(others, start=1):
        differing = [key for key in {**first, **other} if first.get(key) != other.get(key)]
        if differing:
            texts = [f"{key} is {first.get(key)!r} in the first, {other.get(key)!r} in the other" for key in differing]
            raise InputError(
                f"process 0 and process {number} do not run the same training ({first_few(texts)}); start all with the same "
                "command, files and version, or with JAX_NUM_PROCESSES=1 for separate trainings."
            )


def gathered(value: Any) -> list[Any]:
    """The JSON values that the processes pass, in the order of the processes; all must call this together."""
    if count() == 1:
        return [value]
    content = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([len(content)], np.int32)).ravel()
    # Messages are padded to a power of two, at least 4 KiB, so that few shapes are compiled.
    padded = np.zeros(max(1 << (int(sizes.max()) - 1).bit_length(), 1 << 12), np.uint8)
    padded[: len(content)] = content
    rows = multihost_utils.process_allgather(padded)  # [processes, bytes]
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def wait(reason: str) -> None:
    """A barrier: waits until all processes have called this. `reason` only documents the call."""
    gathered(reason)


class StopVote:
    """Makes all processes stop after the same step, without ever making a step wait for another process.
    Each step starts computing the highest exit status that a process requests. It is read `delay` steps later, when it is ready."""

    def __init__(self, mesh: Mesh, *, delay: int):
        self._sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._delay = delay
        self._votes: collections.deque[Integer[jax.Array, ""]] = collections.deque()
        self._highest = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def after_step(self, status: int) -> int:
        """The exit status with which all processes stop after this step; 0: they go on.
        Every process calls this after every step. `status` is that of the signal which this process has received; 0: none."""
        if count() == 1:
            return status
        local = np.full(len(self._sharding.addressable_devices), status, np.int32)
        self._votes.append(self._highest(jax.make_array_from_process_local_data(self._sharding, local)))
        return int(self._votes.popleft()) if len(self._votes) > self._delay else 0


def folder_owner(folder: Path) -> int:
    """Index of the first process that sees the same folder as this one; all must call this together."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # Each process makes a file in its folder, and looks in it for the files of all, one of which is its own.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{index()}.") as file:
            is_seen = [(folder / name).exists() for name in gathered(Path(file.name).name)]
            wait("all have looked for the files of all")
    return is_seen.index(True)


def run_in_all(work: Callable[[], Result]) -> Result:
    """Calls `work` in every process; an `InputError` in one is raised in all, so that none waits forever.
    All processes must call this together. `work` may call models of `over_processes`, which call this in turn."""
    result = None
    message = ""
    try:
        result = work()
    except SharedError:  # from a call inside `work`, so all processes raise it
        raise
    except InputError as error:
        message = str(error)
    # If another process is still in a call inside its `work`, that call receives this message.
    messages = list(filter(None, gathered(message)))
    if messages:
        raise SharedError(messages[0])
    return cast(Result, result)


def over_processes(model: RoleEmbed | Scorer) -> Any:
    """The model as a function that divides sentences among the processes; all must call it together, with the same sentences."""
    if count() == 1:
        return model
    if isinstance(model, Scorer):

        def score(first: Sequence[str], second: Sequence[str]) -> Float[np.ndarray, " n"]:
            return _in_slices(len(first), lambda rows: model.score(first[rows], second[rows]))

        return PairScorer(score, embed=cast(Any, model))  # calling a `Scorer` for vectors raises `InputError`

    def embed(sentences: Sequence[str], *, role: str | Sequence[str] = "") -> Float[np.ndarray, "n e"]:
        return _in_slices(
            len(sentences), lambda rows: model(sentences[rows], role=role if isinstance(role, str) else role[rows])
        )

    return embed


def _in_slices(total: int, compute: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Calls `compute` with one slice of the `total` rows in each process, and returns the results of all rows in every process.
    An `InputError` in one process is raised in all."""
    if not total:
        return compute(slice(0, 0))
    size = -(-total // count())  # rounded up
    # A process for which no row is left computes the last row again; the result is cut off below.
    begin = min(index() * size, total - 1)
    part = run_in_all(lambda: np.asarray(compute(slice(begin, begin + size))))
    padded = np.zeros((size, *part.shape[1:]), part.dtype)
    padded[: len(part)] = part
    # As bytes, because JAX would convert float64 to float32.
    gathered_bytes = multihost_utils.process_allgather(padded.view(np.uint8), tiled=True)
    return gathered_bytes.view(part.dtype)[:total]


def is_first() -> bool:
    """Whether this process writes and prints for all."""
    return index() == 0


def index() -> int:
    """The index of this process in the run, from 0."""
    return jax.process_index() if jax.distributed.is_initialized() else 0


def count() -> int:
    """Number of processes in the run."""
    return jax.process_count() if jax.distributed.is_initialized() else 1
