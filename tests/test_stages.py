"""Two stages in one command: the second begins with the best student of the first (killed: see test_trans_encoder)."""

import dataclasses
import json
import shutil

import pytest

from jaxdistill import main
from jaxdistill.config import parse_config
from jaxdistill.files import parts
from jaxdistill.training import stage_checks
from jaxdistill.training.stages import in_order, rivals

import program


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stages")


def arguments(folder, **overrides) -> list[str]:
    """A run of `ckd.py:tiny-two-stage` on a random teacher: 8 steps, and 6."""
    plain = program.tiny_arguments(folder, **{"run__steps": 8, "evals__every": 4} | overrides)[1:]
    text = folder / "text.txt"
    then = {
        "data.text": text, "data.batch_size": 16, "data.max_length": 32, "data.cache_folder": folder / "cache",
        "teacher.model": folder / "model", "evals.pairs": "", "evals.best": "", "evals.every": 3, "run.steps": 6,
        "run.log_every": 1, "run.precision": "float32",
    }  # fmt: skip
    return [
        "--config=configs/ckd.py:tiny-two-stage", *plain, *(f"--config.then.{name}={value}" for name, value in then.items())
    ]  # fmt: skip


@pytest.fixture(scope="module")
def finished(folder) -> str:
    """What an undisturbed run in `w` printed."""
    return program.run("main", [*arguments(folder), f"--workdir={folder / 'w'}"])[0]


def test_the_second_stage_begins_with_the_first_ones_export(folder, finished):
    assert "stage 1 of 2: ckd" in finished and "stage 2 of 2: simcse" in finished
    first, second = (json.loads((folder / "w" / f"stage{n}" / "results.json").read_text()) for n in (1, 2))
    assert first["last_step"] == 8 and second["last_step"] == 6
    after, before = first["scores"]["student after"], second["scores"]["student before"]
    name = "agreement/spearman"
    assert name in after and name in before
    again, _ = program.run("main", [*arguments(folder), f"--workdir={folder / 'w'}"])
    assert again.count("is finished") == 2


def test_steps_that_a_later_stage_cannot_average_are_refused_before_the_first_is_trained(folder, capsys, tmp_path):
    given = [*arguments(folder), f"--workdir={tmp_path / 'w'}", "--config.then.evals.average=(0,7)"]
    assert "stage 2: evals.average=(0, 7): step 7 is beyond the run's 6 steps" in program.refused(main, given, capsys)
    assert not (tmp_path / "w" / "stage1").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config.then.student.model=/absent"], "model folder '/absent' does not exist"),
        (["--config.then.teacher.model=/absent"], "model folder '/absent' does not exist"),
        (["--config.then.student.pooling=foo"], "foo"),
        (["--config.then.student.layers=0", "--config.then.student.width=8"], "set only one of them"),
        (["--config.then.data.exclude=/no.txt"], "data.exclude: /no.txt does not exist"),
        (["--config.then.data.weights=(1.0,2.0)"], "weights [1.0, 2.0] for 1 sources"),
        (["--config.then.run.profile=x"], "run.profile"),
        (["--config.then.run.sharding=tensor", "--config.then.run.model_axis=3"], "run.model_axis"),
        (["--config.then.run.steps=0", "--config.then.run.epochs=0"], "give 0 steps"),
        (["--config.then.evals.average=(0,3)", "--config.then.evals.patience=1"], "needs all of its steps"),
    ],
)
def test_what_a_later_stage_cannot_use_is_refused_before_the_first_is_trained(folder, capsys, tmp_path, flags, words):
    line = program.refused(main, [*arguments(folder), f"--workdir={tmp_path / 'w'}", *flags], capsys)
    assert line.startswith("error: stage 2: ") and words in line and not (tmp_path / "w" / "stage1").exists()


