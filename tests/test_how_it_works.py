"""docs/how-it-works.md: its excerpts run in their order."""

import doctest

from jaxdistill.models.checkpoints.folder import save

from conftest import ROOT
from tiny_models import tiny_model

PAGE = ROOT / "docs" / "how-it-works.md"


class Shown(doctest.OutputChecker):
    """Compares what the page shows; what a training prints is not on it."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


def test_the_excerpts_run(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # the config is named as in the README
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "teacher")
    lines = [
        f"{who} {does} {when}.\n"
        for who in ("the cat", "the dog", "rain", "she")
        for does in ("sleeps", "falls", "sings", "reads")
        for when in ("now", "in may", "at home", "again", "outside", "here")
    ]
    (tmp_path / "text.txt").write_text("".join(lines))
    (tmp_path / "folder").mkdir()
    names = {"TEACHER": str(tmp_path / "teacher"), "TEXT": str(tmp_path / "text.txt"), "FOLDER": tmp_path / "folder"}
    page = PAGE.read_text(encoding="utf-8").replace("```\n", "\n")
    test = doctest.DocTestParser().get_doctest(page, names, PAGE.name, str(PAGE), 0)
    assert len({example.lineno for example in test.examples}) >= 20
    failed = []
    doctest.DocTestRunner(Shown(), optionflags=doctest.FAIL_FAST).run(test, out=failed.append)
    assert not failed, "".join(failed)
