"""A student leaves a run whole, checked, and without harm to what was there."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors import SafetensorError

from jaxdistill import export as export_command
from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.config import parse_config
from jaxdistill.core import InputError
from jaxdistill.export import checkpoint_facts
from jaxdistill.files.folders import MARK
from jaxdistill.inference import Embedder
from jaxdistill.reporting.model_card import Facts, read_facts, write_facts
from jaxdistill.students.cut import Cut
from jaxdistill.training import export as export_module
from jaxdistill.training.export import export, largest_difference, weights_bytes
from jaxdistill.training.setup.lengths import training_length
from jaxdistill.training.setup.student import load_teachers, make_student
from jaxdistill.workdir.bucket import Workdir

from tiny_models import tiny_model

SENTENCES = ["the cat sleeps", "rain", "a dog, and another dog?", "the rain in may 1999 " * 10]


@pytest.fixture
def model(tmp_path):
    return tiny_model(tmp_path / "tokenizer", head=8)


@pytest.fixture
def unchecked(monkeypatch):
    """Leaves out the comparison, which compiles two models."""
    monkeypatch.setattr(export_module, "largest_difference", lambda *_: 0.0)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_difference_between_models_is_that_of_unit_vectors(model):
    louder = model.params | {f"dense/0/{part}": 0.5 * model.params[f"dense/0/{part}"] for part in ("kernel", "bias")}
    linear = dataclasses.replace(model.definition.dense[0], activation="identity")
    definition = dataclasses.replace(model.definition, dense=(linear,))
    before = dataclasses.replace(model, definition=definition)
    assert largest_difference(before, before.with_params(louder), SENTENCES) < 1e-6
    assert largest_difference(before, model, SENTENCES) > 1e-3


def test_the_exported_folder_gives_the_same_vectors(model, tmp_path):
    folder = export(model, tmp_path / "runs" / "export")
    np.testing.assert_allclose(
        Embedder(load_model(str(folder))).encode(SENTENCES), Embedder(model).encode(SENTENCES), rtol=0, atol=1e-5
    )
    assert json.loads((folder / MARK).read_text())["model_digest"] == model.digest()
    assert weights_bytes(folder) > 4 * sum(v.size for v in model.params.values())
    assert sorted(path.name for path in folder.parent.iterdir()) == ["export"]


def test_sentence_transformers_reads_the_export(model, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = export(model, tmp_path / "export")
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(theirs, Embedder(model).encode(SENTENCES), rtol=0, atol=1e-5)


def exported_length(student, folder):
    """The length of an export as sentence-transformers and this project read it."""
    export(student, folder)
    stated = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    assert len(load_model(str(folder)).encodings(["cat " * 99])[0].ids) == stated == student.max_length
    return stated


def stage_student(folder, source, *, trained_on, teacher_reads=0, asked=0):
    """(teacher, untrained student) of a stage."""
    config = parse_config(
        dict(
            data=dict(max_length=trained_on),
            teacher=dict(model=str(folder / "teacher"), max_length=teacher_reads),
            student=dict(model=source, pooling="", head="none", max_length=asked),
            objective=dict(kind="embedding"),
        )
    )
    teachers = load_teachers(config, folder)
    student = make_student(config, teachers, folder)
    return teachers[0], config.student.with_length(student, training_length(config, student, teachers, folder))


@pytest.mark.parametrize(
    ("trained_on", "asked", "length"), [(8, 0, 8), (8, 24, 24), (24, 0, 24), (24, 8, 8), (128, 0, 32), (8, 128, 32)]
)
def test_an_export_reads_what_its_student_was_trained_on_unless_asked_otherwise(
    tmp_path, unchecked, trained_on, asked, length
):
    """The teacher reads 16 tokens and has positions for 32."""
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "teacher")
    teacher, student = stage_student(tmp_path, "teacher", trained_on=trained_on, asked=asked)
    assert exported_length(student, tmp_path / "export") == length
    assert teacher.max_length == len(teacher.encodings(["cat " * 99])[0].ids) == 16


def test_each_stage_exports_its_own_length(tmp_path, unchecked):
    save(tiny_model(tmp_path / "tokenizer", max_length=32), tmp_path / "teacher")
    _, first = stage_student(tmp_path, "teacher", trained_on=12, teacher_reads=12)
    assert exported_length(first, tmp_path / "first") == 12
    _, second = stage_student(tmp_path, str(tmp_path / "first"), trained_on=24, teacher_reads=24)
    assert exported_length(second, tmp_path / "second") == 24
    _, third = stage_student(tmp_path, str(tmp_path / "second"), trained_on=8)
    assert exported_length(third, tmp_path / "third") == 8


def test_rows_of_the_position_table_that_no_token_has_are_not_read(model):
    """RoBERTa's table has 32 rows, of which the first token has the third."""
    architecture = dataclasses.replace(model.definition.architecture, family="roberta", position_offset=2, pad_id=1)
    roberta = dataclasses.replace(model, definition=dataclasses.replace(model.definition, architecture=architecture))
    assert Cut().with_length(roberta, 128).max_length == 30


