"""Trans-Encoder: a cycle by the real program, killed and resumed; who starts from whom in every preset; refusals."""

import dataclasses
import json
import signal

import numpy as np
import pytest

from jaxdistill import main
from jaxdistill.core import InputError
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.training.models import context_of, make_student

import encoder_cases as cases
import program
from tiny_text import made_up, write_pairs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trans_encoder")
    program.write_teacher(folder)
    sentences = made_up(300, words=5)
    write_pairs(folder / "pairs.tsv", zip(sentences, sentences[1:] + sentences[:1], strict=True))
    return folder


def arguments(folder, **changed) -> list[str]:
    """One cycle on a random teacher, cross-encoder first; 4 steps each."""
    both = {
        "student.model": folder / "model", "student.layers": "", "evals.best": "", "evals.every": 2, "run.steps": 4,
        "run.log_every": 1, "run.precision": "float32", "data.batch_size": 16, "data.text": folder / "pairs.tsv",
        "evals.pairs": "", "data.cache_folder": folder / "cache",
    }  # fmt: skip
    given = {f"stage{number}.{name}": value for number in (1, 2) for name, value in both.items()}
    given |= {"stage1.teacher.model": folder / "model"}
    given |= {f"stage1.{name}": value for name, value in changed.items()}
    return ["--config=configs/trans_encoder.py:tiny", *(f"--config.{name}={value}" for name, value in given.items())]


@pytest.fixture(scope="module")
def finished(folder) -> str:
    return program.run("main", [*arguments(folder), f"--workdir={folder / 'w'}"])[0]


def test_a_cycle_ends_with_the_best_encoder_of_each_form(folder, finished):
    assert "stage 1 of 2: trans_encoder" in finished and "best bi-encoder: stage 2" in finished
    assert "best cross-encoder: stage 1" in finished
    bi, cross = load_model(str(folder / "w" / "best-bi")), load_model(str(folder / "w" / "best-cross"))
    assert cross.definition.reads_pairs and not bi.definition.reads_pairs
    assert all(name in finished for name in ("before", "after", "gain"))
    assert finished.count("labels: 300 pairs by") == 2
    results = [json.loads((folder / "w" / f"stage{n}" / "results.json").read_text()) for n in (1, 2)]
    assert all(r["best_metric"] == "agreement/spearman" for r in results)
    text = [r["config"]["data.text"] for r in results]
    assert text[0] == text[1] == str(folder / "pairs.tsv")


def test_a_run_killed_in_its_second_stage_ends_as_an_undisturbed_one(folder, finished):
    process = program.start("main", [*arguments(folder), f"--workdir={folder / 'k'}"])
    for said in process.stdout:
        if "stage 2 of 2" in said:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    out, _ = program.run("main", [*arguments(folder), f"--workdir={folder / 'k'}"])
    assert "stage 1 of 2 is finished" in out
    for form in ("bi", "cross"):
        straight, killed = (folder / run / f"best-{form}" / "model.safetensors" for run in ("w", "k"))
        assert straight.read_bytes() == killed.read_bytes()


def stages_of(preset):
    """The stages of a preset, as they would run."""
    return main.parse_flags([f"--config=configs/trans_encoder.py:{preset}", "--workdir=w"]).stages


def chain(preset):
    """Form, start and labellers of each stage, without the owners of the checkpoints."""
    plain = [(getattr(s.objective, "form", ""), s.student.model, s.teacher.model) for s in stages_of(preset)]
    return [tuple(",".join(n.split("/")[-1] for n in names.split(",")) for names in row) for row in plain]


BERT, ROBERTA = "unsup-simcse-bert-base-uncased", "unsup-simcse-roberta-base"


