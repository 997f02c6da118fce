"""Saves and restores train states: after a crash, and on other devices.

Orbax writes a checkpoint under a temporary name or without its last file, so a killed run leaves only complete checkpoints. The
latest, the best, and those that `evals.average` names are kept. A JSON record beside the arrays holds the record of evaluations.
"""

import contextlib
import errno
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from jaxdistill.cluster.processes import gathered
from jaxdistill.core import InputError, Params, TemporaryError, TrainState
from jaxdistill.workdir.bucket import Workdir


class Restored(NamedTuple):
    """Content of a checkpoint."""

    step: int
    state: TrainState
    progress: dict[str, Any]


class Checkpoints:
    """The checkpoints of a workdir, which all processes of a run see. They make the same calls together."""

    def __init__(self, workdir: Workdir, *, keep: int = 2, keep_steps: Sequence[int] = (), read_only: bool = False):
        """
        Args:
          keep: number of latest checkpoints to keep.
          keep_steps: further steps whose checkpoints to keep.
          read_only: do not touch a checkpoint that a running training is writing.
        """
        self.workdir, self.folder = workdir, workdir.checkpoints
        self._always_kept = [policies.LatestN(keep), policies.CustomSteps(keep_steps)]
        self._policy = policies.AnyPreservationPolicy(self._always_kept)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._policy,
            cleanup_tmp_directories=not read_only,
            create=not read_only,
            step_prefix=None,
            enable_background_delete=False,
        )
        handlers = {"state": ocp.StandardCheckpointHandler(), "progress": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handlers)

    @property
    def steps(self) -> list[int]:
        """Kept steps, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, state: TrainState, progress: dict[str, Any]) -> None:
        """Writes the state, then removes all checkpoints but the latest, the best (`progress["best_step"]`) and `keep_steps`.

        Returns when the arrays are copied off the devices; files are written in the background.
        """
        self.wait()
        step, saved = int(state.step), _savable(state)
        if step in self.steps:
            return
        self.workdir.upload()
        # By its step, because Orbax forgets metrics when a program ends.
        best = policies.CustomSteps([progress.get("best_step", step)])
        self._policy.policies = [*self._always_kept, best]
        items = ocp.args.Composite(state=ocp.args.StandardSave(saved), progress=ocp.args.JsonSave(progress))
        try:
            self._manager.save(step, args=items)
        except OSError as error:
            raise self._failed(error) from error

    def wait(self) -> None:
        """Waits until everything is written; raises `InputError` if writing failed."""
        try:
            self._manager.wait_until_finished()
        except (OSError, ValueError, RuntimeError) as error:
            raise self._failed(error) from error

    def restore(self, like: TrainState, shardings: TrainState, *, step: int | None = None) -> Restored | None:
        """The latest checkpoint, or the one of `step`, placed by `shardings`; None if there are none.

        Args:
          like: shapes and dtypes of the state.
          shardings: where to place the arrays; may differ from when they were saved.

        Raises:
          InputError: the checkpoint cannot be read or does not exist; names the step to go back to.
        """
        if step is None and not self.steps:
            return None
        chosen = self._kept(self.steps[-1] if step is None else step)
        shapes = jax.eval_shape(_savable, like)
        abstract = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings._asdict()
        )
        restored, problem = None, ""
        try:
            restored = self._read(chosen, abstract)
        except Exception as error:  # tensorstore, Orbax and JSON each raise their own for damaged files
            problem = _first_line(error)
        if problem := next(filter(None, gathered(problem)), ""):
            advice = ""
            if step is None:
                before = self.steps[:-1]
                back = (
                    f"go back to step {before[-1]} with --config.run.restore_step={before[-1]}"
                    if before
                    else "there is no other"
                )
                advice = f" If the student's model was replaced since, restore it; otherwise {back}, or give another --workdir."
            raise InputError(f"checkpoint {self.folder / str(chosen)} cannot be read ({problem}).{advice}")
        return restored

    def restore_alone(self, step: int) -> TrainState:
        """The state of a kept step on one device; takes shapes from the checkpoint itself."""
        one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        try:
            saved = self._manager.item_metadata(self._kept(step)).state
            abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), dict(saved))
            return self._read(step, abstract).state
        except InputError:
            raise
        except Exception as error:  # as in `restore`
            raise InputError(
                f"checkpoint {self.folder / str(step)} cannot be read ({_first_line(error)}); kept: {self._steps_text}."
            ) from error

    def went_back_to(self, step: int) -> bool:
        """Whether the run that wrote the latest checkpoint had gone back to `step`."""
        try:
            items = ocp.args.Composite(progress=ocp.args.JsonRestore())
            read: Any = self._manager.restore(self.steps[-1], args=items)
        except Exception:  # as in `restore`: an unreadable checkpoint is one to go back from
            return False
        return read.progress.get("went_back_to") == step

    def drop_after(self, step: int) -> None:
        """Removes the checkpoints of later steps."""
        for later in [kept for kept in self.steps if kept > step]:
            self._manager.delete(later)

    def _kept(self, step: int) -> int:
        if step not in self.steps:
            raise InputError(f"{self.folder} has no checkpoint of step {step}; kept: {self._steps_text}.")
        return step

    @property
    def _steps_text(self) -> str:
        return ", ".join(map(str, self.steps)) or "none"

    def _read(self, step: int, abstract: dict[str, Any]) -> Restored:
        items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), progress=ocp.args.JsonRestore())
        read: Any = self._manager.restore(step, args=items)
        return Restored(step, _from_saved(read.state), read.progress)

    def close(self) -> None:
        self.wait()
        self._manager.close()

    def abandon(self) -> None:
        """Closes, and ignores write errors: the exception already raised is more informative."""
        with contextlib.suppress(InputError):
            self.close()

    def _failed(self, error: Exception) -> InputError:
        if (
            getattr(error, "errno", None) == errno.ENOSPC
            or "No space left" in str(error)
            or "RESOURCE_EXHAUSTED" in str(error)
        ):
            return InputError(
                f"no space left in {self.folder}; kept checkpoints: {self._steps_text}. Free some and run the same command again."
            )
        kind = InputError if self.workdir.bucket is None else TemporaryError
        return kind(f"could not save into {self.folder} ({_first_line(error)}); kept checkpoints: {self._steps_text}.")


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


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