def test_an_earlier_export_is_replaced(model, tmp_path, unchecked):
    first = export(model, tmp_path / "export", facts=Facts(name="first"))
    other = tiny_model(tmp_path / "tokenizer", head=8, seed=1)
    assert export(other, tmp_path / "export", facts=Facts(name="second")) == first
    assert json.loads((first / MARK).read_text())["model_digest"] == other.digest() != model.digest()
    np.testing.assert_array_equal(load_model(str(first)).params["dense/0/kernel"], other.params["dense/0/kernel"])
    assert "# second" in (first / "README.md").read_text()


def test_servers_find_the_nested_widths_in_the_configuration(model, tmp_path):
    folder = export(model, tmp_path / "export", facts=Facts(name="nested", dims="4, 6"))
    config = json.loads((folder / "config.json").read_text())
    assert config["matryoshka_dimensions"] == [4, 6, model.definition.embedding_width]
    assert "matryoshka_dimensions" not in json.loads(
        (export(model, tmp_path / "other", facts=Facts(name="plain")) / "config.json").read_text()
    )


def test_what_the_user_put_into_an_export_stays_when_it_is_replaced(model, tmp_path, unchecked, caplog):
    folder = export(model, tmp_path / "export", facts=Facts(name="first"))
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("kept")
    (folder / "link").symlink_to("notes")
    (folder / "README.md").write_text("first, with my remarks")
    export(tiny_model(tmp_path / "tokenizer", head=8, seed=1), folder, facts=Facts(name="second"))
    assert (folder / "notes" / "mine.txt").read_text() == "kept" and (folder / "link").is_symlink()
    assert "# second" in (folder / "README.md").read_text()
    assert (folder / "README.md.edited").read_text() == "first, with my remarks"
    assert "README.md was edited after the export" in caplog.text
    mark = json.loads((folder / MARK).read_text())["files"]
    assert "README.md" in mark and "README.md.edited" not in mark and "notes/mine.txt" not in mark


def test_the_same_export_again_touches_nothing(model, tmp_path, unchecked):
    folder = export(model, tmp_path / "export")
    (folder / "mine.txt").write_text("kept")
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}
    export(model, folder)
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]} == before
    (folder / "model.safetensors").write_bytes(b"damaged")
    export(model, folder)
    load_model(str(folder))


def test_hidden_folders_of_the_user_beside_an_export_stay(model, tmp_path, unchecked):
    for name in (".export.unfinished", ".export.previous", ".export.mine.jaxdistill-working"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("kept")
    export(model, tmp_path / "export")
    export(tiny_model(tmp_path / "tokenizer", head=8, seed=1), tmp_path / "export")
    kept = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob(".export*/*"))
    assert kept == [
        ".export.mine.jaxdistill-working/mine.txt", ".export.previous/mine.txt", ".export.unfinished/mine.txt",
    ]  # fmt: skip


def test_an_export_that_was_killed_while_it_was_replaced_is_found_again(model, tmp_path, unchecked):
    folder = export(model, tmp_path / "export")
    (folder / "mine.txt").write_text("kept")
    working = tmp_path / ".export.k1ll3d.jaxdistill-working"
    working.mkdir()
    (working / "jaxdistill.lock").touch()
    folder.rename(working / "old")
    export(tiny_model(tmp_path / "tokenizer", head=8, seed=1), folder)
    assert (folder / "mine.txt").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "tokenizer"]


