"""Two stages in one command: the second begins with the best student of the first (interrupted: see test_trans_encoder)."""

import json
import shutil

import pytest

from jaxdistill import main
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
    return program.training_output([*arguments(folder), f"--workdir={folder / 'w'}"])


def test_the_second_stage_begins_with_the_first_ones_export(folder, finished):
    assert "stage 1 of 2: ckd" in finished and "stage 2 of 2: simcse" in finished
    first, second = (json.loads((folder / "w" / f"stage{n}" / "results.json").read_text()) for n in (1, 2))
    assert first["last_step"] == 8 and second["last_step"] == 6
    after, before = first["scores"]["student after"], second["scores"]["student before"]
    name = "agreement/spearman"
    assert name in after and name in before
    assert program.training_output([*arguments(folder), f"--workdir={folder / 'w'}"]).count("is finished") == 2


def test_a_finished_chain_is_not_trained_again_for_other_logs_but_refused_for_other_text(
    folder, finished, capsys, tmp_path
):
    workdir = shutil.copytree(folder / "w", tmp_path / "w")
    main.main([*arguments(folder, run__log_every=7), f"--workdir={workdir}"])
    assert capsys.readouterr().out.count("is finished") == 2
    other = tmp_path / "other.txt"
    other.write_text((folder / "text.txt").read_text()[:-10] + "changed.\n")
    flags = [
        *arguments(folder),
        f"--workdir={workdir}",
        f"--config.stage1.data.text={other}",
        f"--config.stage2.data.text={other}",
    ]
    for number in (1, 2):  # the same path with another content, as far as the notes can tell
        for name in ("config.json", "results.json"):
            path = workdir / f"stage{number}" / name
            path.write_text(path.read_text().replace(str(folder / "text.txt"), str(other)))
    assert f"stage 1: data.text={other} has changed since" in program.refused(main, flags, capsys)


def test_a_stage_that_later_ones_started_from_is_not_trained_again(folder, finished, capsys, tmp_path):
    workdir = shutil.copytree(folder / "w", tmp_path / "w")
    before = (workdir / "stage1" / "export" / "model.safetensors").read_bytes()
    line = program.refused(main, [*arguments(folder, run__steps=12), f"--workdir={workdir}"], capsys)
    assert (
        f"stage 1: it is to be trained, but stage2 in {workdir} began from the student that this would replace" in line
    )
    assert (workdir / "stage1" / "export" / "model.safetensors").read_bytes() == before
    shutil.rmtree(workdir / "stage1")  # nor is another student exported in its place, untrained
    line = program.refused(main, [*arguments(folder, run__steps=0), f"--workdir={workdir}"], capsys)
    assert "stage 1: it is to be trained, but stage2" in line and not (workdir / "stage1").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config.stage2.run.steps=-1", "--config.stage2.run.epochs=0"], "give 0 steps"),
        ([f"--config.stage2.evals.best={STS_B}"], "dev set sts-b-dev/spearman: mteb/stsbenchmark-sts cannot be loaded"),
    ],
)
def test_what_a_later_stage_cannot_use_is_refused_before_the_first_is_trained(
    folder, capsys, tmp_path, monkeypatch, flags, words
):
    monkeypatch.delenv("JAXDISTILL_DATA", raising=False)
    line = program.refused(main, [*arguments(folder), f"--workdir={tmp_path / 'w'}", *flags], capsys)
    assert line.startswith("error: stage 2: ") and words in line and not (tmp_path / "w" / "stage1").exists()


def test_each_form_and_language_model_has_one_best():
    def best_stages(preset):
        return rivals(main.parse_flags([f"--config=configs/{preset}", "--workdir=w"]).stages)

    mutual = best_stages("trans_encoder.py:mutual")
    assert mutual == {"bi-1": [3, 7, 11], "bi-2": [4, 8, 12], "cross-1": [1, 5, 9], "cross-2": [2, 6, 10]}
    single = {"bi": [2, 4, 6], "cross": [1, 3, 5]}
    assert best_stages("trans_encoder.py:paper") == best_stages("trans_encoder.py:sequential") == single
    assert best_stages("ckd.py:two-stage") == {}
