"""Trans-Encoder: a cycle by the real program, killed and resumed; who starts from whom in every preset; refusals."""

import dataclasses
import gzip
import json
import signal

import numpy as np
import pytest

from jaxdistill import encode, evaluate, main
from jaxdistill.checkpoints.model import load_model
from jaxdistill.core import InputError
from jaxdistill.data.sources import source_files
from jaxdistill.data.text import read
from jaxdistill.data.tokens import build_store
from jaxdistill.evals.similarity import spearman
from jaxdistill.inference import Embedder
from jaxdistill.training.models import load_labellers, make_student
from jaxdistill.training.optim import make_schedule

import encoder_cases as cases
import program
from tiny_models import tiny_model
from tiny_text import COLUMNS, made_up, write_pairs


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


def test_a_cross_encoder_is_evaluated_on_pairs_and_has_no_vectors(folder, finished, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    sentences = made_up(12, words=4)
    rows = [f"{score}\t{sentences[score]}\t{sentences[score + 6]}" for score in range(6)]
    (tmp_path / "graded.tsv").write_text("\n".join(["score\tsentence1\tsentence2", *rows]) + "\n")
    cross, out = folder / "w" / "best-cross", tmp_path / "results.json"
    evaluate.main([f"--model={cross}", "--tasks=pairs", f"--pairs={tmp_path / 'graded.tsv'}", f"--out={out}"])
    (found,) = json.loads(out.read_text())["models"]
    scores = Embedder(load_model(str(cross))).score(sentences[:6], sentences[6:])
    assert found["scores"]["pairs"] == pytest.approx(spearman(np.arange(6.0), scores, what="pairs"))
    assert "is a cross-encoder: it has no vectors" in program.refused(
        encode,
        [f"--model={cross}", f"--text={tmp_path / 'graded.tsv'}", "--output=v.npy", "--column=sentence1"],
        capsys,
    )


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


@pytest.mark.parametrize("preset", ["paper", "mutual", "bi-to-bi", "minilm:2", "tiny"])
def test_other_columns_reach_every_stage(preset):
    own = (("text", "a"), ("second", "b"))
    given = [f"--config=configs/trans_encoder.py:{preset}", "--workdir=w", f"--config.columns={own}"]
    assert {stage.data.columns for stage in main.parse_flags(given).stages} == {own}
    assert all("question2" in dict(stage.data.columns)["second"] for stage in stages_of(preset))


def test_the_stand_in_for_qqp_has_its_ratio_and_the_papers_steps():
    stages = stages_of("qqp")
    assert {stage.data.weights for stage in stages} == {(37.0, 63.0)}
    assert [stage.run.steps for stage in stages[:2]] == [3 * 1313, 15 * 165]


def test_the_number_of_cycles_can_be_chosen(capsys):
    assert len(stages_of("sts:1")) == 2 and len(stages_of("mutual:4")) == 16
    assert chain("sts:2") == chain("sts")[:4]
    assert [stage.student.model for stage in stages_of("mutual:4")[:2]] == [
        stage.student.model for stage in stages_of("mutual:base")[:2]
    ]
    for preset, words in (("sts:0", "sts takes 1, 2, 3"), ("paper:9", "paper takes bert-base, roberta-base")):
        assert words in program.refused(main, [f"--config=configs/trans_encoder.py:{preset}", "--workdir=w"], capsys)


@pytest.mark.parametrize(
    "preset, pairs, epochs, orders",
    [
        ("code", 37_081, (1, 10), 2),
        ("paper:roberta-large", 37_081, (1, 10), 2),
        ("paper-mrpc", 5_801, (3, 15), 2),
        ("paper-qqp", 21_000, (3, 15), 2),
        ("paper-qnli", 15_463, (3, 15), 1),
    ],
)
def test_steps_and_sequences_are_those_of_the_code_s_formula(preset, pairs, epochs, orders):
    """The code: orders * pairs rows, 32 of them a step; the last, incomplete batch of an epoch is a step there alone."""
    cross, bi = stages_of(preset)[:2]
    for stage, count, rows, batch in (
        (cross, epochs[0], orders * pairs, 32),
        (bi, epochs[1], pairs, 64 if "large" in preset else 128),
    ):
        rows_a_pair = orders if stage is cross else 1
        assert stage.data.batch_size * rows_a_pair == batch
        made = stage.run.steps or round(stage.run.epochs * (pairs // stage.data.batch_size))
        assert made == count * (-(-rows // batch) if stage.run.steps else rows // batch)
    assert make_schedule(cross.optimizer, 2317)(231) < 2e-5 == make_schedule(cross.optimizer, 2317)(232)
    assert make_schedule(bi.optimizer, 2890)(0) == pytest.approx(5e-5)


def test_labellers_read_as_much_as_they_do_in_training():
    for preset in ("paper", "sts", "mutual", "sequential"):
        lengths = {stage.objective.form: stage.data.max_length for stage in stages_of(preset)}
        assert lengths == {"bi": 32, "cross": 64}
        for stage in stages_of(preset):
            other = {"bi": "cross", "cross": "bi"}[stage.objective.form]
            assert stage.teacher.max_length == lengths[other]
    assert {stage.teacher.max_length for stage in stages_of("bi-to-bi")} == {32}


def test_pairs_without_scores_are_read_where_the_data_folder_has_them(tmp_path, monkeypatch):
    folder = tmp_path / "sts"
    folder.mkdir()
    for name, header, row in (
        ("sts15.test", "subset\tscore\tsentence1\tsentence2", "x\t5\ta\tb"),
        ("sts15.unscored", "sentence1\tsentence2", "c\td"),
        ("stsb.dev", "subset\tscore\tsentence1\tsentence2", "x\t5\te\tf"),
        ("sick.trial", "subset\tscore\tsentence1\tsentence2", "x\t5\tg\th"),
    ):
        (folder / f"{name}.tsv.gz").write_bytes(gzip.compress(f"{header}\n{row}\n".encode()))
    monkeypatch.setenv("JAXDISTILL_DATA", str(tmp_path))
    data = stages_of("paper")[0].data
    found = list(read(data.text.split(","), dict(data.columns)))
    assert found == [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")]


def test_a_checkpoint_that_labels_is_pooled_as_said_and_an_export_as_it_says():
    """A cross-encoder that is given a pooling would be read as a sentence encoder."""
    assert [stage.teacher.pooling for stage in stages_of("mutual")] == ["cls"] * 2 + [""] * 10
    assert {stage.teacher.pooling for stage in stages_of("simcse-first")} == {""}


def test_every_stage_of_a_task_has_its_text_and_dev_metric():
    for preset, metric, count in (
        ("mrpc", "mrpc-dev/auc", 10),
        ("qnli", "qnli-dev/auc", 10),
        ("sick", "pairs/spearman", 6),
    ):
        stages = stages_of(preset)
        assert len(stages) == count and {stage.evals.best for stage in stages} == {metric}
        assert len({(stage.data.text, stage.evals.pairs) for stage in stages}) == 1
    assert not any(stage.objective.both_orders for stage in stages_of("qnli"))


def test_the_clean_mode_trains_on_nli_without_test_pairs_in_all_stages(data_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("JAXDISTILL_DATA", str(data_folder))
    (options,) = {stage.data for stage in stages_of("clean") if stage.objective.form == "cross"}
    found = {path.name for spec in options.exclude.split(",") for path in source_files(spec)}
    assert {"stsb.dev.tsv.gz", "sts12.test.tsv.gz", "sick.test.tsv.gz", "mrpc.test.tsv.gz", "snli.dev.tsv.gz"} < found
    assert not found & {path.name for path in source_files(options.text)}
    test = list(read([str(data_folder / "sts" / "sick.test.tsv.gz")], COLUMNS))[:3]
    own = tmp_path / "own.tsv"
    own.write_text("\n".join(["premise\thypothesis", "the rain\tthe cat", *(f"{b}\t{a}" for a, b in test)]) + "\n")
    store = build_store(
        [str(own)], tokenizer=tiny_model(tmp_path / "model").tokenizer, max_length=16, cache_folder=tmp_path / "cache",
        columns=dict(options.columns), exclude=options.exclude.split(","),
    )  # fmt: skip
    assert list(store.texts("text")) == ["the rain"]


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"objective.form": "bi"}, "the student is a cross-encoder, which reads pairs"),
        ({"student.dims": "(8,)"}, "stage1.student.dims is an option of the student cut, fresh, static; choose"),
        ({"data.columns": "(('text', 'sentence1'),)"}, "the text has no column 'second'"),
        ({"teacher.model": "stage3"}, "model 'stage3' refers to the export of a stage before"),
        ({"student.prompt": "query: "}, "student.prompt is an option of the student cut, fresh; choose"),
        ({"student.pooling": "mean"}, "a cross-encoder of the family bert pools by pooler"),
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
        (3, "mean", "is a classifier with 3 labels, which does not score how similar"),
        (3, "", "is a classifier with 3 labels, which does not score how similar"),
    ],
)
def test_a_cross_encoder_labels_as_one_or_not_at_all(labels_there, pooling, words, tmp_path):
    cases.write_cross_encoder(tmp_path, "bert", num_labels=labels_there)
    first = stages_of("tiny")[0]
    teacher = dataclasses.replace(first.teacher, model=str(tmp_path), pooling=pooling)
    config = dataclasses.replace(first, teacher=teacher)
    if words:
        with pytest.raises(InputError, match=words):
            load_labellers(config, tmp_path / "w")
    else:
        assert load_labellers(config, tmp_path / "w")[0].definition.reads_pairs


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