def test_a_folder_that_is_no_export_is_left_alone(model, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("kept")
    with pytest.raises(InputError, match="is not an export.*not overwritten"):
        export(model, tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "kept"


def test_an_export_that_does_not_reload_the_same_is_not_put_in_place(model, tmp_path, monkeypatch):
    path = "dense/0/bias"
    spoiled = dataclasses.replace(model, params=model.params | {path: model.params[path] + 0.01})
    with monkeypatch.context() as patch:
        patch.setattr(export_module, "largest_difference", lambda *_: 0.0)
        before = contents(export(model, tmp_path / "export"))
    monkeypatch.setattr(export_module, "load_model", lambda folder: spoiled)
    with pytest.raises(InputError, match="was not written.*largest difference"):
        export(model, tmp_path / "export")
    assert contents(tmp_path / "export") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "tokenizer"]


def test_a_full_disk_is_one_clear_line_and_loses_nothing(model, tmp_path, monkeypatch, unchecked):
    before = contents(export(model, tmp_path / "export"))

    def full(tensors, path, **_):
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(InputError, match=f"^{tmp_path / 'export'} could not be written: no space left on the disk"):
        export(model, tmp_path / "export")
    assert contents(tmp_path / "export") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "tokenizer"]


def test_a_pooling_that_sentence_transformers_lacks_is_exported_for_this_project(tmp_path, unchecked, caplog):
    folder = export(tiny_model(tmp_path / "tokenizer", pooling="mean:last2:max"), tmp_path / "export")
    assert "no module for pooling mean:last2:max" in caplog.text
    card = (folder / "README.md").read_text()
    assert "from sentence_transformers" not in card and "library_name" not in card and "jaxdistill.load" in card


def test_the_card_tells_how_the_model_was_made(model, tmp_path, unchecked):
    facts = Facts(
        name="small",
        teacher="all-MiniLM-L6-v2",
        objective="congen(alpha=0.5)",
        data_digest="abc123",
        seed=7,
        steps=500,
        chosen_by="agreement/spearman",
        scores={"agreement/spearman": 0.96344},
        teacher_scores={"agreement/spearman": 1.0},
        dims="64, 128",
    )
    text = (export(model, tmp_path / "small", facts=facts) / "README.md").read_text()
    header = text.split("---")[1]
    assert "library_name: sentence-transformers" in header and "pipeline_tag: sentence-similarity" in header
    for part in (
        "all-MiniLM-L6-v2",
        "congen(alpha=0.5)",
        "abc123",
        "| Checkpoint chosen by | agreement/spearman |",
        "| Nested widths | the first 64, 128 numbers",
        "| agreement/spearman | 96.34 | 100.00 |",
    ):
        assert part in text
    assert 'SentenceTransformer("small")' in text


@pytest.mark.parametrize("steps", ["5,", "five", "5 6"])
def test_steps_that_are_none_are_refused_with_examples(tmp_path, steps):
    with pytest.raises(InputError, match=f"step='{steps}' must be a whole number or several, such as 500"):
        export_command.main([f"--workdir={tmp_path}", f"--step={steps}", f"--out={tmp_path / 'out'}"])


def test_facts_of_a_run_are_read_back_and_scores_belong_to_their_step(tmp_path):
    scores = {"pairs/spearman": 0.5}
    facts = Facts(name="l3", teacher="T", steps=500, scores=scores, chosen_by="pairs/spearman")
    write_facts(tmp_path, facts)
    assert read_facts(tmp_path) == facts
    assert checkpoint_facts(tmp_path, [500], "out") == dataclasses.replace(facts, name="out")
    other = dataclasses.replace(facts, name="out", steps=400, scores={}, chosen_by="")
    assert checkpoint_facts(tmp_path, [400], "out") == other
    assert checkpoint_facts(tmp_path, [400, 500], "out").scores == {}
    write_facts(tmp_path, dataclasses.replace(facts, averaged="400, 500"))
    assert checkpoint_facts(tmp_path, [500], "out").scores == {}
    assert checkpoint_facts(tmp_path, [400, 500], "out").scores == scores
    assert checkpoint_facts(tmp_path / "absent", [400], "out") == Facts(name="out", steps=400)


def test_the_command_exports_a_kept_checkpoint(model, tmp_path, monkeypatch, capsys, unchecked):
    asked = []
    monkeypatch.setattr(
        export_command, "restored_student", lambda workdir, steps: asked.append((workdir, steps)) or model
    )
    write_facts(tmp_path, Facts(name="run", teacher="the teacher"))
    export_command.main([f"--workdir={tmp_path}", "--step=5", f"--out={tmp_path / 'out'}"])
    assert asked == [(Workdir(tmp_path), [5])]
    assert "reloaded and compared" in capsys.readouterr().out
    assert "the teacher" in (tmp_path / "out" / "README.md").read_text()


def test_the_command_needs_a_workdir_that_exists(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match=f"{tmp_path}/absent is not the workdir of a training"):
        export_command.main(["--workdir=~/absent", "--step=5", f"--out={tmp_path / 'out'}"])
