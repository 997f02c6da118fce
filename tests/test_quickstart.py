"""The quickstart's promise: on the embedded text, a student of three layers comes closer to its teacher."""

import bz2
import json

from conftest import ROOT
from program import run

MARGIN = 0.03
"""Gain in agreement with the teacher that the README promises after so many steps."""
SENTENCES = 500
"""Held-out sentences that it is measured on: all of the quickstart's would take most of its time."""


def test_ten_steps_bring_the_student_closer_to_the_real_teacher(tmp_path):
    options = [
        "--config.run.steps=10",
        "--config.evals.every=10",
        "--config.data.pack_shapes=2",
        "--config.objective.queue_size=256",
    ]
    heldout = bz2.open(ROOT / "jaxdistill" / "assets" / "heldout.txt.bz2", "rt", encoding="utf-8").read().splitlines()
    (tmp_path / "heldout.txt").write_text("\n".join(heldout[:SENTENCES]), encoding="utf-8")
    options.append(f"--config.evals.agreement={tmp_path / 'heldout.txt'}")
    options.append(f"--config.data.cache_folder={tmp_path / 'cache'}")
    out, _ = run("main", ["--config=configs/congen.py", *options], cwd=tmp_path, quick=False)
    assert out.startswith("workdir: runs/congen-quickstart\n")
    scores = json.loads((tmp_path / "runs" / "congen-quickstart" / "results.json").read_text())["scores"]
    before, after = scores["student before"], scores["student after"]
    assert after["agreement/spearman"] > before["agreement/spearman"] + MARGIN
    assert scores["teacher"]["agreement/spearman"] > 0.999
    for words in ("graded pairs", "parameters", "weights file", "sentences/s", "export", "training.png"):
        assert words in out
