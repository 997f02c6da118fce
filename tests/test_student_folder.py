"""`workdir/student`: the untrained student, from which resumed runs, exports and means of checkpoints start."""

import json
import shutil

import numpy as np
import pytest

from jaxdistill import export, main
from jaxdistill.core.files import UNFINISHED_SUFFIX
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.training.build import context_of, make_student, read_student, write_student
from jaxdistill.training.workdir.folder import STUDENT

from program import refused, run, tiny_arguments, training_output

pytestmark = pytest.mark.usefixtures("one_device")


KILLED = """
import os, signal
from jaxdistill.training import build
save = build.save
def killed(*arguments, **options):
    save(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
build.save = killed
"""


@pytest.mark.parametrize(
    "options",
    [
        {"student__head": "linear"},
        {"student__layers": "", "student__pooling": "mean:second_to_last", "teacher__normalize": False},
        {"student__embedding": 8, "student__head": "none"},
        {"student__kind": "fresh", "student__layers": None, "student__vocabulary": 300},
        {"student__trim": "text.txt"},
        {"student__kind": "static", "student__layers": None, "student__width": 8, "student__head": "linear"},
        {"student__kind": "cross_encoder", "student__pooling": ""},
        {"teacher__prompt": "query: ", "student__max_length": 8},
        {"student__prompt": "query: ", "data__roles": "query", "student__query_prompt": "q: "},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_a_student_is_read_as_it_was_made(options, tmp_path, monkeypatch):
    workdir = tmp_path / "w"
    monkeypatch.chdir(tmp_path)
    config = main.parse_flags([*tiny_arguments(tmp_path, **options), f"--workdir={workdir}"]).stages[0]
    teachers = config.teacher.load(context_of(config, workdir))
    student = config.student.with_length(make_student(config, teachers, workdir), 24)
    assert read_student(config, workdir) is None
    write_student(student, workdir)
    shutil.rmtree(tmp_path / "model")
    read = read_student(config, workdir)
    assert read is not None and read.digest() == student.digest()
    assert (read.params.keys(), read.unread_pooler.keys()) == (student.params.keys(), student.unread_pooler.keys())
    assert config.student.in_training(read).definition == config.student.in_training(student).definition
    facts = [(model.source, model.base_models, model.languages, model.checkpoint_prompt) for model in (read, student)]
    assert facts[0] == facts[1] and read.role_prompts == student.role_prompts


def arguments(folder):
    return tiny_arguments(folder, student__dropout=0.1, run__steps=4, evals__every=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with model, text and cache, and the workdir `undisturbed` of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("student")
    training_output([*arguments(folder), f"--workdir={folder / 'undisturbed'}"])
    return folder


def test_a_run_killed_while_it_writes_its_student_ends_with_the_same_bits(folder):
    flags, workdir = arguments(folder), folder / "killed"
    run("main", [*flags, f"--workdir={workdir}"], before=KILLED, status=-9)
    assert not (workdir / STUDENT).exists() and not (workdir / "checkpoints").exists()
    training_output([*flags, f"--workdir={workdir}"])
    assert not list(workdir.glob(f".{STUDENT}*{UNFINISHED_SUFFIX}"))
    weights = [(folder / name / "export" / "model.safetensors").read_bytes() for name in ("undisturbed", "killed")]
    assert weights[0] == weights[1]


def test_a_checkpoint_is_exported_without_teacher_text_and_cache(folder, tmp_path, capsys):
    workdir = shutil.copytree(folder / "undisturbed", tmp_path / "w")
    best = json.loads((workdir / "results.json").read_text())["best_step"]
    hidden = folder.rename(folder.with_name("hidden"))
    try:
        export.main([f"--workdir={workdir}", f"--step={best}", f"--out={tmp_path / 'out'}"])
    finally:
        hidden.rename(folder)
    for name in ("model.safetensors", "tokenizer.json", "modules.json", "config_sentence_transformers.json"):
        assert (tmp_path / "out" / name).read_bytes() == (workdir / "export" / name).read_bytes()
    tokenizer = workdir / STUDENT / "tokenizer.json"  # a resumed run would tokenise differently
    tokenizer.write_text(tokenizer.read_text().replace('"cat"', '"cot"'))
    assert "tokenizer.json is not as the run has written it" in refused(
        main, [*arguments(folder), f"--workdir={workdir}"], capsys
    )


def test_no_step_exports_the_student_as_it_is_made(tmp_path, capsys):
    """Without text: surgery needs none here."""
    arguments = tiny_arguments(tmp_path, run__steps=0, data__text="absent.txt", student__layers="1")
    main.main([*arguments, f"--workdir={tmp_path / 'w'}"])
    exported, teacher = load_model(str(tmp_path / "w" / "export")), load_model(str(tmp_path / "model"))
    for path, array in exported.params.items():
        np.testing.assert_array_equal(array, teacher.params[path.replace("layers/0", "layers/1")])
    assert exported.definition.architecture.layers == 1 and "export (reloaded and compared)" in capsys.readouterr().out
    main.main([*arguments, f"--workdir={tmp_path / 'w'}"])
    assert f"{tmp_path / 'w'} is finished: {tmp_path / 'w' / 'export'}\n" in capsys.readouterr().out
    (tmp_path / "w" / "checkpoints").mkdir()
    assert "has checkpoints; give another" in refused(main, [*arguments, f"--workdir={tmp_path / 'w'}"], capsys)
