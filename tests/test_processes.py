"""A run on several hosts: two processes with two devices each; one workdir and one cache folder."""

import json
import re
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_sts import ROWS, write_tsv

from jaxdistill import encode, evaluate
from jaxdistill.core import InputError, plugins
from jaxdistill.core.runtime import AGAIN
from jaxdistill.data.targets import BLOCK_ROWS
from jaxdistill.evals import sts
from jaxdistill.training.workdir.checkpoint import Checkpoints
from jaxdistill.training.workdir.folder import Workdir

from program import communicate_all, series, start_all, tiny_arguments, training_output, write_teacher, write_text
from tiny_text import made_up


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    write_teacher(folder)
    write_text(folder, rows=BLOCK_ROWS + 200)  # stored targets and encoded vectors have two blocks
    return folder


def arguments_of(folder, workdir, **options):
    return [*tiny_arguments(folder, student__dropout=0.1, teacher__kind="stored", **options), f"--workdir={workdir}"]


@pytest.fixture(scope="module")
def single_process_run(folder):
    """One process with four devices."""
    training_output(arguments_of(folder, folder / "single", data__cache_folder=folder / "own"), devices=4)
    return folder / "single"


def test_processes_share_the_blocks_of_a_file(folder):
    arguments = [
        f"--model={folder / 'model'}",
        f"--text={folder / 'text.txt'}",
        "--precision=float32",
        "--no_show_progress_bar",
    ]
    processes = start_all([*arguments, f"--output={folder / 'vectors2.npy'}"], module="encode")
    (first, _), (second, _) = communicate_all(processes, 0)
    assert f"{BLOCK_ROWS + 200:,} vectors" in first and "vectors" not in second
    encode.main([*arguments, f"--output={folder / 'vectors1.npy'}"])
    expected, actual = (np.load(folder / f"{name}.npy") for name in ("vectors1", "vectors2"))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)
    assert not [*folder.glob(".vectors*")]


OF_ONE_HOST = """
import os
from jaxdistill.core import InputError
from jaxdistill.evals.evaluation import Evaluation, TestSet

def run(model, test_set):
    if os.environ.get("JAX_PROCESS_ID") == "1":
        raise InputError("this host lacks the set")
    model.embed(["a", "b"])
    return {"mine": 1.0}

EVALUATIONS = [Evaluation(task="mine", scores=("mine",), sets=lambda sources: [TestSet(name="mine")], run=run)]
"""


def test_processes_evaluate_together_and_the_first_writes(folder, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(folder / "own"))
    monkeypatch.setattr(plugins, "evaluations", {})
    (folder / "data" / "sts").mkdir(parents=True)
    for entry in sts.SETS.values():
        write_tsv(folder / "data" / "sts" / entry.file, ROWS)
    (folder / "plugins.py").write_text(OF_ONE_HOST)
    arguments = [f"--model={folder / 'model'}", "--tasks=sts,mine,geometry", f"--data={folder / 'data'}"]
    arguments.append(f"--plugins={folder / 'plugins.py'}")
    common = [{"JAXDISTILL_CACHE": str(folder / "common")}] * 2
    processes = start_all([*arguments, f"--out={folder / 'two.json'}"], module="evaluate", variables=common)
    (first, errors), (second, _) = communicate_all(processes, InputError.status)
    assert "uniformity" in first and "uniformity" not in second
    assert "failed: mine of" in errors and "this host lacks the set" in errors
    evaluate.main([*arguments, f"--out={folder / 'one.json'}"])
    rows = [json.loads((folder / name).read_text())["models"][0] for name in ("one.json", "two.json")]
    expected, actual = (row["scores"] for row in rows)
    assert expected.pop("mine") == 1.0
    assert actual == pytest.approx(expected, abs=1e-6) and "sts-b" in expected and "geometry/uniformity" in expected


def test_two_processes_that_are_stopped_and_continued_on_fewer_train_as_one(folder, single_process_run, caplog):
    """SIGTERM to one saves in both. They share the blocks of stored targets, and matrices."""
    workdir = folder / "interrupted"
    arguments = arguments_of(folder, workdir, run__sharding=(("kernel$", ("data", "")),))
    processes = start_all(arguments)
    for line in processes[0].stdout:
        if "step 0:" in line:  # so early, as both go on for some steps after the signal
            break
    processes[1].send_signal(signal.SIGTERM)
    _, (second, _) = communicate_all(processes, AGAIN)
    assert not {"spearman", "teacher", "student"} & set(re.findall(r"\w+", second)), "only the first process talks"
    expected_paths, paths = (sorted((folder / cache / "targets").rglob("vectors.npy")) for cache in ("own", "cache"))
    assert [path.name for path in expected_paths] == [path.name for path in paths]
    for path, expected_path in zip(paths, expected_paths, strict=True):
        np.testing.assert_allclose(np.load(path), np.load(expected_path), rtol=0, atol=1e-6)
    checkpoints = Checkpoints(Workdir(workdir))
    assert checkpoints.steps[-1] < 20
    checkpoints.close()
    training_output(arguments, devices=4)
    assert "continuing from the checkpoint of step" in caplog.text
    losses, expected = series(workdir, "loss"), series(single_process_run, "loss")
    assert losses.keys() == expected.keys()
    np.testing.assert_allclose(list(losses.values()), list(expected.values()), rtol=1e-5)
    weights = load_file(single_process_run / "export" / "model.safetensors")
    for name, array in load_file(workdir / "export" / "model.safetensors").items():
        np.testing.assert_allclose(array, weights[name], atol=1e-4, err_msg=name)


def test_stages_wait_for_the_first_process_and_share_the_labels(folder):
    """The second process reads exports that the first writes; one makes the stored labels while the other waits."""
    sentences = made_up(120, words=5)
    pairs = "\n".join(map("\t".join, [("sentence1", "sentence2"), *zip(sentences, sentences[1:], strict=False)]))
    (folder / "pairs.tsv").write_text(f"{pairs}\n")
    options = {"data.text": folder / "pairs.tsv", "data.cache_folder": folder / "shared", "evals.pairs": ""}
    labeller = write_teacher(folder / "labeller")
    stage = {"student.model": folder / "labeller" / "model", "student.layers": "", "evals.best": "", "evals.every": 2}
    stage |= {"run.steps": 2, "run.precision": "float32", "data.batch_size": 16}
    flags = [f"--config.stage{n}.{name}={value}" for n in (1, 2) for name, value in (options | stage).items()]
    arguments = ["--config=configs/trans_encoder.py:tiny", *flags, f"--config.stage1.teacher.model={labeller}"]
    (stdout, _), _ = communicate_all(start_all([*arguments, f"--workdir={folder / 'stages'}"]), 0)
    assert "stage 2 of 2" in stdout and "best bi-encoder: stage 2" in stdout
