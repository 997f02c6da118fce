"""Finds the place of this process among those of a run: by environment variables, or by JAX's own cluster detection."""

import os
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxdistill.core import InputError

TASKS = {
    "SLURM": "SLURM_STEP_NUM_TASKS",
    "Open MPI": "OMPI_COMM_WORLD_SIZE",
    "MPI": "PMI_SIZE",
}
"""Launcher to the variable in which it says how many tasks it has started."""
SLICES = ("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID")
"""Variables of a run on several TPU slices."""
POD = "JOB_COMPLETION_INDEX"
"""In it, Kubernetes numbers the pods of an indexed job."""
WHAT_TO_SET = (
    "set JAX_COORDINATOR_ADDRESS=FIRST_HOST:PORT and JAX_NUM_PROCESSES, the same for all, and for each its own JAX_PROCESS_ID "
    "from 0; or JAX_NUM_PROCESSES=1 for tasks that train on their own"
)


class Place(NamedTuple):
    """Where a process stands among those of a run."""

    host: str
    """Of process 0."""
    port: int
    """At which process 0 waits for the others."""
    count: int
    index: int
    devices: Sequence[int] | None
    """Local devices to use; None: all of them."""


def own_place() -> Place | None:
    """The place of this process; None for a process on its own.

    Raises:
      InputError: a launcher has started several tasks and they cannot be joined, or the variables are wrong.
    """
    given = {name: os.environ.get(name) for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")}
    count, index = (_number(name, given[name]) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    launcher, tasks = launched()
    if count != 1:
        _refuse_stale_slices()
    if count == 1 or not (given["JAX_COORDINATOR_ADDRESS"] or tasks > 1 or _is_in_a_cluster()):
        return None
    found = _detected(given["JAX_COORDINATOR_ADDRESS"], count, index)
    address, count, index, devices = found
    if None in (address, count, index):
        raise InputError(f"{_why_not_found(given['JAX_COORDINATOR_ADDRESS'], launcher, tasks)} {WHAT_TO_SET}.")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise InputError(f"JAX_COORDINATOR_ADDRESS={address} is not HOST:PORT; {WHAT_TO_SET}.")
    if tasks > 1 and count != tasks:
        raise InputError(f"{launcher} has started {tasks} tasks, and JAX sees {count} processes; {WHAT_TO_SET}.")
    if not 0 <= index < count:
        raise InputError(f"process {index} of {count} does not exist: the first is 0; {WHAT_TO_SET}.")
    return Place(host.strip("[]"), int(port), count, index, devices) if count > 1 else None


def launched() -> tuple[str, int]:
    """The launcher and how many tasks of this program it has started; one where no launcher says so."""
    for launcher, variable in TASKS.items():
        if os.environ.get(variable, "").isdigit():
            return launcher, int(os.environ[variable])
    return "", 1


def refuse_several_tasks(what: str) -> None:
    """Raises `InputError` if `what`, which runs in one process, was started several times by a launcher."""
    launcher, tasks = launched()
    if tasks > 1 and os.environ.get("JAX_NUM_PROCESSES") != "1":
        raise InputError(
            f"{launcher} has started {tasks} tasks of {what}, which needs one; start it with --ntasks=1 or -n 1."
        )


def _number(name: str, text: str | None) -> int | None:
    if text is not None and not text.isdigit():
        raise InputError(f"{name}={text} is not a number; {WHAT_TO_SET}.")
    return None if text is None else int(text)


def _is_in_a_cluster() -> bool:
    """Whether JAX may find other processes where no launcher counts tasks: on TPU hosts and in indexed jobs of Kubernetes."""
    if os.environ.get("JAX_PLATFORMS", "").lower() == "cpu":
        return POD in os.environ
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "")
    return "," in hosts or _has_tpus() or POD in os.environ


def _why_not_found(given_address: str | None, launcher: str, tasks: int) -> str:
    """Why the address, the number or the index is unknown after JAX's detection; `WHAT_TO_SET` goes on from there."""
    if tasks > 1:
        return f"{launcher} has started {tasks} tasks, which JAX cannot join by itself;"
    if given_address:
        return "JAX_NUM_PROCESSES or JAX_PROCESS_ID is not set beside JAX_COORDINATOR_ADDRESS;"
    if POD not in os.environ:
        return "this seems to be a host of a TPU slice, and JAX cannot find the others;"
    seen = f"{POD}={os.environ[POD]} is set, as in an indexed job of Kubernetes"
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return f"{seen}, but KUBERNETES_SERVICE_HOST, where JAX asks for the other pods, is not;"
    return f"{seen}, whose pods JAX finds with the package kubernetes, which is missing: pip install kubernetes, or"


def _has_tpus() -> bool:
    from jax._src.cloud_tpu_init import running_in_cloud_tpu_vm

    return running_in_cloud_tpu_vm


def _refuse_stale_slices() -> None:
    """Raises `InputError` if the variables of a run on several TPU slices were left by another job.

    With them, JAX counts processes that do not exist, and the TPU's runtime waits for their slices without end.
    """
    given = {name: os.environ[name] for name in SLICES if os.environ.get(name)}
    shown = " ".join(f"{name}={value}" for name, value in given.items())
    if given and not ("TPU_WORKER_HOSTNAMES" in os.environ or _has_tpus()):
        raise InputError(f"{shown} is set, and this is no host of a TPU slice; unset what another job has left.")
    count, index = (_number(name, given.get(name)) for name in SLICES[1:])
    if index is not None and index >= (count or 1):
        raise InputError(f"{shown}: slice {index} of {count or 1} does not exist; unset what another job has left.")


def _detected(address: str | None, count: int | None, index: int | None) -> tuple[Any, Any, Any, Sequence[int] | None]:
    """What is given, completed by JAX's detection of SLURM, Open MPI, Kubernetes, and TPU hosts.

    NOTE `jax.distributed.initialize` detects and connects at once; the agreement of the processes comes between the two.
    """
    from jax._src.clusters import ClusterEnv

    try:
        with warnings.catch_warnings():
            # It warns in every pod without the package; `_why_not_found` says so where the package is needed.
            warnings.filterwarnings("ignore", "Kubernetes environment detected")
            found = ClusterEnv.auto_detect_unset_distributed_params(address, count, index, None, None, 20)
    except Exception as error:  # JAX asks servers, and those packages' errors have no common base
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        slices = f"unset {SLICES[0]} if another job has left it, or " if os.environ.get(SLICES[0]) else ""
        raise InputError(f"the processes of this run cannot be found ({reason}); {slices}{WHAT_TO_SET}.") from error
    address, count, index, devices = found
    takes_all = "JAX_LOCAL_DEVICE_IDS" in os.environ or _has_its_host_to_itself()
    return address, count, index, None if takes_all else devices


def _has_its_host_to_itself() -> bool:
    """Whether SLURM has started one task on each node; JAX would give it the first device only."""
    tasks = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    return bool(tasks) and all(part.split("(")[0] == "1" for part in tasks.split(","))
