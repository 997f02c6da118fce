"""What users get wrong: one line that names the cause, status 2, and nothing changed on the disk."""

import os

import pytest

from jaxdistill import encode, main
from jaxdistill.workdir.folder import claim_workdir

from program import refused, tiny_arguments

NUMBERS = {
    "data.batch_size": (0, -1, 10**20),
    "data.max_length": (-1,),
    "data.pack_groups": (0,),
    "data.pack_shapes": (-1, 5),
    "teacher.max_length": (-1,),
    "student.embedding": (-16,),
    "student.dropout": ("nan", 1),
    "student.drophead": (-0.1, 1),
    "optimizer.learning_rate": (0, -1, "nan", "inf"),
    "optimizer.warmup_fraction": (2, -0.1),
    "optimizer.warmup_steps": (-1,),
    "optimizer.weight_decay": (-1,),
    "optimizer.b1": (1, -0.5),
    "optimizer.b2": (1.5,),
    "optimizer.eps": (-1e-6, 0),
    "optimizer.clip_norm": ("nan", -1),
    "evals.every": (0, -5),
    "evals.patience": (-1,),
    "evals.patience_epochs": (-1, "nan"),
    "run.steps": (-1, 10**20),
    "run.epochs": ("nan", -1, "inf"),
    "run.seed": (-1, 10**20),
    "run.accumulate": (0,),
    "run.model_axis": (0,),
    "run.log_every": (0, -1),
    "run.save_every": (-1,),
    "run.keep": (0, 1),
    "objective.alpha": (1.5, "nan"),
    "objective.student_temperature": (0, "inf"),
    "objective.teacher_temperature": (-1,),
    "objective.queue_size": (0, 10**20),
}
OPTIONS = [
    *((name, value, f"{name}=") for name, values in NUMBERS.items() for value in values),
    ("data.weights", "(nan,)", "data.weights"),
    ("data.weights", "(-1.0,)", "data.weights[0]=-1.0 must be above 0"),
    ("data.columns", "(1,)", "a tuple such as"),
    ("student.dims", "(0,4)", "student.dims[0]=0 must be at least 1"),
    ("optimizer.schedule", "square", "allowed: linear, cosine, constant"),
    ("optimizer.lr", 1, "Did you mean --config.optimizer.learning_rate?"),
    ("optimiser.learning_rate", 1, "Did you mean --config.optimizer.learning_rate?"),
    ("teacher.kind", "later", "available: columns, labels, live, scores, several, stored, vectors"),
    ("run.sharding", "(('kernel',('modle','')),)", "the axes are slice, data, model"),
    ("run.sharding", "(('(',('model','')),)", "is impossible"),
    ("run.sharding", "(('nothing',('model','')),)", "matches no parameter"),
    ("run.sharding", "(('kernel',('model',)),)", "matches no parameter, such as"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model and text."""
    folder = tmp_path_factory.mktemp("faults")
    tiny_arguments(folder)
    return folder


@pytest.mark.parametrize(("name", "value", "says"), OPTIONS, ids=lambda value: str(value)[:40])
def test_an_option_out_of_range_is_refused_by_its_name(folder, tmp_path, capsys, name, value, says):
    given = tiny_arguments(folder, **{name.replace(".", "__"): value})
    assert says in refused(main, [*given, f"--workdir={tmp_path / 'run'}"], capsys)
    assert not list(tmp_path.iterdir())


def test_a_text_that_cannot_be_read_is_refused(folder, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.txt")
    for text, says in ((".", "is a folder"), ("none.txt", "does not exist"), ("pipe.txt", "is a pipe; only regular")):
        given = tiny_arguments(folder, data__text=tmp_path / text)
        assert says in refused(main, [*given, f"--workdir={tmp_path / 'run'}"], capsys)


def test_encode_never_replaces_files_of_the_user(folder, tmp_path, capsys):
    given = [f"--model={folder / 'model'}", f"--text={folder / 'text.txt'}"]
    assert "must end in" in refused(encode, [*given, f"--output={folder / 'text.txt'}"], capsys)


def test_an_export_folder_of_something_else_is_refused(folder, tmp_path, capsys):
    given = [*tiny_arguments(folder), f"--workdir={tmp_path}"]
    claim_workdir(tmp_path, main.parse_flags(given).config, write=True)
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "thesis.txt").write_text("mine")
    assert "export exists and is not an export of this program" in refused(main, given, capsys)
    assert (tmp_path / "export" / "thesis.txt").read_text() == "mine"
