"""Saves train states, and restores them after a crash or on other devices.

Orbax writes a checkpoint under a temporary name or without its last file, so a killed run leaves only complete checkpoints. The
latest, the best, and those that `evals.average` names are kept. A JSON file beside the arrays holds the `Evaluator`'s record.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from jaxdistill.core import InputError, Params, TemporaryError, TrainState, error_line
from jaxdistill.core.cluster.processes import run_in_all
from jaxdistill.training.workdir.folder import Workdir


class Checkpoints:
    """The checkpoints of a workdir. All processes of a run see the same ones, and must call each method together.

    Args:
      keep: number of latest checkpoints to keep.
      keep_steps: further steps whose checkpoints to keep.
      read_only: do not create the folder, nor remove unfinished checkpoints, which a running training may be writing.
    """

    def __init__(self, workdir: Workdir, *, keep: int = 2, keep_steps: Sequence[int] = (), read_only: bool = False):
        self.workdir, self.folder = workdir, workdir.checkpoints
        self._always_kept = [policies.LatestN(keep), policies.CustomSteps(keep_steps)]
        self._policy = policies.AnyPreservationPolicy(self._always_kept)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._policy, cleanup_tmp_directories=not read_only, create=not read_only
        )
        handlers = {"state": ocp.StandardCheckpointHandler(), "progress": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)

    @property
    def steps(self) -> list[int]:
        """Kept steps, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, state: TrainState, progress: dict[str, Any]) -> None:
        """Writes the state and the `Evaluator`'s record `progress`, and removes checkpoints that are not to be kept. Returns when the
        arrays are copied off the devices; the files are written in the background."""
        self.wait()
        step = int(state.step)
        if step in self.steps:
            return
        self.workdir.upload()  # so that a start on another machine has the metrics of all steps up to this one
        # The best checkpoint is kept by its step, because Orbax forgets metrics when a program ends.
        self._policy.policies = [*self._always_kept, policies.CustomSteps([progress.get("best_step", step)])]
        items = ocp.args.Composite(state=ocp.args.StandardSave(_savable(state)), progress=ocp.args.JsonSave(progress))
        with self._saving():
            self._manager.save(step, args=items)

    def wait(self) -> None:
        """Waits until everything is written; raises `InputError` if writing failed."""
        with self._saving():
            self._manager.wait_until_finished()

    def restore(
        self, like: TrainState, shardings: TrainState, *, step: int | None = None
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """The state and the `Evaluator`'s record in the checkpoint of `step`, or in the latest one; None before the first. The state gets
        the shapes and dtypes of `like`, and `shardings`. Raises `InputError`, with the kept steps, if it is missing or unreadable."""
        if step is None and not self.steps:
            return None
        placed = {name: value for name, value in shardings._asdict().items() if value is not None}  # as `_savable`
        abstract = jax.tree.map(lambda x, sharding: x.update(sharding=sharding), jax.eval_shape(_savable, like), placed)
        return run_in_all(lambda: self._read(self.steps[-1] if step is None else step, abstract))

    def restore_alone(self, step: int) -> TrainState:
        """The state of a kept step on one device, without knowing its shapes; raises `InputError` if it cannot be read."""
        return self._read(step, None)[0]

    def go_back(self, step: int, like: TrainState, shardings: TrainState) -> None:
        """Removes the checkpoints after `step`, and closes; raises `InputError` if that of `step` cannot be read."""
        self.restore(like, shardings, step=step)  # for its error alone
        for kept in self.steps:
            if kept > step:
                self._manager.delete(kept)
        self.close()

    def close(self) -> None:
        """Waits until everything is written, and frees the manager's threads; raises `InputError` if writing failed."""
        self.wait()
        self._manager.close()

    def _read(self, step: int, abstract: dict[str, Any] | None) -> tuple[TrainState, dict[str, Any]]:
        """State and record of a step, in the shapes and shardings `abstract` (None: as saved, on one device); raises `InputError`."""
        kept = ", ".join(map(str, self.steps)) or "none"
        if step not in self.steps:
            raise InputError(f"{self.folder} has no checkpoint of step {step}; kept: {kept}.")
        try:
            if abstract is None:
                device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
                saved = dict(self._manager.item_metadata(step).state)
                abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), saved)
            items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), progress=ocp.args.JsonRestore())
            read: Any = self._manager.restore(step, args=items)
        except Exception as error:  # tensorstore, Orbax and JSON each raise their own for damaged files
            earlier_steps = [kept_step for kept_step in self.steps if kept_step < step]
            remedy = "Give"
            if earlier_steps:
                remedy = f"Go back to the step before by --config.run.restore_step={earlier_steps[-1]}, or give"
            raise InputError(
                f"checkpoint {self.folder / str(step)} cannot be read ({error_line(error):.200}); kept: {kept}. {remedy} another --workdir."
            ) from error
        fields = {**read.state, "key": jax.random.wrap_key_data(read.state["key"])}
        return TrainState(**fields), read.progress

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """Turns errors of Orbax and the disk into `InputError`, or `TemporaryError` for a workdir in a bucket."""
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            kind = InputError if self.workdir.bucket is None else TemporaryError
            kept = ", ".join(map(str, self.steps)) or "none"
            raise kind(
                f"could not save into {self.folder} ({error_line(error):.200}); kept checkpoints: {kept}. Free some space, and run the "
                "same command again."
            ) from error


def mean_params(params: Iterable[Params]) -> dict[str, np.ndarray]:
    """The mean of several sets of parameters, float32; only one set and the sum, in float64, are in memory at a time."""
    total: dict[str, np.ndarray] = {}
    count = 0
    for student in params:
        count += 1
        for path, array in student.items():
            total[path] = total.get(path, 0.0) + np.asarray(array, np.float64)
    return {path: (array / count).astype(np.float32) for path, array in total.items()}


def _savable(state: TrainState) -> dict[str, Any]:
    """The state as a dict of plain arrays, because Orbax keeps a dict's keys but drops a NamedTuple's field names."""
    arrays = state._asdict() | {"key": jax.random.key_data(state.key)}
    return {name: value for name, value in arrays.items() if value is not None}
