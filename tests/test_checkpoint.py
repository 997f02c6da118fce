"""Checkpoints: what is kept, what comes back, and a full disk."""

import errno
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdistill.cluster.mesh import make_mesh, shardings
from jaxdistill.core import InputError, TrainState
from jaxdistill.training import outcome
from jaxdistill.training.loop import _first_or_restored
from jaxdistill.training.run import Dev
from jaxdistill.workdir.bucket import Workdir
from jaxdistill.workdir.checkpoint import Checkpoints


def state_at(step: int) -> TrainState:
    params = {"student": {"a/kernel": jnp.full((8, 4), float(step))}, "objective": {}}
    ring = {"ring": jnp.arange(64, dtype=jnp.float32).reshape(2, 8, 4) + step}
    return TrainState(jnp.int32(step), params, (jnp.int32(step),), ring, jax.random.key(step))


def placed(devices: int, *, model_axis: int = 1):
    split = (("a/kernel", ("", "model")),)
    return shardings(state_at(0), make_mesh(devices=jax.devices()[:devices], model_axis=model_axis), split)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_the_latest_two_and_the_best_are_kept(tmp_path, is_reopened):
    checkpoints = Checkpoints(Workdir(tmp_path))
    for step, best in ((1, 1), (2, 2), (3, 2), (4, 2), (5, 2)):
        checkpoints.save(state_at(step), {"best_step": best})
        if is_reopened:  # as after a kill
            checkpoints.close()
            checkpoints = Checkpoints(Workdir(tmp_path))
    checkpoints.wait()
    assert checkpoints.steps == [2, 4, 5]


def test_checkpoints_of_asked_steps_are_kept_too(tmp_path):
    options = SimpleNamespace(run=SimpleNamespace(keep=1), evals=SimpleNamespace(average=(0, 2)))
    checkpoints = outcome.open_checkpoints(SimpleNamespace(config=options), Workdir(tmp_path))
    for step in range(6):
        checkpoints.save(state_at(step), {"best_step": 3})
    checkpoints.wait()
    assert checkpoints.steps == [0, 2, 3, 5]


@pytest.mark.parametrize(("devices", "model_axis"), [(1, 1), (4, 1), (4, 2), (8, 1)])
def test_a_state_of_eight_devices_comes_back_on_others(tmp_path, devices, model_axis):
    checkpoints = Checkpoints(Workdir(tmp_path))
    checkpoints.save(jax.device_put(state_at(3), placed(8)), {"note": [1, 2]})
    checkpoints.close()
    back = Checkpoints(Workdir(tmp_path)).restore(state_at(0), placed(devices, model_axis=model_axis))
    assert back.step == 3 and back.progress == {"note": [1, 2]}
    np.testing.assert_array_equal(back.state.params["student"]["a/kernel"], state_at(3).params["student"]["a/kernel"])
    np.testing.assert_array_equal(back.state.objective["ring"], state_at(3).objective["ring"])
    assert back.state.objective["ring"].sharding.spec == jax.P(None, ("slice", "data"), None)
    np.testing.assert_array_equal(jax.random.key_data(back.state.key), jax.random.key_data(state_at(3).key))


def test_a_reader_leaves_alone_what_a_training_is_writing(tmp_path):
    checkpoints = Checkpoints(Workdir(tmp_path))
    checkpoints.save(state_at(1), {})
    checkpoints.close()
    being_written = tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp"
    being_written.mkdir()
    reader = Checkpoints(Workdir(tmp_path), read_only=True)
    assert reader.steps == [1] and int(reader.restore_alone(1).step) == 1
    assert being_written.is_dir()
    reader.close()


def test_an_empty_workdir_has_nothing_to_restore(tmp_path):
    assert Checkpoints(Workdir(tmp_path)).restore(state_at(0), placed(1)) is None


