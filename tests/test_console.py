"""What a run says, printed and kept with times."""

import logging
import re

import pytest

from jaxdistill.core import InputError
from jaxdistill.training import console


def lines_of(workdir):
    """The lines of a log without their times, which must be there."""
    lines = (workdir / "train.log").read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    return [line[20:] for line in lines]


def test_each_run_of_a_workdir_appends_what_it_says_to_its_log(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("jaxdistill"), "level", logging.INFO)
    with console.kept("first") as keep_in:
        console.say("100% before the workdir is there")
        logging.getLogger("jaxdistill.data").warning("%d damaged", 2)
        assert not list(tmp_path.iterdir())
        keep_in(tmp_path)
        console.say("step 1")
        console.note("| a |\n| b |")
        assert lines_of(tmp_path)[-3:] == ["step 1", "| a |", "| b |"]
    console.say("of no run")
    with pytest.raises(InputError), console.kept("second") as keep_in:
        keep_in(tmp_path)
        raise InputError("training diverged")
    with pytest.raises(KeyboardInterrupt), console.kept("third") as keep_in:
        keep_in(tmp_path)
        raise KeyboardInterrupt
    first = ["$ first", "100% before the workdir is there", "2 damaged", "step 1", "| a |", "| b |"]
    assert lines_of(tmp_path) == [*first, "$ second", "training diverged", "$ third", "interrupted"]
    assert capsys.readouterr().out == "100% before the workdir is there\nstep 1\nof no run\n"
