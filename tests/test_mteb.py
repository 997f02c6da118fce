"""The snippet of docs/mteb.md runs a task of MTEB on an export; the task is a real class with local data."""

import pathlib
import re
import subprocess
import sys

import pytest

from jaxdistill.encoders.folder import save
from jaxdistill.encoders.model import load_model
from jaxdistill.evals.pairs import pairs_spearman, read_pairs
from jaxdistill.inference import Embedder

from eval_cases import GRADED, write
from program import ROOT, environment
from tiny_models import tiny_model

LOCAL_TASK = """
import datasets
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata

class Local(AbsTaskSTS):
    metadata = TaskMetadata(
        name="Local", description="pairs of this test", dataset={"path": "none", "revision": "1"}, type="STS",
        category="t2t", modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"], main_score="cosine_spearman",
    )

    def load_data(self, **_):
        rows = datasets.load_dataset("csv", data_files={"test": FILE}, delimiter="\\t")
        self.dataset, self.data_loaded = rows, True
"""


def snippet() -> str:
    """The Python code of the page."""
    return re.search(r"```python\n(.*?)```", (ROOT / "docs" / "mteb.md").read_text(encoding="utf-8"), re.S)[1]


def test_the_documented_snippet_scores_an_export_as_we_do(tmp_path):
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "export")
    pairs = write(tmp_path / "pairs.tsv.gz", GRADED)
    code = snippet().replace('"runs/l3/export"', repr(str(tmp_path / "export")))
    code, replaced = re.subn(r"mteb\.get_tasks\(.*?\)", "[Local()]", code)
    assert replaced == 1
    script = tmp_path / "run.py"
    script.write_text(LOCAL_TASK.replace("FILE", repr(str(pairs))) + code)
    ended = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment() | {"MTEB_CACHE": str(tmp_path / "mteb"), "HF_HOME": str(tmp_path / "hf")},
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    name, score = ended.stdout.splitlines()[-1].split()
    wanted = pairs_spearman(Embedder(load_model(str(tmp_path / "export"))).encode, read_pairs(pathlib.Path(pairs)))
    assert name == "Local" and float(score) == pytest.approx(100 * wanted, abs=0.01)
