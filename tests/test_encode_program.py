"""The program that encodes: killed and started again, its memory, and what it compiles."""

import os
import signal
import subprocess
import sys
import time

import pytest

from jaxdistill import encode
from jaxdistill.checkpoints.folder import save
from jaxdistill.data import vectors
from jaxdistill.inference import to_file

from program import ROOT, environment, run, start, write_text
from tiny_models import tiny_model
from tiny_text import made_up

ROWS = 2 * to_file.PART_ROWS + 1000


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save(tiny_model(folder / "tokenizer"), folder / "export")
    return str(folder / "export")


def test_the_real_program_killed_and_started_again_writes_the_same_table(model, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(made_up(ROWS, words=2)) + "\n")
    arguments = [f"--model={model}", f"--input={tmp_path / 'text.txt'}", "--keep_text"]
    output, unfinished = tmp_path / "killed.parquet", tmp_path / ".killed.parquet.parts"
    process = start("encode", [*arguments, f"--output={output}"], devices=8)
    while not [*unfinished.glob("part-*")]:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not output.exists() and len([*unfinished.glob("part-*")]) < 3
    encode.main([*arguments, f"--output={output}", "--quiet"])
    encode.main([*arguments, f"--output={tmp_path / 'whole.parquet'}", "--quiet"])
    assert output.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert vectors.shape(output) == (ROWS, 16)


MEASURE = """
import pathlib, resource, sys
import numpy as np
import pyarrow.parquet
from jaxdistill import search
from jaxdistill.inference import load, to_file

embedder = load(sys.argv[1])
embedder.encode(["rain"])
width = 512
type(embedder).width = width
type(embedder).encode_ids = lambda self, ids, **_: np.ones((len(ids), width), np.float32)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
for kind in ("npy", "parquet"):
    to_file.encode_file(embedder, [sys.argv[2]], f"{sys.argv[3]}/v.{kind}", progress=False)
    search.search(np.ones((2, width)), pathlib.Path(f"{sys.argv[3]}/v.{kind}"), [sys.argv[2]], top=3)
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_rows(model, tmp_path):
    (tmp_path / "text.txt").write_text("rain\n" * 80_000)
    command = [sys.executable, "-c", MEASURE, model, str(tmp_path / "text.txt"), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "v.npy").stat().st_size >> 20 == 156
    assert int(done.stdout) < 100, "MiB more than before, for two files of 156 MiB"


def test_compiled_programs_are_kept_in_the_cache_folder(model, tmp_path, monkeypatch):
    text = write_text(tmp_path, rows=7)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    half_written = tmp_path / "cache" / "compiled" / "jit_x-cache"  # by a killed process; JAX writes none beside it
    half_written.parent.mkdir(parents=True)
    half_written.write_bytes(b"x")
    os.utime(half_written, (0, 0))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    _, err = run("encode", [f"--model={model}", f"--input={text}", f"--output={tmp_path / 'v.npy'}"])
    kept = list((tmp_path / "cache" / "compiled").glob("*-cache"))
    assert kept and half_written not in kept and "Error writing" not in err
