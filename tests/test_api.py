"""The Python API, as a notebook uses it: distill, load, evaluate, export, and callbacks that raise."""

import subprocess
import sys

import numpy as np
import pytest

import jaxdistill

from program import environment, write_teacher
from tiny_text import made_up

pytestmark = pytest.mark.usefixtures("one_device")


CALLED = []
"""Steps and names of metrics that the callback of `result` received."""


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    options = {"evals.every": 2, "run.log_every": 2, "run.precision": "float32"}
    options["data.cache_folder"] = str(folder / "cache")
    text = ({"body": line, "other": 1} for line in [*made_up(200, words=6), None, float("nan")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXDISTILL_CACHE", str(folder / "cache"))
        teacher = write_teacher(folder)
        patch.chdir(folder)
        objective = jaxdistill.objectives.ConGen(alpha=1.0, queue_size=16)
        arguments = dict(columns="body", layers=1, steps=4, batch_size=16, objective=objective, options=options)
        note = lambda step, metrics: CALLED.append((step, set(metrics)))  # noqa: E731 - a callback
        return jaxdistill.distill(teacher, text, **arguments, callbacks=[note])


SCRIPT = """
import os, resource, signal, sys, threading
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
import datasets, scipy.io  # the first imports the second when it streams, and that sets a variable

def state():
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        bytes(b"x") * (64 << 20)
    goes_back = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults > 1000
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    return goes_back, handlers, len(threading.enumerate()), dict(os.environ)

before = state()
import jaxdistill
jaxdistill.encode(sys.argv[1], ["it rains", "a cat sleeps"])
jaxdistill.evaluate(sys.argv[1], pairs="pairs.tsv", out="results.json")
assert state() == before, (before, state())
text = [f"{row} the cat sleeps" for row in range(1300)]
options = {"evals.sts": False, "data.cache_folder": "cache"}
jaxdistill.distill(sys.argv[1], text, layers=1, steps=1, batch_size=1100, workdir="run", options=options)
assert state() == before, (before, state())
"""


def test_each_function_leaves_the_process_as_it_was(tmp_path):
    """Large freed blocks, signal handlers, threads, variables; also in a package that is started with -m, as the programs are."""
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "__init__.py").write_text(SCRIPT)
    (tmp_path / "script" / "__main__.py").touch()
    (tmp_path / "pairs.tsv").write_text(
        "score\tsentence1\tsentence2\n0\tit rains\ta cat sleeps\n1\tit rains\tthe tree\n"
    )
    command = [sys.executable, "-m", "script", write_teacher(tmp_path)]
    subprocess.run(command, cwd=tmp_path, env=environment() | {"JAXDISTILL_CACHE": str(tmp_path)}, check=True)


def test_distill_returns_model_scores_and_export_and_calls_back_with_metrics(result):
    assert [step for step, _ in CALLED] == [0, 1, 2, 2, 3, 4, 4]
    assert "agreement/spearman" in CALLED[0][1] and {"loss", "learning_rate"} <= CALLED[1][1]
    assert result.export_folder.is_dir() and result.results["config"]["run.steps"] == 4
    assert result.results["max_length"] == result.model.model.max_length == 32  # chosen from the text
    expected = {"student.layers": "even:1", "data.batch_size": 16, "objective.kind": "congen", "objective.alpha": 1.0}
    assert expected.items() <= result.results["config"].items()
    assert result.workdir.parent.name == "runs" and result.workdir.name.startswith("l2-cosine-")
    assert set(result.teacher_scores) == set(result.scores) and all(abs(score) <= 1 for score in result.scores.values())
    vectors = result.model.encode(["A cat sleeps.", "A cat naps."])
    np.testing.assert_array_equal(
        vectors, jaxdistill.load(str(result.export_folder)).encode(["A cat sleeps.", "A cat naps."])
    )


def test_an_exception_in_a_callback_ends_the_training_and_another_call_resumes_it(result, tmp_path, capsys):
    config = result.results["config"]
    options = {name: value for name, value in config.items() if not name.endswith(".kind")} | {"evals.sts": False}
    folder, stops = tmp_path / "run", [4]

    def stop(step, metrics):
        if step in stops and "loss" in metrics:
            raise ZeroDivisionError("enough")

    with pytest.raises(ZeroDivisionError, match="enough"):
        jaxdistill.distill(workdir=folder, config="l2.py:cosine:objective=congen", options=options, callbacks=[stop])
    stops.clear()
    resumed = jaxdistill.distill(
        workdir=folder, config="l2.py:cosine:objective=congen", options=options, callbacks=[stop]
    )
    assert resumed.scores == result.scores and "left out: 2 with an empty sentence" in capsys.readouterr().out
