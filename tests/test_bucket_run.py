"""The real programs with text, model, workdir and outputs in Google's store, killed and continued on an empty machine."""

import json
import os
import pathlib
import signal
import time
from importlib.util import find_spec

import fsspec
import numpy as np
import pytest

from jaxdistill.core import InputError, InUseError
from jaxdistill.training.workdir import folder as bucket

import gcs
import program

pytestmark = pytest.mark.skipif(find_spec("gcsfs") is None, reason="gs:// needs gcsfs")

STEPS, EVERY = 6, 3
STORE = f"gs://{gcs.BUCKET}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bucket")


@pytest.fixture(scope="module", autouse=True)
def store(folder):
    with gcs.emulated() as (store, variables), pytest.MonkeyPatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        program.tiny_arguments(folder)
        for path in [*(folder / "model").rglob("*"), folder / "text.txt"]:
            if path.is_file():
                store.put(str(path.relative_to(folder)), path.read_bytes())
        yield store
        fsspec.filesystem("gs").clear_instance_cache()  # later, it would look for credentials


def arguments(folder: pathlib.Path, root: str, workdir: str) -> list[str]:
    options = {"data__text": f"{root}/text.txt", "teacher__model": f"{root}/model", "data__cache_folder": ""}
    options |= {"teacher__kind": "stored", "student__dropout": 0.1, "evals__every": EVERY, "run__steps": STEPS}
    flags = program.tiny_arguments(folder, **options, run__sharding=(("kernel$", ("data", "")),))
    return [*flags, f"--workdir={workdir}"]


def machine(folder: pathlib.Path, name: str) -> dict[str, str]:
    """The environment of a machine with a cache of its own, whose programs consider a silent run dead after 2 s."""
    (folder / "sitecustomize.py").write_text(
        "from jaxdistill.training.workdir import folder as bucket\nbucket.DEAD_SECONDS = 2.0\n"
    )
    python_path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return {"JAXDISTILL_CACHE": str(folder / name), "PYTHONPATH": python_path}


def saved(store: gcs.Store, run: str) -> set[int]:
    """Steps of the complete checkpoints of a run."""
    paths = [name.removeprefix(f"runs/{run}/checkpoints/").split("/") for name in list(store.objects)]
    return {int(path[0]) for path in paths if path[1:] == ["commit_success.txt"] and path[0].isdigit()}


@pytest.fixture(scope="module")
def expected_losses(folder):
    """The losses of an undisturbed run on a disk."""
    flags = arguments(folder, str(folder), str(folder / "disk" / "run"))
    program.training_output(flags)
    return program.series(folder / "disk" / "run", "loss")


def test_a_killed_run_continues_from_the_bucket_in_two_processes_that_each_write_a_part(folder, store, expected_losses):
    """On one device, killed after its first save, and then on four."""
    flags = arguments(folder, STORE, f"{STORE}/runs/run")
    first = program.start("main", flags, variables=machine(folder, "first"))
    program.wait_for(lambda: saved(store, "run") - {0}, first)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    machines = [machine(folder, f"host{number}") for number in (0, 1)]
    (out, _), _ = program.communicate_all(program.start_all(flags, variables=machines), 0)
    assert "continuing from the checkpoint of step" in out and "devices: 4" in out
    workdir = bucket.fetched(f"{STORE}/runs/run").folder
    losses = program.series(workdir, "loss")
    assert list(losses) == list(expected_losses)
    np.testing.assert_allclose(list(losses.values()), list(expected_losses.values()), rtol=1e-5)
    assert saved(store, "run") == {int(path.name) for path in (folder / "disk" / "run" / "checkpoints").iterdir()}
    for name in ("config.json", "results.json", "report.html", "training.png", "train.log", "export/README.md"):
        assert (workdir / name).is_file()
    assert not any(name.endswith(bucket.RUNNING) for name in store.objects)
    assert any("ocdbt.process_1" in name for name in store.objects if name.startswith("runs/run/"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bucket, "DEAD_SECONDS", 5.0)
    monkeypatch.setattr(bucket, "RENEW_SECONDS", 0.2)


def test_a_workdir_in_use_is_refused_and_a_dead_run_is_not_waited_for_long(cache, store):
    address = f"{STORE}/runs/used"
    with bucket.opened(address, dry_run=False) as workdir:
        (workdir.folder / "config.json").write_text("{}")
        with pytest.raises(InUseError, match=r"runs/used is in use by another run \(pid \d+ on "):
            with bucket.opened(address, dry_run=False):
                pass
    assert [name for name in store.objects if name.startswith("runs/used")] == ["runs/used/config.json"]
    note = json.dumps({"run": "another run", "renewed": time.time() - 4.0})
    store.put(f"runs/used/{bucket.RUNNING}", note.encode())
    with bucket.opened(address, dry_run=False) as workdir:
        assert (workdir.folder / "config.json").read_text() == "{}"


def test_other_objects_and_other_stores_are_refused_and_a_cut_off_export_is_left_out(cache, store):
    store.put("runs/thesis/thesis.txt", b"mine")
    with (
        pytest.raises(InputError, match="holds thesis.txt and is not a workdir"),
        bucket.opened(f"{STORE}/runs/thesis", dry_run=False),
    ):
        pass  # fmt: skip
    with pytest.raises(InputError, match="--workdir=s3://b/run: checkpoints are written to a disk or to gs://"):
        bucket.fetched("s3://b/run")
    for name, content in {"config.json": "{}", "export/jaxdistill.json": '{"files": {"model": "0"}}'}.items():
        store.put(f"runs/cut/{name}", content.encode())
    assert [path.name for path in bucket.fetched(f"{STORE}/runs/cut").folder.iterdir()] == ["config.json"]
