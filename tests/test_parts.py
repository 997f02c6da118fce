"""Parts from outside the package: an objective, a view, a reader, an encoder family and an evaluation of a user's own."""

import json
import pathlib

import numpy as np
import pytest

import jaxdistill
from jaxdistill import config, evaluate
from jaxdistill.core import InputError, cli, plugins
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.training.build import build

from program import write_teacher
from tiny_models import tiny_model
from tiny_text import made_up, rows_at

pytestmark = pytest.mark.usefixtures("one_device")


OBJECTIVE = """
import dataclasses
import jax.numpy as jnp
from jaxdistill.core import Objective

@dataclasses.dataclass(frozen=True, kw_only=True)
class Halfway(Objective):
    "Half the squared distance between student and teacher."
    weight: float = 0.5
    "Of the distance."
    student_views = ("shout",)
    teacher_views = ("text",)

    def __call__(self, params, state, student, teacher):
        difference = student.sentences[:, 0] - teacher.sentences[:, 0]
        return self.weight * jnp.mean(difference**2, axis=-1), state, {}
"""
KINDS = """
import dataclasses
from jaxdistill.models.students import Cut
from jaxdistill.models.teachers import Stored

@dataclasses.dataclass(frozen=True, kw_only=True)
class Shrunk(Cut):
    "A cut student whose weights are scaled down."
    scale: float = 0.5
    "Factor on all kernels."

    def make(self, inputs):
        student = super().make(inputs)
        scaled = {path: array * self.scale if path.endswith("kernel") else array for path, array in student.params.items()}
        return student.with_params(scaled)

@dataclasses.dataclass(frozen=True, kw_only=True)
class Turned(Stored):
    "A teacher whose vectors point the other way."
    sign: float = -1.0
    "Factor on all vectors."

    def stored(self, inputs):
        return tuple(self.sign * array[:] for array in super().stored(inputs))
"""
PLUGINS = """
from jaxdistill.encoders.families import bert

FAMILIES = {"my-bert": bert}
VIEWS = {"shout": lambda text, uniform: text.upper() if uniform < 2 else text}
"""
EVALUATION = """
import pathlib
from jaxdistill.evals.evaluation import Evaluation, TestSet
from jaxdistill.evals.pairs import pairs_spearman, read_pairs

PAIRS = pathlib.Path(__file__).parent / "pairs.tsv"

def sets(sources):
    yield TestSet(name="mine", protocol="Spearman of cosine similarity and score", files=(PAIRS,))

def run(model, test_set):
    return {"mine/spearman": FACTOR * pairs_spearman(model.embed, read_pairs(test_set.file)), "mine/pairs": 3.0}

EVALUATIONS = [
    Evaluation(
        task="mine",
        scores=("mine",),
        sets=sets,
        run=run,
        averages=lambda scores: {"mine/half": scores["mine/spearman"] / 2},
        headings={"mine/spearman": "my pairs", "mine/absent": "never measured"},
    )
]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for registry in (plugins.families, plugins.views, plugins.evaluations):
        monkeypatch.setattr(plugins, next(name for name, value in vars(plugins).items() if value is registry), {})
    (tmp_path / "loss.py").write_text(OBJECTIVE)
    (tmp_path / "others.py").write_text(PLUGINS)
    (tmp_path / "text.txt").write_text("\n".join(made_up(200, words=6)))
    return tmp_path


def options(folder: pathlib.Path) -> dict:
    return {
        "objective": {"kind": f"{folder / 'loss.py'}:Halfway", "weight": 0.25},
        "run": {"steps": 2, "plugins": str(folder / "others.py"), "precision": "float32"},
        "data": {"text": str(folder / "text.txt"), "batch_size": 16, "max_length": 24},
    }


def test_a_training_with_user_plugins_runs_and_records_their_sources(folder):
    write_teacher(folder)
    raw = options(folder)
    raw["data"]["cache_folder"] = str(folder / "cache")
    raw |= {
        "teacher": {"model": str(folder / "model")},
        "student": {"model": "teacher", "layers": "1", "pooling": ""},
    }
    (folder / "mine.py").write_text(
        "from jaxdistill.config import defaults\n\ndef get_config():\n"
        f"    config = defaults(objective={raw['objective']['kind']!r})\n    config.update({raw!r})\n    return config\n"
    )
    result = jaxdistill.distill(config=str(folder / "mine.py"), workdir=folder / "run")
    assert result.results["config"]["objective.weight"] == 0.25 and result.export_folder.is_dir()
    (folder / "loss.py").write_text(OBJECTIVE.replace("0.5", "0.6"))
    with pytest.raises(InputError, match="loss.py has changed since .*run was started"):
        jaxdistill.distill(config=str(folder / "mine.py"), workdir=folder / "run")
    (folder / "loss.py").write_text(OBJECTIVE.replace(", axis=-1", ""))
    with pytest.raises(
        InputError, match=r"Halfway returns losses of shape \(\) for 16 examples; .* one loss per example"
    ):
        jaxdistill.distill(config=str(folder / "mine.py"), workdir=folder / "other")


def test_a_users_kinds_of_student_and_teacher(folder):
    write_teacher(folder)
    (folder / "kinds.py").write_text(KINDS)
    raw = options(folder) | {
        "teacher": {"kind": f"{folder / 'kinds.py'}:Turned", "model": str(folder / "model")},
        "student": {"kind": f"{folder / 'kinds.py'}:Shrunk", "model": "teacher", "scale": 0.25},
    }
    raw["objective"] = {"kind": "embedding", "distance": "cosine"}
    raw["data"]["cache_folder"] = str(folder / "cache")
    parsed = config.parse_config(raw)
    plugins.use(parsed.run.plugins)
    run = build(parsed, folder / "w", progress=False)
    original = load_model(str(folder / "model"))
    for path, array in run.student.params.items():
        factor = 0.25 if path.endswith("kernel") else 1.0
        np.testing.assert_allclose(array, factor * original.params[path], rtol=1e-6)
    rows = rows_at(run.batches, 0)[:4]
    texts = [run.store.text("text", row) for row in rows]
    np.testing.assert_allclose(run.batches._targets[0][rows], -Embedder(original).encode(texts), atol=1e-5)


def test_a_users_evaluation_is_scored_printed_and_reported_and_its_source_is_recorded(folder, monkeypatch, capsys):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(folder / "cache"))
    save(tiny_model(folder / "tokenizer"), folder / "tiny")
    sentences = made_up(12)
    rows = [f"{n}\t{a}\t{b}\n" for n, (a, b) in enumerate(zip(sentences[::2], sentences[1::2], strict=True))]
    (folder / "pairs.tsv").write_text("score\tsentence1\tsentence2\n" + "".join(rows))
    scores = {}
    for name, factor in (("one", 1.0), ("two", 0.5)):
        (folder / f"{name}.py").write_text(f"FACTOR = {factor}" + EVALUATION)
        plugins.evaluations.clear()
        options = [f"--plugins={folder}/{name}.py", f"--model={folder}/tiny", "--tasks=mine", f"--out={folder}/{name}/"]
        cli.run(evaluate.main, options)
        content = json.loads((folder / name / "results.json").read_text())
        scores[name] = content["models"][0]["scores"]
        assert content["protocol"] == {"mine": "Spearman of cosine similarity and score"}
        assert "my pairs" in capsys.readouterr().out
        page = (folder / name / "index.html").read_text()
        assert ">my pairs</th>" in page and "never measured" not in page
    assert list(scores["one"]) == ["mine/spearman", "mine/pairs", "mine/half"]
    assert scores["two"]["mine/spearman"] == 0.5 * scores["one"]["mine/spearman"] == scores["one"]["mine/half"]


def test_a_model_of_a_users_family_is_loaded_from_python(folder):
    save(tiny_model(folder / "tokenizer"), folder / "tiny")
    path = folder / "tiny" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "my-bert"}))
    assert jaxdistill.load(str(folder / "tiny"), plugins=str(folder / "others.py")).width == 16
