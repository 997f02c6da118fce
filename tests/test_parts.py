"""Parts from outside the package: an objective, a view, a reader and an encoder family of a user's own."""

import pathlib

import pytest

import jaxdistill
from jaxdistill import config, objectives, parts
from jaxdistill.core import InputError
from jaxdistill.training.workdir import claim_workdir

from program import write_teacher
from tiny_text import made_up

OBJECTIVE = """
import dataclasses
import jax.numpy as jnp

@dataclasses.dataclass(frozen=True, kw_only=True)
class Halfway:
    "Half the squared distance between student and teacher."
    weight: float = 0.5
    "Of the distance."
    couples_examples = False
    reads = ()
    unread = {}
    reserve_rows = 0
    student_views = ("shout",)
    teacher_views = ("text",)

    def init(self, key, sizes, seeds):
        return {}, ()

    def __call__(self, params, state, student, teacher, *, mesh):
        difference = student.sentences[:, 0] - teacher.sentences[:, 0]
        return self.weight * jnp.mean(difference**2, axis=-1), state, {}
"""
OTHERS = """
from jaxdistill.encoders.families import bert

def read_lines(path, columns):
    for line in path.read_text().splitlines():
        yield (line.partition("#")[0],) * len(columns)

FAMILIES = {"my-bert": bert}
VIEWS = {"shout": lambda text, uniform: text.upper() if uniform < 2 else text}
READERS = {".lines": read_lines}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("JAXDISTILL_DATA", raising=False)
    for registry in (parts.families, parts.views, parts.readers):
        monkeypatch.setattr(parts, next(name for name, value in vars(parts).items() if value is registry), {})
    (tmp_path / "loss.py").write_text(OBJECTIVE)
    (tmp_path / "others.py").write_text(OTHERS)
    (tmp_path / "text.lines").write_text("\n".join(f"{line}# ignored" for line in made_up(200, words=6)))
    return tmp_path


def options(folder: pathlib.Path) -> dict:
    return {
        "objective": {"name": f"{folder / 'loss.py'}:Halfway", "weight": 0.25},
        "run": {"steps": 2, "parts": str(folder / "others.py"), "precision": "float32"},
        "data": {"text": str(folder / "text.lines"), "batch_size": 16, "max_length": 24},
    }


def test_a_training_of_own_parts_runs_and_knows_their_sources(folder):
    write_teacher(folder)
    given = options(folder)
    given["data"]["cache_folder"] = str(folder / "cache")
    given |= {
        "teacher": {"model": str(folder / "model")},
        "student": {"model": "teacher", "layers": "1", "pooling": ""},
    }
    (folder / "mine.py").write_text(
        f"from ml_collections import ConfigDict\ndef get_config():\n    return ConfigDict({given!r})\n"
    )
    result = jaxdistill.distill(config=str(folder / "mine.py"), workdir=folder / "run")
    assert result.results["config"]["objective.weight"] == 0.25 and result.export_folder.is_dir()
    parsed = config.parse(given)
    (folder / "loss.py").write_text(OBJECTIVE.replace("0.5", "0.6"))
    with pytest.raises(InputError, match="loss.py has changed since .*run was begun"):
        claim_workdir(folder / "run", parsed, write=False)


def test_a_changed_source_is_refused(folder):
    parsed = config.parse(options(folder))
    claim_workdir(folder / "run", parsed, write=True)
    claim_workdir(folder / "run", parsed, write=False)
    (folder / "others.py").write_text(OTHERS + "\n")
    with pytest.raises(InputError, match="others.py has changed since .*run was begun"):
        claim_workdir(folder / "run", parsed, write=False)


def test_own_families_views_and_readers_are_found(folder):
    from jaxdistill.data import formats, views
    from jaxdistill.encoders import families

    parts.use(str(folder / "others.py"))
    assert families.family("my-bert").__name__.endswith("bert") and "my-bert" in families.known()
    assert views.parse("shout", ("text",)).augmentation == "shout"
    assert next(formats.rows(folder / "text.lines", {"text": "text"}))[0] == made_up(200, words=6)[0]


@pytest.mark.parametrize(
    "name, words",
    [
        ("absent.py:Loss", "absent.py does not exist"),
        ("{folder}/loss.py:Absent", "has no 'Absent'"),
        ("{folder}/loss.py:jnp", "is no frozen dataclass"),
        ("no_such_module:Loss", "cannot be imported .ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_with_an_own_objective_is_one_line(folder, name, words):
    with pytest.raises(InputError, match=words):
        objectives.make(name.format(folder=folder), {})


def test_a_module_without_parts_is_refused(folder):
    with pytest.raises(InputError, match="has none of FAMILIES, VIEWS, READERS and EVALUATIONS"):
        parts.use(str(folder / "loss.py"))
