"""Mistakes on the command line of a training: one line, status 2, nothing left behind."""

import json

import pytest

from jaxdistill import main
from jaxdistill.config import nested, shipped_configs
from jaxdistill.core import InputError
from jaxdistill.training.workdir.folder import read_config

from program import refused, tiny_arguments


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("program")


@pytest.mark.parametrize("path", shipped_configs(), ids=lambda path: path.stem)
def test_a_config_alone_trains_offline_on_the_embedded_text(path, tmp_path, monkeypatch):
    """Its quickstart: text and models come with packages, and nothing but the config has to be given."""
    monkeypatch.chdir(tmp_path)
    main.main([f"--config=configs/{path.name}", "--check=here"])
    flags = main.parse_flags([f"--config={path}"])
    assert flags.workdir == f"runs/{path.stem}-quickstart"
    for stage in flags.stages:
        sources = [stage.data.text, stage.teacher.model, stage.student.model]
        assert all(not name or name.startswith(("package:", "teacher", "previous", "stage")) for name in sources)


def test_the_workdir_is_named_after_config_and_preset(tmp_path):
    assert main.parse_flags(["--config=l2.py:paper:bert-tiny"]).workdir == "runs/l2-paper-bert-tiny"
    (tmp_path / "mine.py").write_text(
        "from jaxdistill.config import defaults\ndef get_config(): return defaults(objective='simcse')\n"
    )
    assert main.parse_flags([f"--config={tmp_path / 'mine.py'}"]).workdir == "runs/mine"


def test_a_workdir_of_another_version_is_refused(folder, tmp_path, capsys):
    other = nested(main.parse_flags([*tiny_arguments(folder), "--workdir=w"]).stages[0])
    other["student"]["pool"] = "mean"
    (tmp_path / "config.json").write_text(json.dumps(other))
    line = refused(main, [*tiny_arguments(folder), f"--workdir={tmp_path}"], capsys)
    assert (
        "written by another version of this program; use another --workdir: config key student.pool is unknown" in line
    )
    (tmp_path / "config.json").write_text("")
    with pytest.raises(InputError, match="config.json.*cannot be read"):
        read_config(tmp_path)


def test_a_student_of_another_width_is_refused_and_leaves_nothing_behind(folder, capsys):
    student = dict(student__kind="static", student__width=8, student__layers=None)
    arguments = tiny_arguments(folder, teacher__kind="stored", **student)
    words = "the student's vectors have 8 numbers, the teacher's 16; set student.head"
    assert words in refused(main, [*arguments, f"--workdir={folder / 'bad'}"], capsys)
    assert not (folder / "bad").exists() and not (folder / "cache" / "targets").exists()