@pytest.mark.parametrize(
    "preset, expected",
    [
        ("bi-to-bi", [("bi", BERT, BERT), ("bi", BERT, "stage1"), ("bi", BERT, "stage2")]),
        (
            "alternating",
            [
                ("cross", "bert-base-uncased", BERT), ("bi", BERT, "stage1"),
                ("cross", "roberta-base", "stage2"), ("bi", ROBERTA, "stage3"),
            ],
        ),
        (
            "simcse-first",
            [
                ("", "bert-base-uncased", ""),
                ("cross", "bert-base-uncased", "stage1"), ("bi", "stage1", "stage2"),
                ("cross", "bert-base-uncased", "stage3"), ("bi", "stage1", "stage4"),
                ("cross", "bert-base-uncased", "stage5"), ("bi", "stage1", "stage6"),
            ],
        ),
        (
            "mutual",
            [
                ("cross", "bert-base-uncased", f"{BERT},{ROBERTA}"), ("cross", "roberta-base", f"{BERT},{ROBERTA}"),
                ("bi", BERT, "stage1,stage2"), ("bi", ROBERTA, "stage1,stage2"),
                ("cross", "bert-base-uncased", "stage3,stage4"), ("cross", "roberta-base", "stage3,stage4"),
                ("bi", BERT, "stage5,stage6"), ("bi", ROBERTA, "stage5,stage6"),
                ("cross", "bert-base-uncased", "stage7,stage8"), ("cross", "roberta-base", "stage7,stage8"),
                ("bi", BERT, "stage9,stage10"), ("bi", ROBERTA, "stage9,stage10"),
            ],
        ),
        (
            "sequential",
            [
                ("cross", BERT, BERT), ("bi", "stage1", "stage1"), ("cross", "stage2", "stage2"),
                ("bi", "stage3", "stage3"), ("cross", "stage4", "stage4"), ("bi", "stage5", "stage5"),
            ],
        ),
    ],
)  # fmt: skip
def test_who_starts_from_whom_and_who_labels_for_whom(preset, expected):
    assert chain(preset) == expected


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"objective.form": "bi"}, "the student is a cross-encoder, which reads pairs"),
        ({"student.dims": "(8,)"}, "stage1.student.dims is an option of the student cut, fresh, static; choose"),
        ({"data.columns": "(('text', 'sentence1'),)"}, "the text has no column 'second'"),
        ({"teacher.model": "stage3"}, "model 'stage3' refers to the export of a stage before"),
        ({"student.prompt": "query: "}, "student.prompt is an option of the student cut, fresh; choose"),
        ({"data.exclude": "absent.tsv"}, "data.exclude: absent.tsv does not exist"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused(folder, finished, changed, words, capsys, tmp_path):
    given = [*arguments(folder, **changed), f"--workdir={tmp_path / 'w'}"]
    assert words in program.refused(main, given, capsys)


@pytest.mark.parametrize(
    ("labels_there", "pooling", "words"),
    [
        (1, "mean", "teacher.pooling='mean' would make a sentence encoder of .*; leave it empty"),
        (1, "", ""),
        (3, "", "is a classifier with 3 labels; a cross-encoder has one"),
    ],
)
def test_a_cross_encoder_labels_as_one_or_not_at_all(labels_there, pooling, words, tmp_path):
    cases.write_cross_encoder(tmp_path, "bert", num_labels=labels_there)
    first = stages_of("tiny")[0]
    teacher = dataclasses.replace(first.teacher, model=str(tmp_path), pooling=pooling)
    config = dataclasses.replace(first, teacher=teacher)
    if words:
        with pytest.raises(InputError, match=words):
            config.teacher.labellers(context_of(config, tmp_path / "w"))
    else:
        assert config.teacher.labellers(context_of(config, tmp_path / "w"))[0].definition.reads_pairs


@pytest.mark.parametrize("labels_there", [1, 3])
def test_a_student_keeps_the_trained_head_of_a_cross_encoder_and_of_no_other(labels_there, tmp_path, caplog):
    theirs = cases.write_cross_encoder(tmp_path, "bert", num_labels=labels_there)
    caplog.set_level("INFO")
    first = stages_of("tiny")[0]
    student = dataclasses.replace(first.student, model=str(tmp_path), layers="")
    assert (student.kind, student.pooling) == ("cross_encoder", "pooler")
    made = make_student(dataclasses.replace(first, student=student), (), tmp_path / "w")
    kept = np.array_equal(made.params["dense/0/kernel"].T, theirs.classifier.weight.detach().numpy())
    assert kept == (labels_there == 1)
    assert ("its own, trained head for pairs" if kept else "a new head for pairs") in caplog.text
