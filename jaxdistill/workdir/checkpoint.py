"""Saves and restores train states: after a crash, despite a damaged file, and on other devices.

Orbax writes a checkpoint into a temporary folder and renames it, so a killed run leaves only complete checkpoints. The
latest, the best, and those that `evals.average` names are kept. A JSON record beside the arrays holds the record of
evaluations and a checksum of every array, because a damaged file can be read without an error.

Processes that share the folder each write and read a part. Otherwise the first process gathers the state from all and
writes it, and reads it and sends it to all: it needs memory and disk for the whole state, and the others need no files.
"""

import contextlib
import errno
import logging
import pathlib
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from jaxdistill.cluster.mesh import broadcast, on_host, path_name, place
from jaxdistill.cluster.processes import count, gathered, is_first, wait
from jaxdistill.core import InputError, Params, TrainState
from jaxdistill.workdir.folder import CHECKPOINTS

log = logging.getLogger(__name__)

BESIDE_ARRAYS = 1_000_000
"""Most bytes that a checkpoint takes besides its arrays."""


class Restored(NamedTuple):
    """Content of a checkpoint."""

    step: int
    state: TrainState
    progress: dict[str, Any]


class Checkpoints:
    """The checkpoints of a workdir. All processes of a run make the same calls together."""

    def __init__(
        self,
        workdir: str | pathlib.Path,
        *,
        keep: int = 2,
        keep_steps: Sequence[int] = (),
        read_only: bool = False,
        shared: bool = True,
    ):
        """
        Args:
          keep: number of latest checkpoints to keep.
          keep_steps: further steps whose checkpoints to keep.
          read_only: do not touch a checkpoint that a running training is writing.
          shared: whether all processes of the run see the folder; otherwise only the first one opens it.
        """
        self.folder = pathlib.Path(workdir).absolute() / CHECKPOINTS
        self._by_first = count() > 1 and not shared
        self._always_kept = [policies.LatestN(keep), policies.CustomSteps(keep_steps)]
        self._policy = policies.AnyPreservationPolicy(self._always_kept)
        # Orbax does not create the folder when only some of the processes use it.
        create = not read_only and not self._by_first
        self._own = ocp.options.MultiprocessingOptions(active_processes={0} if self._by_first else None)
        self._options = ocp.CheckpointManagerOptions(
            preservation_policy=self._policy,
            cleanup_tmp_directories=not read_only,
            create=create,
            step_prefix=None,
            enable_background_delete=False,
            multiprocessing_options=self._own,
        )
        self._known_steps: list[int] = []
        """Kept steps, as reported by the first process."""
        self._manager: ocp.CheckpointManager | None = None
        with self._sharing_errors():
            self._manager = self._open()

    def _open(self) -> ocp.CheckpointManager | None:
        """The manager of the files; None in a process that leaves them to the first one."""
        if self._by_first:
            if not is_first():
                return None
            self.folder.mkdir(parents=True, exist_ok=True)
        handlers = {
            "state": ocp.StandardCheckpointHandler(multiprocessing_options=self._own),
            "progress": ocp.JsonCheckpointHandler(multiprocessing_options=self._own),
        }
        return ocp.CheckpointManager(self.folder, options=self._options, item_handlers=handlers)

    @property
    def steps(self) -> list[int]:
        """Kept steps, oldest first."""
        return sorted(self._manager.all_steps()) if self._manager else self._known_steps

    @contextlib.contextmanager
    def _sharing_errors(self) -> Iterator[None]:
        """Raises an `InputError` of the `with` body in all processes, and tells all the kept steps, when only the first process
        has the files."""
        problem = None
        try:
            yield
        except InputError as error:
            problem = error
        if self._by_first:
            said, self._known_steps = gathered([str(problem or ""), self.steps])[0]
            problem = problem or (InputError(said) if said else None)
        if problem:
            raise problem

    def save(self, state: TrainState, progress: dict[str, Any]) -> None:
        """Writes the state, then removes all checkpoints but the latest, the best (`progress["best_step"]`) and `keep_steps`.

        Returns when the arrays are copied off the devices; files are written in the background.
        """
        self.wait()
        step, saved = int(state.step), _savable(state)
        if step in self.steps:
            return
        if self._by_first:
            saved = jax.tree.map(_whole, saved)
        # By its step, because Orbax forgets metrics when a program ends.
        best = policies.CustomSteps([progress.get("best_step", step)])
        self._policy.policies = [*self._always_kept, best]
        with self._sharing_errors():
            self._write(step, saved, progress)

    def _write(self, step: int, saved: dict[str, Any], progress: dict[str, Any]) -> None:
        if self._manager is None:
            return
        progress = progress | {"checksums": _checksums(saved)}
        items = ocp.args.Composite(state=ocp.args.StandardSave(saved), progress=ocp.args.JsonSave(progress))
        try:
            self._check_space(saved)
            self._manager.save(step, args=items)
        except OSError as error:
            raise _failed(error, self) from error

    def _check_space(self, saved: dict[str, Any]) -> None:
        """Raises `InputError` before anything is written: failures while writing surface as library tracebacks."""
        needed = BESIDE_ARRAYS + sum(map(_bytes_to_write, jax.tree.leaves(saved)))
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise _full(self, f" (a checkpoint takes {needed / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are free)")

    def wait(self) -> None:
        """Waits until everything is on disk; raises `InputError` if writing failed."""
        with self._sharing_errors():
            self._await_files()

    def _await_files(self) -> None:
        if self._manager is None:
            return
        try:
            self._manager.wait_until_finished()
        except (OSError, ValueError, RuntimeError) as error:
            raise _failed(error, self) from error

    def restore(self, like: TrainState, shardings: TrainState, *, step: int | None = None) -> Restored | None:
        """The latest readable checkpoint, or the one at `step`, placed by `shardings`; None if there are none.

        Unreadable checkpoints later than a readable one are renamed, with a warning. If none can be read, all stay, because
        the cause may be other models or options.

        Args:
          like: shapes and dtypes of the state.
          shardings: where to place the arrays; may differ from when they were saved.
          step: exactly this one; an unreadable or missing checkpoint is then an error.
        """
        if step is not None and step not in self.steps:
            raise self._missing(step)
        wanted, problems = self.steps[::-1] if step is None else [step], dict[int, str]()
        for candidate in wanted:
            try:
                restored, problem = self._read(candidate, like, shardings), ""
            except Exception as error:  # tensorstore, Orbax and JSON each raise their own for damaged files
                restored, problem = None, _first_line(error)
            problem = next(filter(None, gathered(problem)), "")  # of any process: all must restore the same step
            if not problem:
                for damaged, why in problems.items():
                    log.warning(
                        "checkpoint of step %d is damaged (%s): set aside as %s.damaged, continuing from step %d",
                        damaged, why, damaged, candidate,
                    )  # fmt: skip
                    self._quarantine(damaged)
                return self._sent(restored, like, shardings) if self._by_first else restored
            if step is not None:
                raise InputError(f"checkpoint {self.folder / str(step)} is damaged ({problem}).")
            problems[candidate] = problem
        if problems:
            latest, problem = next(iter(problems.items()))
            raise InputError(
                f"no checkpoint in {self.folder} can be read (step {latest}: {problem}). If the student's model was replaced since, "
                "restore it; otherwise remove the folder to start from step 0."
            )
        return None

    def restore_alone(self, step: int) -> TrainState:
        """The state of a kept step on one device; takes shapes from the checkpoint itself."""
        if step not in self.steps:
            raise self._missing(step)
        assert self._manager is not None  # one process is on its own
        one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        try:
            saved = self._manager.item_metadata(step).state
            abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), dict(saved))
            return self._arrays(step, abstract).state
        except Exception as error:  # as in `restore`
            raise InputError(f"checkpoint {self.folder / str(step)} is damaged ({_first_line(error)}).") from error

    def _missing(self, step: int) -> InputError:
        kept = ", ".join(map(str, self.steps)) or "none"
        return InputError(f"{self.folder} has no checkpoint of step {step}; kept: {kept}.")

    def _read(self, step: int, like: TrainState, shardings: TrainState) -> Restored | None:
        """The checkpoint of `step`; None in a process that leaves the files to the first one, which reads to host memory."""
        if self._manager is None:
            return None
        raw = jax.eval_shape(_savable, like)
        if self._by_first:
            return self._arrays(step, jax.tree.map(_blank, raw))
        abstract = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), raw, shardings._asdict()
        )
        return self._arrays(step, abstract)

    def _sent(self, restored: Restored | None, like: TrainState, shardings: TrainState) -> Restored:
        """Sends what the first process has read to all, and places it on their devices."""
        step, progress = gathered([restored.step, restored.progress] if restored else None)[0]
        shapes = jax.eval_shape(_savable, like)
        arrays = _savable(restored.state) if restored else jax.tree.map(_blank, shapes)
        return Restored(step, _from_saved(jax.tree.map(_placed, arrays, shapes, shardings._asdict())), progress)

    def _arrays(self, step: int, abstract: dict[str, Any]) -> Restored:
        """Reads the checkpoint of `step`; raises `ValueError` if an array does not match its checksum."""
        assert self._manager is not None  # only processes with the files read them
        items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), progress=ocp.args.JsonRestore())
        read: Any = self._manager.restore(step, args=items)
        expected = read.progress.pop("checksums")
        checksums = _checksums(read.state)
        wrong = sorted(name for name in expected if expected[name] != checksums.get(name, expected[name]))
        if wrong:
            raise ValueError(f"checksum of {wrong[0]} differs")
        return Restored(step, _from_saved(read.state), read.progress)

    def _quarantine(self, step: int) -> None:
        self._shut()
        damaged = self.folder / f"{step}.damaged"
        number = 1
        while damaged.exists():
            number += 1
            damaged = self.folder / f"{step}.damaged{number}"
        if is_first():
            (self.folder / str(step)).rename(damaged)
        wait("a damaged checkpoint is set aside")
        self._manager = self._open()

    def close(self) -> None:
        self.wait()
        self._shut()

    def abandon(self) -> None:
        """Closes without the other processes, and ignores write errors: the exception already raised is more informative."""
        with contextlib.suppress(InputError):
            self._await_files()
            self._shut()

    def _shut(self) -> None:
        if self._manager:
            self._manager.close()


