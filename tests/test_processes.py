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

from program import ended, series, start_all, tiny_arguments, trained, write_teacher, write_text
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
def alone(folder):
    """One process with four devices."""
    trained(arguments_of(folder, folder / "alone", data__cache_folder=folder / "own"), devices=4)
    return folder / "alone"


def test_processes_share_the_blocks_of_a_file(folder):
    arguments = [
        f"--model={folder / 'model'}",
        f"--text={folder / 'text.txt'}",
        "--precision=float32",
        "--no_show_progress_bar",
    ]
    both = start_all([*arguments, f"--output={folder / 'vectors2.npy'}"], module="encode")
    (first, _), (second, _) = ended(both, 0)
    assert f"{BLOCK_ROWS + 200:,} vectors" in first and "vectors" not in second
    encode.main([*arguments, f"--output={folder / 'vectors1.npy'}"])
    one, two = (np.load(folder / f"{name}.npy") for name in ("vectors1", "vectors2"))
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-6)
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
    both = start_all([*arguments, f"--out={folder / 'two.json'}"], module="evaluate", variables=common)
    (first, why), (second, _) = ended(both, InputError.status)
    assert "uniformity" in first and "uniformity" not in second
    assert "failed: mine of" in why and "this host lacks the set" in why
    evaluate.main([*arguments, f"--out={folder / 'one.json'}"])
    rows = [json.loads((folder / name).read_text())["models"][0] for name in ("one.json", "two.json")]
    one, two = (row["scores"] for row in rows)
    assert one.pop("mine") == 1.0
    assert two == pytest.approx(one, abs=1e-6) and "sts-b" in one and "geometry/uniformity" in one


def test_two_processes_that_are_stopped_and_continued_on_fewer_train_as_one(folder, alone, caplog):
    """SIGTERM to one saves in both. They share the blocks of stored targets, and matrices."""
    workdir = folder / "interrupted"
    arguments = arguments_of(folder, workdir, run__sharding=(("kernel$", ("data", "")),))
    both = start_all(arguments)
    for said in both[0].stdout:
        if "step 5:" in said:
            break
    both[1].send_signal(signal.SIGTERM)
    _, (second, _) = ended(both, AGAIN)
    assert not {"spearman", "teacher", "student"} & set(re.findall(r"\w+", second)), "only the first process talks"
    one, two = (sorted((folder / cache / "targets").rglob("vectors.npy")) for cache in ("own", "cache"))
    assert [path.name for path in one] == [path.name for path in two]
    for ours, theirs in zip(two, one, strict=True):
        np.testing.assert_allclose(np.load(ours), np.load(theirs), rtol=0, atol=1e-6)
    checkpoints = Checkpoints(Workdir(workdir))
    assert checkpoints.steps[-1] < 20
    checkpoints.close()
    trained(arguments, devices=4)
    assert "continuing from the checkpoint of step" in caplog.text
    losses, expected = series(workdir, "loss"), series(alone, "loss")
    assert losses.keys() == expected.keys()
    np.testing.assert_allclose(list(losses.values()), list(expected.values()), rtol=1e-5)
    weights = load_file(alone / "export" / "model.safetensors")
    for name, array in load_file(workdir / "export" / "model.safetensors").items():
        np.testing.assert_allclose(array, weights[name], atol=1e-4, err_msg=name)


def test_stages_wait_for_the_first_process_and_share_the_labels(folder):
    """The second process reads exports that the first writes; of stored labels, one makes them and the other waits."""
    sentences = made_up(120, words=5)
    pairs = "\n".join(map("\t".join, [("sentence1", "sentence2"), *zip(sentences, sentences[1:], strict=False)]))
    (folder / "pairs.tsv").write_text(f"{pairs}\n")
    options = {"data.text": folder / "pairs.tsv", "data.cache_folder": folder / "shared", "evals.pairs": ""}
    labeller = write_teacher(folder / "labeller")
    stage = {"student.model": folder / "labeller" / "model", "student.layers": "", "evals.best": "", "evals.every": 2}
    stage |= {"run.steps": 2, "run.precision": "float32", "data.batch_size": 16}
    given = [f"--config.stage{n}.{name}={value}" for n in (1, 2) for name, value in (options | stage).items()]
    arguments = ["--config=configs/trans_encoder.py:tiny", *given, f"--config.stage1.teacher.model={labeller}"]
    (said, _), _ = ended(start_all([*arguments, f"--workdir={folder / 'stages'}"]), 0)
    assert "stage 2 of 2" in said and "best bi-encoder: stage 2" in said
