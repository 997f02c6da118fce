"""Two stages in one command: the second begins with the best student of the first (killed: see test_trans_encoder)."""

import json
import shutil
import sys

import pytest
from test_sts import fake_datasets

from jaxdistill import main
from jaxdistill.config import parse_stages
from jaxdistill.files import parts
from jaxdistill.training.setup import stage_checks
from jaxdistill.training.stages import rivals

import program

STS_B = "sts-b-dev/spearman"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stages")


def arguments(folder, **overrides) -> list[str]:
    """A run of `ckd.py:tiny-two-stage` on a random teacher: 8 steps, and 6."""
    plain = program.tiny_arguments(folder, **{"run__steps": 8, "evals__every": 4} | overrides)[1:]
    text = folder / "text.txt"
    second = {
        "data.text": text, "data.batch_size": 16, "data.max_length": 32, "data.cache_folder": folder / "cache",
        "teacher.model": folder / "model", "evals.pairs": "", "evals.best": "", "evals.every": 3, "run.steps": 6,
        "run.log_every": 1, "run.precision": "float32",
    }  # fmt: skip
    return [
        "--config=configs/ckd.py:tiny-two-stage", *(flag.replace("--config.", "--config.stage1.", 1) for flag in plain),
        *(f"--config.stage2.{name}={value}" for name, value in second.items()),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def finished(folder) -> str:
    """What an undisturbed run in `w` printed."""
    return program.trained([*arguments(folder), f"--workdir={folder / 'w'}"])


def test_the_second_stage_begins_with_the_first_ones_export(folder, finished):
    assert "stage 1 of 2: ckd" in finished and "stage 2 of 2: simcse" in finished
    first, second = (json.loads((folder / "w" / f"stage{n}" / "results.json").read_text()) for n in (1, 2))
    assert first["last_step"] == 8 and second["last_step"] == 6
    after, before = first["scores"]["student after"], second["scores"]["student before"]
    name = "agreement/spearman"
    assert name in after and name in before
    assert program.trained([*arguments(folder), f"--workdir={folder / 'w'}"]).count("is finished") == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config.stage2.student.model=/absent"], "model folder '/absent' does not exist"),
        (["--config.stage2.teacher.model=/absent"], "model folder '/absent' does not exist"),
        (["--config.stage2.student.pooling=foo"], "foo"),
        (
            [
                "--config.stage2.student.kind=fresh",
                "--config.stage2.student.vocabulary=300",
                "--config.stage2.student.trim=t.txt",
            ],
            "set only one of them",
        ),
        (["--config.stage2.data.exclude=/no.txt"], "data.exclude: /no.txt does not exist"),
        (["--config.stage2.data.weights=(1.0,2.0)"], "weights [1.0, 2.0] for 1 source;"),
        (["--config.stage2.run.profile=x"], "run.profile"),
        (["--config.stage2.run.sharding=tensor", "--config.stage2.run.model_axis=3"], "run.model_axis"),
        (["--config.stage2.run.steps=0", "--config.stage2.run.epochs=0"], "give 0 steps"),
        (["--config.stage2.evals.average=(0,7)"], "evals.average=(0, 7): step 7 is beyond the run's 6 steps"),
        (
            ["--config.stage2.evals.average=(0,3)", "--config.stage2.evals.patience=1"],
            "give only one of best=last, average and patience",
        ),
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
        f"--config.stage1.data.text={other}",
        f"--config.stage2.data.text={other}",
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
    assert f"{workdir / 'stage2'} depends on the student that this would replace; remove stage2" in line
    assert (workdir / "stage1" / "export" / "model.safetensors").read_bytes() == before


def test_another_dev_score_is_refused_and_names_the_variable(folder, finished, capsys, tmp_path):
    workdir = shutil.copytree(folder / "w" / "stage1", tmp_path / "stage1")
    note = json.loads((workdir / "inputs.json").read_text())
    assert note["dev score"] == "agreement/spearman" and "content of data.text" in note
    (workdir / "inputs.json").write_text(json.dumps(note | {"dev score": "sts-b-dev/spearman"}))
    given = [*program.tiny_arguments(folder, run__steps=12, evals__every=4)[1:], f"--workdir={workdir}"]
    line = program.refused(main, ["--config=configs/ckd.py:tiny", *given], capsys)
    assert "was started with sts-b-dev/spearman as its dev score, which is agreement/spearman now" in line
    assert "JAXDISTILL_DATA" in line


def test_another_dev_score_is_refused_of_a_run_without_notes(
    folder, finished, capsys, tmp_path, monkeypatch, data_folder
):
    monkeypatch.setenv("JAXDISTILL_DATA", str(data_folder))
    workdir = shutil.copytree(folder / "w" / "stage1", tmp_path / "stage1")
    (workdir / "inputs.json").unlink()  # as an earlier version left it
    given = [*program.tiny_arguments(folder, run__steps=12, evals__every=4)[1:], f"--workdir={workdir}"]
    line = program.refused(main, ["--config=configs/ckd.py:tiny", *given], capsys)
    assert "was started with agreement/spearman as its dev score, which is sts-b-dev/spearman now" in line


def test_previous_without_a_stage_before_is_refused(folder, capsys, tmp_path):
    given = [*program.tiny_arguments(folder), "--config.student.model=previous", f"--workdir={tmp_path / 'w'}"]
    assert "refers to the export of a stage before" in program.refused(main, given, capsys)


def test_a_later_stage_without_its_text_is_refused_before_the_first_is_trained(folder, finished, capsys, tmp_path):
    given = [
        "--config=configs/recommended.py:two-stage",
        f"--config.all.data.text={folder / 'text.txt'}",
        f"--workdir={tmp_path / 'w'}",
    ]
    assert "stage 2: " in (line := program.refused(main, given, capsys)) and "'positive'" in line
    assert not (tmp_path / "w").exists()


def test_graded_pairs_of_a_later_stage_are_read_before_the_first_is_trained(folder, finished, capsys, tmp_path):
    (tmp_path / "bad.tsv").write_text("score\tsentence1\tsentence2\nhigh\ta\tb\n1\tc\td\n")
    given = [*arguments(folder), f"--config.stage2.evals.pairs={tmp_path / 'bad.tsv'}", f"--workdir={tmp_path / 'w'}"]
    assert "stage 2: " in (line := program.refused(main, given, capsys)) and "'high'" in line
    assert not (tmp_path / "w").exists()


def chosen_by(folder, first: str, second: str) -> list[str]:
    """The run without a teacher in its second stage."""
    best = [f"--config.stage{number}.evals.best={metric}" for number, metric in ((1, first), (2, second))]
    return [flag for flag in arguments(folder) if "evals.best" not in flag] + [*best, "--config.stage2.teacher.model="]


@pytest.mark.parametrize("further", [[], ["--dry_run"]])
def test_a_dev_set_that_cannot_be_had_is_missed_before_the_first_stage(
    folder, finished, capsys, tmp_path, monkeypatch, further
):
    """By a stage that names it, and by one that has no other."""

    def offline(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(offline))
    further = [*further, f"--workdir={tmp_path / 'w'}"]
    line = program.refused(main, [*chosen_by(folder, STS_B, STS_B), *further], capsys)
    assert "stage 1: dev set sts-b-dev/spearman: mteb/stsbenchmark-sts cannot be loaded from the" in line
    line = program.refused(main, [*chosen_by(folder, "", ""), *further], capsys)
    assert "stage 2: no evaluation can choose the best checkpoint: give --config.evals.best=sts-b-dev/spearman" in line
    assert not (tmp_path / "w").exists()


def test_sts_b_dev_comes_from_the_hub(folder, finished, tmp_path, monkeypatch):
    columns = {
        "score": [0.0, 2.0, 5.0, 3.0],
        "sentence1": ["the cat", "a dog", "rain", "it"],
        "sentence2": list("abcd"),
    }
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(lambda *_, **__: columns))
    program.trained([*chosen_by(folder, STS_B, STS_B), f"--workdir={tmp_path / 'w'}"])
    for stage in ("stage1", "stage2"):
        results = json.loads((tmp_path / "w" / stage / "results.json").read_text())
        assert results["best_metric"] == STS_B in results["scores"]["student after"]