def mean_params(params: Iterable[Params]) -> dict[str, np.ndarray]:
    """The mean of several sets of parameters, of which only one is in memory at a time."""
    total, count = dict[str, np.ndarray](), 0
    for one in params:
        count += 1
        for path, array in one.items():
            total[path] = total.get(path, 0.0) + np.asarray(array, np.float64)
    return {path: (array / count).astype(np.float32) for path, array in total.items()}


def _savable(state: TrainState) -> dict[str, Any]:
    """Plain arrays in a dict, because Orbax keeps a dict's keys but drops a NamedTuple's field names."""
    return state._asdict() | {"key": jax.random.key_data(state.key)}


def _from_saved(saved: dict[str, Any]) -> TrainState:
    fields: dict[str, Any] = {**saved, "key": jax.random.wrap_key_data(saved["key"])}
    return TrainState(**fields)


def _checksums(saved: dict[str, Any]) -> dict[str, int]:
    """CRC-32 of each array that this process holds completely."""
    sums = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(saved):
        if isinstance(leaf, np.ndarray) or leaf.is_fully_addressable or leaf.is_fully_replicated:
            sums[path_name(path)] = zlib.crc32(np.ascontiguousarray(leaf).tobytes())
    return sums


def _bytes_to_write(array: jax.Array | np.ndarray) -> int:
    """Number of bytes of an array that this process writes."""
    if isinstance(array, np.ndarray):
        return array.nbytes
    return sum(shard.data.nbytes for shard in array.addressable_shards if shard.replica_id == 0)


