"""Everything that a user can get wrong on the command line of a training: one line, status 2, nothing left behind."""

import json

import pytest

from jaxdistill import main
from jaxdistill.config import nested
from jaxdistill.core import InputError
from jaxdistill.workdir.folder import read_config

from program import refused, run, tiny_arguments


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("program")


def test_a_workdir_of_another_version_is_refused(folder, tmp_path, capsys):
    other = nested(main.parse_flags([*tiny_arguments(folder), "--workdir=w"]).config)
    other["student"]["pool"] = "mean"
    (tmp_path / "config.json").write_text(json.dumps(other))
    line = refused(main, [*tiny_arguments(folder), f"--workdir={tmp_path}"], capsys)
    assert "written by another version of this program (config key student.pool is unknown" in line
    assert "use another --workdir" in line


@pytest.mark.parametrize("content", ["", "[" * 10**5, '{"data": ' + "1" * 5000 + "}"])
def test_a_damaged_config_of_a_workdir_is_one_line(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match="config.json is damaged .*; remove .* to start again"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "changed, words",
    [
        (
            ["--config.objective.alfa=1"],
            "unknown option --config.objective.alfa. Did you mean --config.objective.alpha?",
        ),
        (["--config.objectve.alpha=1"], "Did you mean --config.objective.alpha?"),
        (["--config.objective.alpha=much"], "--config.objective.alpha=much: could not convert string to float"),
        (["--config.objective.alpha=2"], "objective.alpha=2.0 must be at least 0 and at most 1"),
        (["--config.objective=1"], "--config.objective is a section; set one of its options"),
        (["--config.teacher.kind=stored"], "chosen before them: by the preset (--config=FILE.py:PRESET:teacher=KIND)"),
        (["--config.teacher.weights=(1,2)"], "--config.teacher.weights is an option of the teacher several"),
        (["--config.run.remat=maybe"], "--config.run.remat=maybe: ('Non-boolean argument"),
        (["--config.data.columns=((a,b)"], "--config.data.columns=((a,b): Error while parsing string"),
        (["--check=there"], "--check=there: value should be one of <here|elsewhere>"),
        (["--config.data.batch_sise=3"], "Did you mean --config.data.batch_size?"),
        (["--workdirs=x"], "unknown option --workdirs. Did you mean --workdir?"),
        (["--steps=2"], "unknown option --steps. Did you mean --config.run.steps?"),
        (["--config.run.steps=2.5"], "--config.run.steps=2.5: invalid literal for int()"),
        (["extra"], "not an option"),
        (["--config=configs/congen.py:tyni"], "preset 'tyni' is unknown; configs/congen.py has"),
        (["--config=configs/congem.py"], "does not exist; shipped: configs/ckd.py, congen.py"),
    ],
)
def test_a_mistyped_option_is_one_clear_line(folder, changed, words, capsys):
    assert words in refused(main, [*tiny_arguments(folder), *changed, f"--workdir={folder / 'never'}"], capsys)


@pytest.mark.parametrize(
    "overrides, words",
    [
        (dict(data__text="nowhere.txt"), "nowhere.txt"),
        (dict(teacher__model="nowhere/at all/here"), "does not exist"),
        (dict(teacher__model="no/such-model"), "HF_HOME"),
        (
            dict(teacher__kind="stored", data__batch_size=600),
            "540 of the text's 600 sentences are left without the 60 reserved ones and their repeats, and one batch needs 600",
        ),
        (dict(objective__kind="congenn"), "Did you mean congen?"),
        (dict(teacher__kind="stored", evals__best="sts-b/spearman"), "agreement/spearman"),
        (
            dict(teacher__kind="stored", student__kind="static", student__width=8, student__layers=None),
            "the student's vectors have 8 numbers, the teacher's 16; set student.head",
        ),
        (
            dict(teacher__kind="stored", student__layers="greedy:1", run__sharding="(('nowhere', ('data',)),)"),
            "matches no parameter",
        ),
        (dict(teacher__pooling="middle"), "middle"),
        (dict(teacher__kind="stored", teacher__components=1000), "--config.teacher.components to at most 16"),
        (
            dict(
                teacher__kind="vectors",
                teacher__model=None,
                teacher__file="nowhere.npy",
                student__model="FOLDER/model",
                student__head="tanh",
            ),
            "nowhere.npy does not exist",
        ),
        (dict(student__pooling="mean:last4", student__model="FOLDER/model"), "pooling"),
        (dict(run__precision="float8"), "float32"),
        (dict(student__layers="7"), "layers"),
        (dict(objective__control_view="shuffle"), "shuffle"),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_nothing_behind(folder, overrides, words, capsys):
    arguments = [argument.replace("FOLDER", str(folder)) for argument in tiny_arguments(folder, **overrides)]
    assert words in refused(main, [*arguments, f"--workdir={folder / 'bad'}"], capsys)
    assert not (folder / "bad").exists() and not (folder / "cache" / "targets").exists()


def test_a_batch_that_devices_do_not_divide_is_refused_with_the_nearest(folder, capsys):
    _, err = run(
        "main", [*tiny_arguments(folder, data__batch_size=20), f"--workdir={folder / 'bad'}"], devices=8, status=2
    )
    assert err.count("\n") == 1 and "not divisible by 8 devices; nearest: 16, 24" in err