def test_the_last_checkpoint_needs_no_dev_set(folder, finished, tmp_path):
    options = dict(teacher__model="", student__model=folder / "model", student__layers="", objective__queue_size=None)
    given = program.tiny_arguments(folder, evals__best="last", **options)[1:]
    said = program.trained(["--config=configs/simcse.py:tiny", *given, f"--workdir={tmp_path / 'w'}"])
    assert "step 20: no dev set" in said and "last checkpoint: step 20" in said


def test_a_stage_is_not_taken_for_finished_once_one_before_it_was_trained_again(folder, finished, capsys, tmp_path):
    workdir = shutil.copytree(folder / "w", tmp_path / "w")
    weights = workdir / "stage1" / "export" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    line = program.refused(main, [*arguments(folder), f"--workdir={workdir}"], capsys)
    assert f"{workdir / 'stage2'} was made from another student of stage1" in line


def test_the_best_is_one_a_form_and_language_model():
    def found(preset):
        return rivals(parse_stages(main.parse_flags([f"--config=configs/{preset}", "--workdir=w"]).stages))

    two = found("trans_encoder.py:mutual")
    assert two == {"bi-1": [3, 7, 11], "bi-2": [4, 8, 12], "cross-1": [1, 5, 9], "cross-2": [2, 6, 10]}
    one = {"bi": [2, 4, 6], "cross": [1, 3, 5]}
    assert found("trans_encoder.py:paper") == found("trans_encoder.py:sequential") == one
    assert found("ckd.py:two-stage") == {}


