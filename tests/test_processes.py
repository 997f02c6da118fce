"""A run on several hosts: two processes with two devices each, one workdir and one cache folder."""

import re
import signal
import socket

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxdistill.cli import AGAIN
from jaxdistill.training.checkpoint import Checkpoints

from program import run, series, start, tiny_arguments, write_teacher
from tiny_text import made_up


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


def start_two(arguments):
    """Both processes of a run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    joined = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    return [
        start("main", arguments, devices=2, variables=joined | {"JAX_PROCESS_ID": str(number)}) for number in range(2)
    ]


def ended(processes, status):
    """What each has said; all must end with `status`."""
    said = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [status] * 2, said
    return said


def arguments_of(folder, workdir, **options):
    return [*tiny_arguments(folder, student__dropout=0.1, **options), f"--workdir={workdir}"]


@pytest.fixture(scope="module")
def alone(folder):
    """One process with four devices."""
    run("main", arguments_of(folder, folder / "alone"), devices=4)
    return folder / "alone"


def assert_alike(workdir, alone):
    one, two = series(alone, "loss"), series(workdir, "loss")
    assert one.keys() == two.keys()
    np.testing.assert_allclose(list(two.values()), list(one.values()), rtol=1e-5)
    expected = load_file(alone / "export" / "model.safetensors")
    for name, array in load_file(workdir / "export" / "model.safetensors").items():
        np.testing.assert_allclose(array, expected[name], atol=1e-4, err_msg=name)


def test_two_processes_train_as_one_and_only_the_first_talks(folder, alone):
    (first, _), (second, _) = ended(start_two(arguments_of(folder, folder / "two")), 0)
    assert "student after" in first and "devices: 4" in first
    assert "spearman" in first and not {"spearman", "teacher", "student"} & set(re.findall(r"\w+", second))
    assert_alike(folder / "two", alone)


def test_sigterm_to_one_process_saves_in_both_and_the_same_command_continues(folder, alone):
    workdir = folder / "interrupted"
    both = start_two(arguments_of(folder, workdir))
    for said in both[0].stdout:
        if "step 5:" in said:
            break
    both[1].send_signal(signal.SIGTERM)
    ended(both, AGAIN)
    checkpoints = Checkpoints(workdir)
    assert checkpoints.steps[-1] < 20
    checkpoints.close()
    (first, _), _ = ended(start_two(arguments_of(folder, workdir)), 0)
    assert "continuing from the checkpoint of step" in first
    assert_alike(workdir, alone)


def test_stages_wait_for_the_first_process_and_share_the_labels(folder):
    """The second process reads exports that the first writes; of stored labels, one makes them and the other waits."""
    sentences = made_up(120, words=5)
    pairs = "\n".join(map("\t".join, [("sentence1", "sentence2"), *zip(sentences, sentences[1:], strict=False)]))
    (folder / "pairs.tsv").write_text(f"{pairs}\n")
    options = {"data.text": folder / "pairs.tsv", "data.cache_folder": folder / "shared", "evals.pairs": ""}
    options |= {"teacher.model": write_teacher(folder / "labeller")}
    stage = {"student.model": folder / "labeller" / "model", "student.layers": "", "evals.best": "", "evals.every": 2}
    stage |= {"run.steps": 2, "run.precision": "float32", "data.batch_size": 16}
    options |= {f"{prefix}{name}": value for prefix in ("", "then.") for name, value in stage.items()}
    arguments = ["--config=configs/trans_encoder.py:tiny", *(f"--config.{name}={v}" for name, v in options.items())]
    (said, _), _ = ended(start_two([*arguments, f"--workdir={folder / 'stages'}"]), 0)
    assert "stage 2 of 2" in said and "best bi-encoder: stage 2" in said