# NOTE: TensorStore may end one read after another has failed and Orbax has closed its event loop, which is a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_state_of_other_shapes_and_a_damaged_file_are_one_line_with_the_step_to_go_back_to(tmp_path):
    checkpoints = Checkpoints(Workdir(tmp_path))
    for step in (1, 2):
        checkpoints.save(state_at(step), {})
    checkpoints.wait()
    wider = state_at(0)._replace(params={"student": {"a/kernel": jnp.zeros((8, 6))}, "objective": {}})
    says = r"checkpoints/2 cannot be read \(.*was replaced since, restore it; otherwise go back to step 1 with --config.run.restore_step=1"
    with pytest.raises(InputError, match=says):
        checkpoints.restore(wider, placed(1))
    for file in (tmp_path / "checkpoints" / "2" / "state").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:-9])
    checkpoints = Checkpoints(Workdir(tmp_path))
    with pytest.raises(InputError, match=says):
        checkpoints.restore(state_at(0), placed(1))
    with pytest.raises(InputError, match=r"checkpoints/2 cannot be read \(.*\); kept: 1, 2\.$"):
        checkpoints.restore_alone(2)
    with pytest.raises(InputError, match="no checkpoint of step 3; kept: 1, 2"):
        checkpoints.restore(state_at(0), placed(1), step=3)
    assert checkpoints.restore(state_at(0), placed(1), step=1).step == 1
    checkpoints.drop_after(1)
    assert checkpoints.steps == [1] and not checkpoints.went_back_to(1)
    checkpoints.save(state_at(2), {"went_back_to": 1})
    checkpoints.wait()
    assert checkpoints.went_back_to(1)


def test_a_full_disk_is_one_clear_line_and_the_checkpoint_before_stays(tmp_path, monkeypatch):
    checkpoints = Checkpoints(Workdir(tmp_path))
    checkpoints.save(state_at(1), {})
    checkpoints.wait()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints._manager, "save", full)
    with pytest.raises(InputError, match="no space left in .*kept checkpoints: 1"):
        checkpoints.save(state_at(2), {})
    assert Checkpoints(Workdir(tmp_path)).restore(state_at(0), placed(1)).step == 1


@pytest.mark.parametrize(("average", "expected"), [((), 2.0), ((4, 1), 2.5)])
def test_a_training_ends_with_its_best_student_or_the_mean_of_those_asked_for(tmp_path, monkeypatch, average, expected):
    student = SimpleNamespace(evaluated=lambda params: params)
    options = SimpleNamespace(student=student, run=SimpleNamespace(keep=4), evals=SimpleNamespace(average=average))
    checkpoints, track = Checkpoints(Workdir(tmp_path), keep=4), {"best_step": 2, "scores": {}, "before": {}}
    for step in (1, 2, 3, 4):
        checkpoints.save(state_at(step), track)
    checkpoints.close()
    monkeypatch.setattr(outcome, "sharded_embedder", lambda *given, **more: SimpleNamespace(as_embed=list))
    run = SimpleNamespace(
        config=options,
        models=SimpleNamespace(student=SimpleNamespace(with_params=lambda params: params)),
        dev=Dev(tasks={}, best=""),
        layout=SimpleNamespace(like=state_at(0), shardings=placed(1)),
        program=SimpleNamespace(mesh=None, compute_dtype=None),
    )
    found = outcome.outcome_of(run, track, Workdir(tmp_path), seconds=0.0, spent={})
    np.testing.assert_array_equal(found.student["a/kernel"], np.full((8, 4), expected))
    assert (found.best_step, found.last_step, found.averaged) == (2, 4, sorted(average))


def test_a_damaged_best_checkpoint_names_the_way_to_another():
    def restore(like, shardings, *, step):
        raise InputError(f"checkpoint {step} is damaged.")

    options = SimpleNamespace(evals=SimpleNamespace(average=()))
    layout = SimpleNamespace(like=None, shardings=None)
    run, kept = SimpleNamespace(config=options, layout=layout), SimpleNamespace(restore=restore)
    kept.steps = [3, 9]
    with pytest.raises(InputError, match="checkpoint 3 is damaged. It is the best one; .* exports another: --step=9"):
        list(outcome._params_of(run, kept, SimpleNamespace(step=9), [3]))


def test_a_run_goes_back_once_and_forgets_a_best_step_that_is_gone(tmp_path):
    checkpoints = Checkpoints(Workdir(tmp_path))
    for step, best in ((1, 1), (2, 1), (3, 3)):  # when step 3 is the best, step 1 is removed
        checkpoints.save(state_at(step), {"best": 0.5, "best_step": best, "before": None})
    checkpoints.wait()
    run = SimpleNamespace(
        config=SimpleNamespace(run=SimpleNamespace(restore_step=2)),
        layout=SimpleNamespace(like=state_at(0), shardings=placed(1)),
        program=SimpleNamespace(steps=9),
        dev=Dev(tasks={}, best=""),
    )
    state, track = _first_or_restored(run, checkpoints)
    assert int(state.step) == 2 and (track["best"], track["best_step"]) == (None, 2) and checkpoints.steps == [2]
    checkpoints.save(state_at(3), track)
    checkpoints.wait()
    assert int(_first_or_restored(run, checkpoints)[0].step) == 3
