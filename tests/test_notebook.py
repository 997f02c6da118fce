"""The notebook of docs/ runs from top to bottom."""

import json

from conftest import ROOT


def test_the_cells_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "docs/notebooks/accelerator.ipynb").read_text(encoding="utf-8"))["cells"]
    source = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "code")
    python = [line for line in source.splitlines() if not line.startswith("%pip")]
    names = {}
    small = {
        "STEPS = 90": "STEPS = 2",
        '"package:jaxdistill/assets/train.txt.bz2"': "[f'Rain on day {day}.' for day in range(200)]",
    }
    for line, replaced in small.items():
        assert line in source
        python = [one.replace(line, replaced) for one in python]
    exec("\n".join(python), names)
    assert names["vectors"].shape == (3, 384)
    assert (names["result"].export_folder / "modules.json").exists()