def test_a_finished_chain_is_not_trained_again_for_other_logs_but_refused_for_other_text(
    folder, finished, capsys, tmp_path
):
    workdir = shutil.copytree(folder / "w", tmp_path / "w")
    main.main([*arguments(folder, run__log_every=7), f"--workdir={workdir}"])
    assert capsys.readouterr().out.count("is finished") == 2
    other = tmp_path / "other.txt"
    other.write_text((folder / "text.txt").read_text()[:-10] + "changed.\n")
    given = [
        *arguments(folder),
        f"--workdir={workdir}",
        f"--config.data.text={other}",
        f"--config.then.data.text={other}",
    ]
    for number in (1, 2):  # the same path with another content, as far as the notes can tell
        for name in ("config.json", "results.json"):
            path = workdir / f"stage{number}" / name
            path.write_text(path.read_text().replace(str(folder / "text.txt"), str(other)))
    assert f"stage 1: data.text={other} has changed since" in program.refused(main, given, capsys)


def test_a_stage_that_others_were_made_of_is_not_trained_again(folder, finished, capsys, tmp_path):
    workdir = shutil.copytree(folder / "w", tmp_path / "w")
    before = (workdir / "stage1" / "export" / "model.safetensors").read_bytes()
    line = program.refused(main, [*arguments(folder, run__steps=12), f"--workdir={workdir}"], capsys)
    assert f"{workdir / 'stage2'} was made of its present student; remove stage2" in line
    assert (workdir / "stage1" / "export" / "model.safetensors").read_bytes() == before


