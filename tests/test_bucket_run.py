"""The real programs with text, model, workdir and outputs in a bucket, killed and continued on an empty machine."""

import json
import os
import pathlib
import signal
import subprocess
import time

import numpy as np
import pytest

from jaxdistill import encode, evaluate, export
from jaxdistill.workdir.mirror import RECORD

import bucket
import program
from faults.kills import _timeless

STEPS, EVERY = 60, 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bucket")


@pytest.fixture(scope="module", autouse=True)
def server(folder):
    with bucket.emulated():
        program.tiny_arguments(folder)
        bucket.put_folder(folder / "model", "model")
        bucket.put("text.txt", (folder / "text.txt").read_bytes())
        yield


def arguments(folder: pathlib.Path, place: str, workdir: str) -> list[str]:
    options = {"data__text": f"{place}/text.txt", "teacher__model": f"{place}/model", "data__cache_folder": ""}
    given = program.tiny_arguments(folder, **options, student__dropout=0.1, evals__every=EVERY, run__steps=STEPS)
    return [*given, f"--workdir={workdir}"]


def machine(folder: pathlib.Path, name: str) -> dict[str, str]:
    """The environment of a machine with a cache of its own, whose programs take a silent run for dead after 2 s."""
    (folder / "sitecustomize.py").write_text("from jaxdistill.workdir import mirror\nmirror.DEAD_SECONDS = 2.0\n")
    found = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return {"JAXDISTILL_CACHE": str(folder / name), "PYTHONPATH": found}


def await_checkpoint(run: str, process: subprocess.Popen) -> None:
    """Waits until one of a later step than 0 is published."""
    while not published_steps(run) - {0} and process.poll() is None:
        time.sleep(0.2)


def published_steps(run: str = "run", number: int = 1) -> set[int]:
    """Steps of the checkpoints in the record of the run of this number in the workdir."""
    path = f"{bucket.NAME}/runs/{run}/{RECORD.format(number)}"
    if not bucket.files().exists(path):
        return set()
    listed = json.loads(bucket.files().cat_file(path))["files"] or {}
    return {int(name.split("/")[1]) for name in listed if name.startswith("checkpoints/")}


@pytest.fixture(scope="module")
def killed_and_continued(folder):
    """What the second program prints; the first is killed as soon as a checkpoint is published."""
    given = arguments(folder, f"s3://{bucket.NAME}", f"s3://{bucket.NAME}/runs/run")
    first = program.start("main", given, variables=machine(folder, "first"))
    await_checkpoint("run", first)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    return program.run("main", given, variables=machine(folder, "second"))


def test_a_killed_run_continues_from_the_bucket_to_the_same_bits(folder, killed_and_continued):
    out, err = killed_and_continued
    assert "continuing from the checkpoint of step" in out and f"s3://{bucket.NAME}/runs/run has all files" in out
    program.run(
        "main", arguments(folder, str(folder), str(folder / "alone" / "run")), variables=machine(folder, "alone")
    )
    found = folder / "found"
    bucket.files().get(f"{bucket.NAME}/runs/run/", str(found), recursive=True)
    alone = folder / "alone" / "run"
    assert (found / "export/model.safetensors").read_bytes() == (alone / "export/model.safetensors").read_bytes()
    assert _timeless(found / "metrics.jsonl") == _timeless(alone / "metrics.jsonl")
    kept = {path.name for path in (alone / "checkpoints").iterdir()}
    assert {str(step) for step in published_steps(number=2)} == kept
    for name in ("config.json", "results.json", "report.html", "training.png", "card.json", "export/README.md"):
        assert (found / name).is_file()
    everything = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert not any(bucket.KEY.encode() in content for content in [*everything, out.encode(), err.encode()])


def test_programs_read_and_write_a_bucket(folder, killed_and_continued, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    place = f"s3://{bucket.NAME}"
    export.main([f"--workdir={place}/runs/run", f"--step={STEPS}", f"--out={place}/exported"])
    assert f"{place}/exported: " in capsys.readouterr().out
    model, corpus = f"--model={place}/exported", f"{place}/text.txt"
    encode.main([model, f"--text={corpus}", f"--output={place}/vectors.npy", "--no_show_progress_bar"])
    bucket.files().get_file(f"{bucket.NAME}/vectors.npy", str(tmp_path / "vectors.npy"))
    assert len(np.load(tmp_path / "vectors.npy")) == 600
    pairs = bucket.put("pairs.tsv", "".join(f"{number}\tword {number}\tword\n" for number in range(9)))
    evaluate.main([model, "--tasks=pairs", f"--pairs={pairs}", f"--out={place}/scores/"])
    assert f"uploaded to {place}/scores/" in capsys.readouterr().out
    (row,) = json.loads(bucket.files().cat_file(f"{bucket.NAME}/scores/results.json"))["models"]
    assert row["model"] == f"{place}/exported" and bucket.files().exists(f"{bucket.NAME}/scores/index.html")
