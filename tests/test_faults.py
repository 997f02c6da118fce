"""What users get wrong: one line that names the cause, status 2, and nothing changed on the disk."""

import pytest

from jaxdistill import main
from jaxdistill.workdir.folder import claim_workdir

from program import refused, tiny_arguments

OPTIONS = [
    ("data.batch_size", 0, "data.batch_size="),
    ("data.batch_size", 10**20, "data.batch_size="),
    ("student.dropout", "nan", "student.dropout="),
    ("optimizer.learning_rate", "inf", "optimizer.learning_rate="),
    ("optimizer.b1", 1, "optimizer.b1="),
    ("evals.patience", -1, "evals.patience="),
    ("run.keep", 1, "run.keep="),
    ("objective.alpha", 1.5, "objective.alpha="),
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


def test_an_export_folder_of_something_else_is_refused(folder, tmp_path, capsys):
    given = [*tiny_arguments(folder), f"--workdir={tmp_path}"]
    claim_workdir(tmp_path, main.parse_flags(given).config, write=True)
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "thesis.txt").write_text("mine")
    assert "export exists and is not an export of this program" in refused(main, given, capsys)
    assert (tmp_path / "export" / "thesis.txt").read_text() == "mine"
