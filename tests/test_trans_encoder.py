"""Trans-Encoder: a cycle, ended in its second stage and resumed; the longest chain of a preset; cross-encoders."""

import dataclasses
import json

import numpy as np
import pytest

import jaxdistill
from jaxdistill import main
from jaxdistill.core import InputError
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.training.build import context_of, make_student
from jaxdistill.training.stages import summarise

import encoder_cases as cases
import program
from tiny_text import made_up, write_pairs

TINY = "configs/trans_encoder.py:tiny"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trans_encoder")
    program.write_teacher(folder)
    sentences = made_up(300, words=5)
    write_pairs(folder / "pairs.tsv", zip(sentences, sentences[1:] + sentences[:1], strict=True))
    return folder


def options(folder, **changed) -> dict[str, object]:
    """One cycle on a random teacher, cross-encoder first; 4 steps each."""
    common = {
        "student.model": f"{folder}/model", "student.layers": "", "evals.best": "", "evals.every": 2, "run.steps": 4,
        "run.log_every": 1, "run.precision": "float32", "data.batch_size": 16, "data.text": f"{folder}/pairs.tsv",
        "evals.pairs": "", "data.cache_folder": f"{folder}/cache",
    }  # fmt: skip
    stages = {f"stage{number}.{name}": value for number in (1, 2) for name, value in common.items()}
    return (
        stages
        | {"stage1.teacher.model": f"{folder}/model"}
        | {f"stage1.{name}": value for name, value in changed.items()}
    )


@pytest.fixture(scope="module")
def finished(folder) -> str:
    return program.training_output([*program.arguments_of(TINY, options(folder)), f"--workdir={folder / 'w'}"])


def test_a_cycle_ends_with_the_best_encoder_of_each_form(folder, finished):
    assert "stage 1 of 2: trans_encoder" in finished and "best bi-encoder: stage 2" in finished
    assert "best cross-encoder: stage 1" in finished
    bi, cross = load_model(str(folder / "w" / "best-bi")), load_model(str(folder / "w" / "best-cross"))
    assert cross.definition.reads_pairs and not bi.definition.reads_pairs
    assert all(name in finished for name in ("before", "after", "gain"))
    results = [json.loads((folder / "w" / f"stage{n}" / "results.json").read_text()) for n in (1, 2)]
    assert all(r["best_metric"] == "agreement/spearman" for r in results)


def test_a_run_interrupted_in_its_second_stage_ends_as_an_undisturbed_one(folder, finished, monkeypatch):
    steps = []

    def breaks_off(step, metrics):
        steps.append(step)
        if step >= 2 and steps != sorted(steps):
            raise RuntimeError("the second stage breaks off")

    program.on_devices(monkeypatch, 1)
    with pytest.raises(RuntimeError, match="breaks off"):
        jaxdistill.distill(config=TINY, options=options(folder), workdir=folder / "k", callbacks=[breaks_off])
    out = program.training_output([*program.arguments_of(TINY, options(folder)), f"--workdir={folder / 'k'}"])
    assert "stage 1 of 2 is finished" in out
    for form in ("bi", "cross"):
        straight, broken = (folder / run / f"best-{form}" / "model.safetensors" for run in ("w", "k"))
        assert straight.read_bytes() == broken.read_bytes()


def stages_of(preset):
    """The stages of a preset, with the options that a run would have."""
    return main.parse_flags([f"--config=configs/trans_encoder.py:{preset}", "--workdir=w"]).stages


def test_every_cycle_of_simcse_first_starts_from_the_same_bi_encoder():
    """The chains of the papers' presets are in tests/paper_tables."""
    chain = [
        (getattr(s.objective, "form", ""), s.student.model.split("/")[-1], s.teacher.model)
        for s in stages_of("simcse-first")
    ]
    cycles = [[("cross", "bert-base-uncased", f"stage{n}"), ("bi", "stage1", f"stage{n + 1}")] for n in (1, 3, 5)]
    assert chain == [("", "bert-base-uncased", ""), *sum(cycles, [])]


def test_stages_without_a_dev_score_end_with_the_last_encoder_of_each_form(tmp_path, capsys):
    """As with `evals.best=last` and no dev set."""
    stages = stages_of("paper")
    scores = {"student before": {}, "student after": {}}
    results = json.dumps({"best_metric": "", "scores": scores, "no_gain": "", "paper": None})
    for number in range(1, len(stages) + 1):
        export = tmp_path / f"stage{number}" / "export"
        export.mkdir(parents=True)
        (export / "made_by").write_text(f"stage {number}")
        (export.parent / "results.json").write_text(results)
    summarise(stages, tmp_path)
    assert "best bi-encoder: stage 6, the last, as none has a dev score" in capsys.readouterr().out
    made_by = [(tmp_path / f"best-{form}" / "made_by").read_text() for form in ("bi", "cross")]
    assert made_by == ["stage 6", "stage 5"]


@pytest.mark.parametrize("count", [1, 3])
def test_a_cross_encoder_of_one_label_labels_and_gives_a_student_its_head(count, tmp_path, caplog):
    torch_model = cases.write_cross_encoder(tmp_path, "bert", num_labels=count)
    caplog.set_level("INFO")
    first = stages_of("tiny")[0]
    teacher = dataclasses.replace(first.teacher, model=str(tmp_path), pooling="")
    config = dataclasses.replace(first, teacher=teacher)
    if count == 1:
        assert config.teacher.labellers(context_of(config, tmp_path / "w"))[0].definition.reads_pairs
    else:
        with pytest.raises(InputError, match="with 3 labels; a cross-encoder has one"):
            config.teacher.labellers(context_of(config, tmp_path / "w"))
    student = dataclasses.replace(first.student, model=str(tmp_path), layers="")
    made_student = make_student(dataclasses.replace(first, student=student), (), tmp_path / "w")
    same = np.array_equal(made_student.params["dense/0/kernel"].T, torch_model.classifier.weight.detach().numpy())
    assert same == (count == 1)
    assert ("its own, trained head for pairs" if same else "a new head for pairs") in caplog.text
