"""Checkpoints: which are kept, how they are restored, and a full disk."""

import errno

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdistill.core import InputError, TrainState
from jaxdistill.core.cluster.mesh import make_mesh, shardings
from jaxdistill.training.workdir.checkpoint import Checkpoints
from jaxdistill.training.workdir.folder import Workdir


def state_at(step: int) -> TrainState:
    params = {"student": {"a/kernel": jnp.full((8, 4), float(step))}, "objective": {}}
    ring = {"ring": jnp.arange(64, dtype=jnp.float32).reshape(2, 8, 4) + step}
    return TrainState(jnp.int32(step), params, (jnp.int32(step),), ring, jax.random.key(step))


def placed(devices: int, *, model_axis: int = 1):
    split = (("a/kernel", ("", "model")),)
    return shardings(state_at(0), make_mesh(devices=jax.devices()[:devices], model_axis=model_axis), split)


def test_the_latest_two_the_best_and_requested_checkpoints_are_kept(tmp_path):
    """Also where each is saved by another process, as after kills."""
    checkpoints = Checkpoints(Workdir(tmp_path), keep_steps=(0,))
    for step, best in ((0, 0), (1, 1), (2, 2), (3, 2), (4, 2), (5, 2)):
        checkpoints.save(state_at(step), {"best_step": best})
        checkpoints.close()
        checkpoints = Checkpoints(Workdir(tmp_path), keep_steps=(0,))
    checkpoints.wait()
    assert checkpoints.steps == [0, 2, 4, 5]


@pytest.mark.parametrize(("devices", "model_axis"), [(1, 1), (4, 2), (8, 1)])
def test_a_state_of_eight_devices_is_restored_on_other_numbers(tmp_path, devices, model_axis):
    checkpoints = Checkpoints(Workdir(tmp_path))
    checkpoints.save(jax.device_put(state_at(3), placed(8)), {"note": [1, 2]})
    checkpoints.close()
    state, record = Checkpoints(Workdir(tmp_path)).restore(state_at(0), placed(devices, model_axis=model_axis))
    assert state.step == 3 and record == {"note": [1, 2]}
    np.testing.assert_array_equal(state.params["student"]["a/kernel"], state_at(3).params["student"]["a/kernel"])
    np.testing.assert_array_equal(state.objective["ring"], state_at(3).objective["ring"])
    assert state.objective["ring"].sharding.spec == jax.P(None, ("slice", "data"), None)
    np.testing.assert_array_equal(jax.random.key_data(state.key), jax.random.key_data(state_at(3).key))


def test_a_reader_does_not_touch_a_checkpoint_that_is_being_written(tmp_path):
    checkpoints = Checkpoints(Workdir(tmp_path))
    checkpoints.save(state_at(1), {})
    checkpoints.close()
    being_written = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp"
    being_written.mkdir()
    reader = Checkpoints(Workdir(tmp_path), read_only=True)
    assert reader.steps == [1] and int(reader.restore_alone(1).step) == 1
    assert being_written.is_dir()
    reader.close()


def test_a_full_disk_is_one_clear_line_and_the_previous_checkpoint_stays(tmp_path, monkeypatch):
    checkpoints = Checkpoints(Workdir(tmp_path))
    checkpoints.save(state_at(1), {})
    checkpoints.wait()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints._manager, "save", full)
    with pytest.raises(InputError, match="could not save .*No space left .*kept checkpoints: 1"):
        checkpoints.save(state_at(2), {})
    assert Checkpoints(Workdir(tmp_path)).restore(state_at(0), placed(1))[0].step == 1