def test_another_dev_score_is_refused_and_names_the_variable(folder, finished, capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("JAXDISTILL_DATA", raising=False)
    workdir = shutil.copytree(folder / "w" / "stage1", tmp_path / "stage1")
    note = json.loads((workdir / "inputs.json").read_text())
    assert note["dev score"] == "agreement/spearman" and "content of data.text" in note
    (workdir / "inputs.json").write_text(json.dumps(note | {"dev score": "sts-b-dev/spearman"}))
    given = [*program.tiny_arguments(folder, run__steps=12, evals__every=4)[1:], f"--workdir={workdir}"]
    line = program.refused(main, ["--config=configs/ckd.py:tiny", *given], capsys)
    assert "was begun with sts-b-dev/spearman as its dev score, which is agreement/spearman now" in line
    assert "JAXDISTILL_DATA" in line


def test_another_dev_score_is_refused_of_a_run_without_notes(
    folder, finished, capsys, tmp_path, monkeypatch, data_folder
):
    monkeypatch.setenv("JAXDISTILL_DATA", str(data_folder))
    workdir = shutil.copytree(folder / "w" / "stage1", tmp_path / "stage1")
    (workdir / "inputs.json").unlink()  # as an earlier version left it
    given = [*program.tiny_arguments(folder, run__steps=12, evals__every=4)[1:], f"--workdir={workdir}"]
    line = program.refused(main, ["--config=configs/ckd.py:tiny", *given], capsys)
    assert "was begun with agreement/spearman as its dev score, which is sts-b-dev/spearman now" in line


def test_previous_without_a_stage_before_is_refused(folder, capsys, tmp_path):
    given = [*program.tiny_arguments(folder), "--config.student.model=previous", f"--workdir={tmp_path / 'w'}"]
    assert "refers to the export of a stage before" in program.refused(main, given, capsys)


def test_a_later_stage_without_its_text_is_refused_before_the_first_is_trained(folder, finished, capsys, tmp_path):
    given = [
        "--config=configs/recommended.py:two-stage",
        f"--config.data.text={folder / 'text.txt'}",
        f"--workdir={tmp_path / 'w'}",
    ]
    assert "stage 2: " in (line := program.refused(main, given, capsys)) and "'positive'" in line
    assert not (tmp_path / "w").exists()


def test_graded_pairs_of_a_later_stage_are_read_before_the_first_is_trained(folder, finished, capsys, tmp_path):
    (tmp_path / "bad.tsv").write_text("score\tsentence1\tsentence2\nhigh\ta\tb\n")
    given = [*arguments(folder), f"--config.then.evals.pairs={tmp_path / 'bad.tsv'}", f"--workdir={tmp_path / 'w'}"]
    assert "stage 2: " in (line := program.refused(main, given, capsys)) and "'high'" in line
    assert not (tmp_path / "w").exists()


def test_a_stage_is_not_taken_for_finished_once_one_before_it_was_trained_again(folder, finished, capsys, tmp_path):
    workdir = shutil.copytree(folder / "w", tmp_path / "w")
    weights = workdir / "stage1" / "export" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    line = program.refused(main, [*arguments(folder), f"--workdir={workdir}"], capsys)
    assert f"{workdir / 'stage2'} was made of another student of stage1" in line


def test_the_best_is_one_a_form_and_language_model():
    def found(preset):
        return rivals(in_order(parse_config(main.parse_flags([f"--config=configs/{preset}", "--workdir=w"])[0])))

    two = found("trans_encoder.py:mutual")
    assert two == {"bi-1": [3, 7, 11], "bi-2": [4, 8, 12], "cross-1": [1, 5, 9], "cross-2": [2, 6, 10]}
    one = {"bi": [2, 4, 6], "cross": [1, 3, 5]}
    assert found("trans_encoder.py:paper") == found("trans_encoder.py:sequential") == one
    assert found("ckd.py:two-stage") == {}


def test_stages_come_in_their_order():
    raw = main.parse_flags(["--config=configs/ckd.py:two-stage", "--workdir=w", "--config.then.run.seed=7"]).config
    stages = in_order(parse_config(raw))
    assert [stage.objective["name"] for stage in stages] == ["ckd", "simcse"]
    assert [stage.run.seed for stage in stages] == [0, 7]
    assert all(stage.then is None for stage in stages)


def test_models_of_all_stages_are_looked_for_but_no_stages_and_columns(tmp_path, monkeypatch):
    looked_for = []
    monkeypatch.setattr(stage_checks, "locate", looked_for.append)
    (tmp_path / "t.txt").write_text("a cat\na dog\n")
    columns = ["text", "positive", "negative_1", "negative_2", "score_positive", "score_negative_1", "score_negative_2"]
    (tmp_path / "m.tsv").write_text("\t".join(columns) + "\na\tb\tc\td\t0.9\t0.8\t0.7\n")
    given = ["--config=configs/recommended.py:l6:retrieval", "--workdir=w", f"--config.data.text={tmp_path / 't.txt'}"]
    given += [f"--config.then.then.data.text={tmp_path / 'm.tsv'}", "--config.teacher.model=A/a,B/b"]
    stages = in_order(parse_config(main.parse_flags(given).config))
    stage_checks.check_stages(stages, [False] * 3, tmp_path)
    assert looked_for == ["A/a", "B/b"] * 2


def test_the_text_of_a_later_stage_is_read_by_its_own_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "readers", {})
    monkeypatch.setattr(stage_checks, "locate", lambda name: None)
    (tmp_path / "own.py").write_text("READERS = {'.lines': lambda path, columns: [('a cat',) * len(columns)]}")
    for name in ("t.txt", "t.lines"):
        (tmp_path / name).write_text("a cat\n")
    given = ["--config=configs/ckd.py:two-stage", "--workdir=w", f"--config.data.text={tmp_path / 't.txt'}"]
    given += [f"--config.then.data.text={tmp_path / 't.lines'}", f"--config.then.run.parts={tmp_path / 'own.py'}"]
    stage_checks.check_stages(in_order(parse_config(main.parse_flags(given).config)), [False] * 2, tmp_path)
    assert ".lines" in parts.readers


