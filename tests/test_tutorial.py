"""docs/tutorial.md: its lines run as printed, with fewer tickets and steps, and print what the page shows."""

import io
import json
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout

import pytest

from jaxdistill import main

from conftest import ROOT

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S)
FEWER = {"12000": "400", "--config.run.minutes=5": "--config.run.steps=8 --config.data.batch_size=32"}
VARYING = r"─+|\b[0-9a-f]{12}\b|[\d.,]+|( \S+)? instead of .*|^run.minutes.*|^estimated time.*|^objective.queue_size.*|^rows x tokens.*"
LOGGED = ("12000", "continuing", "run.minutes", "step ", "best checkpoint", "data.max_length", "teacher embeddings")
"""Lines with other numbers of tickets or steps, and lines that go to the log, which the tests take away."""


def shape(line: str) -> str:
    """A line without numbers, folders, the precision and what depends on the sizes."""
    return " ".join(re.sub(VARYING, "#", re.sub(r"\S*/(?=runs/)|\bb(?=float16)", "", line)).split())


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Each block of the page and what it printed, in order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("tutorial"))
        printed = []
        for language, code in BLOCKS:
            for text, less in FEWER.items():
                code = code.replace(text, less)
            with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
                if language == "python":
                    exec(code, {})
                elif code.startswith("python -m jaxdistill.main"):
                    main.main(shlex.split(code.replace("\\\n", " "))[3:])
                else:
                    continue
            printed.append(out.getvalue())
        with open("runs/tickets/results.json", encoding="utf-8") as file:
            yield printed, json.load(file)["scores"]


def test_the_page_shows_what_its_lines_print_and_the_student_comes_closer_to_the_teacher(ran):
    printed, scores = ran
    shown = [code for language, code in BLOCKS if not language and not code.startswith("python -m")]
    for expected, output in zip((shown[0], shown[1], shown[2], shown[4]), printed, strict=False):
        lines = set(map(shape, output.splitlines()))
        missing = [line for line in expected.splitlines() if shape(line) not in lines]
        assert not [line for line in missing if not line.startswith(LOGGED)]
    before, after = (scores[f"student {when}"]["agreement/spearman"] for when in ("before", "after"))
    assert after > before and scores["teacher"]["agreement/spearman"] > 0.999
    assert len(re.findall(r"^-?\d\.\d\d  \w", printed[4], re.M)) == 3
