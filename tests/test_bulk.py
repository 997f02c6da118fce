"""The code of docs/guide/bulk.md on a real cluster of two nodes, one of whose workers is killed."""

import contextlib
import importlib.util
import re
import subprocess
import sys
import time

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet

import jaxdistill
from jaxdistill.checkpoints.folder import save

from conftest import ROOT
from program import environment
from tiny_models import tiny_model
from tiny_text import made_up

FILES, ROWS = 8, 60
TWO_NODES = """
import time

import ray
from ray.cluster_utils import Cluster

cluster = Cluster()
for _ in range(2):
    cluster.add_node(num_cpus=2, object_store_memory=100 * 2**20)
ray.init(cluster.address)
assert len([node for node in ray.nodes() if node["Alive"]]) == 2
"""
SLOWLY = """
class Encoder(Encoder):
    def __call__(self, batch):
        time.sleep(0.5)  # so that a worker can be killed before all is done
        return super().__call__(batch)
"""


def program() -> str:
    """The page's code, for a cluster of its own, files of the working folder and two workers."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide" / "bulk.md").read_text(), flags=re.S)
    for given, here in (
        ('ray.init("auto")\n', TWO_NODES + SLOWLY),
        ("runs/l3/export", "export"),
        ("jaxdistill.load(model)", 'jaxdistill.load(model, precision="float32")'),
        ("rows_per_block=100_000", f"rows_per_block={ROWS}"),
        ("size=8", "size=2"),
        ("num_cpus=8", "num_cpus=1"),
    ):
        assert code.count(given) == 1
        code = code.replace(given, here)
    return code + "ray.shutdown()\ncluster.shutdown()\n"


def encoders(process: psutil.Process) -> list[psutil.Process]:
    """Its workers that encode; those that have just ended are left out."""
    found = []
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child] * ("Encoder" in child.name() + "".join(child.cmdline()))
    return found


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'ray[data]'")
def test_a_folder_is_encoded_on_two_nodes_though_a_worker_is_killed(tmp_path):
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "export")
    sentences = made_up(FILES * ROWS, words=6)
    (tmp_path / "texts").mkdir()
    for part in range(FILES):
        rows = range(part * ROWS, (part + 1) * ROWS)
        table = pa.table({"id": list(rows), "sentence": [sentences[row] for row in rows]})
        parquet.write_table(table, tmp_path / "texts" / f"{part}.parquet")
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    with (tmp_path / "log").open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, "-c", program()], cwd=tmp_path, env=environment() | variables, stdout=log, stderr=log
        )
    family = psutil.Process(driver.pid)
    try:
        while not (workers := encoders(family)) or not list((tmp_path / "vectors").glob("*.parquet")):
            assert driver.poll() is None, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.1)
        workers[0].kill()
        finished = len(list((tmp_path / "vectors").glob("*.parquet")))
        assert driver.wait(timeout=300) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        for child in [*family.children(recursive=True), family] if driver.poll() is None else ():
            child.kill()
        driver.wait()
    assert finished < FILES, "all was done before the worker was killed"
    written = parquet.read_table(tmp_path / "vectors")
    assert sorted(written["id"].to_pylist()) == list(range(FILES * ROWS))
    assert written["sentence"].to_pylist() == [sentences[row] for row in written["id"].to_pylist()]
    assert written.schema.field("embedding").type == pa.list_(pa.float32(), 16)
    vectors = np.stack(written["embedding"].to_numpy())
    expected = jaxdistill.load(str(tmp_path / "export"), precision="float32").encode(sentences)
    np.testing.assert_allclose(vectors, expected[written["id"].to_numpy()], rtol=0, atol=1e-6)