def test_a_later_stage_that_needs_a_teacher_has_the_one_before_it():
    given = ["--config=configs/recommended.py:l6:retrieval", "--workdir=w", "--config.teacher.model=OTHER/e5"]
    given += ["--config.teacher.prompt=query: ", "--config.data.text=t.tsv", "--config.data.columns=(('text','a'),)"]
    first, second, third = in_order(parse_config(main.parse_flags(given).config))
    assert (second.teacher.model, second.teacher.prompt, second.teacher.max_length) == ("OTHER/e5", "query: ", 256)
    assert second.data.columns == first.data.columns != () and first.teacher.max_length == 192
    assert third.teacher.model.startswith("columns:")
    own = in_order(parse_config(main.parse_flags([*given, "--config.then.teacher.model=own"]).config))[1]
    assert (own.teacher.model, own.teacher.prompt) == ("own", "")
    set_here = ["--config.then.teacher.whiten=0.5", "--config.then.teacher.prompt=passage: "]
    other = in_order(parse_config(main.parse_flags([*given, *set_here]).config))[1].teacher
    assert other == dataclasses.replace(second.teacher, whiten=0.5, prompt="passage: ")
    labels = in_order(
        parse_config(main.parse_flags(["--config=configs/recommended.py:l6:labelled", "--workdir=w"]).config)
    )
    assert labels[1].teacher.model == ""


@pytest.mark.parametrize(
    ("model", "prompt"), [("previous", "b: "), ("stage1", "a: "), ("stage2", "b: "), ("other", "")]
)
def test_a_later_stage_has_the_prompt_of_the_student_it_goes_on_with(model, prompt):
    given = ["--config=configs/recommended.py:l6:retrieval", "--workdir=w", "--config.student.prompt=a: "]
    given += ["--config.then.student.prompt=b: ", f"--config.then.then.student.model={model}"]
    assert in_order(parse_config(main.parse_flags(given).config))[2].student.prompt == prompt
    for option, value in (("head", "pair"), ("static", 256)):
        none = [*given, f"--config.then.then.student.{option}={value}"]
        assert in_order(parse_config(main.parse_flags(none).config))[2].student.prompt == ""


@pytest.mark.parametrize(
    ("model", "prompt"), [("previous", "b: "), ("stage1,stage2", "a: |b: "), ("stage1,other", "a: |"), ("other", "")]
)
def test_a_later_stage_has_the_prompt_of_the_stages_that_teach_it(model, prompt):
    given = ["--config=configs/recommended.py:l6:documents", "--workdir=w", "--config.student.prompt=a: "]
    given += ["--config.then.student.prompt=b: "]
    first, second = in_order(parse_config(main.parse_flags(given).config))
    third = dataclasses.replace(second, teacher=dataclasses.replace(second.teacher, model=model))
    chain = dataclasses.replace(first, then=dataclasses.replace(second, then=third))
    assert in_order(chain)[2].teacher.prompt == prompt
    own = dataclasses.replace(third, teacher=dataclasses.replace(third.teacher, prompt="c: "))
    assert in_order(dataclasses.replace(first, then=dataclasses.replace(second, then=own)))[2].teacher.prompt == "c: "


def test_a_later_stage_has_the_retrieval_sets_of_the_one_before_unless_it_trains_a_cross_encoder():
    given = ["--config=configs/trans_encoder.py:clean:1", "--workdir=w", "--config.evals.retrieval=sets"]
    stages = in_order(parse_config(main.parse_flags(given).config))
    sets = dataclasses.replace(stages[0].evals, retrieval_split="test")
    after = dataclasses.replace(stages[1], evals=dataclasses.replace(stages[1].evals, retrieval=""))
    assert in_order(dataclasses.replace(stages[0], evals=sets, then=after))[1].evals.retrieval_split == "test"
    assert [stage.evals.retrieval for stage in in_order(dataclasses.replace(stages[0], then=after))] == ["sets", "sets"]
    crossing = dataclasses.replace(after, student=dataclasses.replace(after.student, head="pair"))
    assert [
        stage.evals.retrieval for stage in in_order(dataclasses.replace(after, evals=stages[0].evals, then=crossing))
    ] == ["sets", ""]
    back = dataclasses.replace(crossing, then=after)
    chain = dataclasses.replace(after, evals=stages[0].evals, then=back)
    assert [stage.evals.retrieval for stage in in_order(chain)] == ["sets", "", "sets"]