def test_stages_are_complete_and_in_the_order_of_the_run():
    given = [
        "--config=configs/ckd.py:two-stage",
        "--workdir=w",
        "--config.all.run.seed=7",
        "--config.stage2.run.seed=8",
    ]
    stages = parse_stages(main.parse_flags(given).stages)
    assert [stage.objective["kind"] for stage in stages] == ["ckd", "simcse"]
    assert [stage.run.seed for stage in stages] == [7, 8]
    assert stages[1].student.model == "previous" and stages[1].data.batch_size == 128


def test_an_option_of_several_stages_says_of_which(capsys):
    line = program.refused(main, ["--config=ckd.py:two-stage", "--workdir=w", "--config.run.seed=1"], capsys)
    assert "write --config.all.run.seed for every stage that has the option, or --config.stage1.run.seed" in line


def test_a_list_of_stages_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from ml_collections import ConfigDict\n"
        "def get_config():\n"
        "    first = ConfigDict(dict(objective=dict(kind='simcse'), student=dict(model='m')))\n"
        "    return [first, ConfigDict(dict(objective=dict(kind='ckd'), student=dict(kind='static', model='previous')))]\n"
    )
    given = [
        f"--config={tmp_path / 'mine.py'}",
        "--workdir=w",
        "--config.all.student.layers=1",
        "--config.stage2.student.width=8",
    ]
    first, second = parse_stages(main.parse_flags(given).stages)
    assert (first.student.kind, first.student.layers) == ("cut", "1")
    assert (second.student.kind, second.student.width, second.objective["queue_size"]) == ("static", 8, 65536)


def test_models_of_all_stages_are_looked_for_but_no_stages_and_columns(tmp_path, monkeypatch):
    looked_for = []
    monkeypatch.setattr(stage_checks, "locate", looked_for.append)
    (tmp_path / "t.txt").write_text("a cat\na dog\n")
    (tmp_path / "m.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t0.9\n")
    given = ["--config=configs/recommended.py:l3:labelled", "--workdir=w"]
    given += [f"--config.all.data.text={tmp_path / 't.txt'}", "--config.all.teacher.model=A/a,B/b"]
    given += ["--config.stage1.teacher.kind=several", "--config.stage2.teacher.kind=several"]
    given += [f"--config.stage3.data.text={tmp_path / 'm.tsv'}"]
    given += ["--config.stage3.teacher.kind=columns", "--config.stage3.teacher.names=score"]
    stages = parse_stages(main.parse_flags(given).stages)
    stage_checks.check_stages(stages, [False] * 3, tmp_path)
    assert looked_for == ["A/a", "B/b"] * 2


def test_the_text_of_a_later_stage_is_read_by_its_own_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "readers", {})
    monkeypatch.setattr(stage_checks, "locate", lambda name: None)
    (tmp_path / "own.py").write_text("READERS = {'.lines': lambda path, columns: [('a cat',) * len(columns)]}")
    for name in ("t.txt", "t.lines"):
        (tmp_path / name).write_text("a cat\n")
    given = ["--config=configs/ckd.py:two-stage", "--workdir=w", f"--config.all.data.text={tmp_path / 't.txt'}"]
    given += [f"--config.stage2.data.text={tmp_path / 't.lines'}", f"--config.stage2.run.parts={tmp_path / 'own.py'}"]
    given += ["--config.stage2.evals.best=last"]
    stage_checks.check_stages(parse_stages(main.parse_flags(given).stages), [False] * 2, tmp_path)
    assert ".lines" in parts.readers