def _whole(array: jax.Array) -> np.ndarray:
    """The whole array in the first process, an empty one in the others."""
    host = on_host(array)
    return np.array(host) if is_first() else np.empty(0)  # a copy: the next step overwrites the device's


def _blank(shape: jax.ShapeDtypeStruct) -> np.ndarray:
    return np.broadcast_to(np.zeros((), shape.dtype), shape.shape)


def _placed(array: Any, shape: jax.ShapeDtypeStruct, sharding: jax.sharding.NamedSharding) -> jax.Array:
    """Places the first process's array on the devices of all processes."""
    sent = broadcast(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return place(sent.view(shape.dtype).reshape(shape.shape), sharding)


def _failed(error: Exception, checkpoints: Checkpoints) -> InputError:
    kept = ", ".join(map(str, checkpoints.steps)) or "none"
    if (
        getattr(error, "errno", None) == errno.ENOSPC
        or "No space left" in str(error)
        or "RESOURCE_EXHAUSTED" in str(error)
    ):
        return _full(checkpoints)
    return InputError(f"could not save into {checkpoints.folder} ({_first_line(error)}); kept checkpoints: {kept}.")


def _full(checkpoints: Checkpoints, sizes: str = "") -> InputError:
    kept = ", ".join(map(str, checkpoints.steps)) or "none"
    return InputError(
        f"no space left in {checkpoints.folder}{sizes}; kept checkpoints: {kept}. Free some and run the same command again."
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
