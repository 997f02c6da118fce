"""Runs MTEB's tasks by name; mteb reads the sets, scores the model's vectors, and writes its own result files."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxdistill.core import InputError
from jaxdistill.core.cluster import processes
from jaxdistill.core.files import foreign_errors
from jaxdistill.evals.evaluation import Evaluation, MissingSet, Model, Sources, TestSet


def _sets(sources: Sources) -> Iterable[TestSet]:
    """One set for each task; `sources.mteb` names a benchmark such as `MTEB(eng, v2)`, or tasks separated by commas."""
    if not sources.mteb:
        raise MissingSet("needs mteb='MTEB(eng, v2)', or names of tasks such as mteb=STSBenchmark,SciFact")
    if processes.count() > 1:
        raise InputError(f"mteb={sources.mteb} runs in one process, not in {processes.count()}; start one.")
    with foreign_errors(f"mteb={sources.mteb} names no benchmark or task of an installed mteb (pip install mteb)"):
        import mteb

        is_benchmark = any(benchmark.name == sources.mteb for benchmark in mteb.get_benchmarks())
        names = [name.strip() for name in sources.mteb.split(",")]
        tasks = mteb.get_benchmark(sources.mteb).tasks if is_benchmark else map(mteb.get_task, names)
        for task in tasks:
            protocol = f"mteb {mteb.__version__}: {task.metadata.main_score}"
            content = task, sources.mteb_folder  # where mteb caches its results, so they are not cached here
            yield TestSet(name=f"mteb/{task.metadata.name}", protocol=protocol, content=content, is_repeatable=False)


def _run(model: Model, test_set: TestSet) -> Mapping[str, float]:
    """Runs a task and returns its main score; mteb reuses results of the same model that it finds in its folder."""
    import mteb
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta, ScoringFunction

    # mteb finds earlier results by name, which must be `ORGANISATION/MODEL`, and revision.
    name = re.sub(r"[^0-9A-Za-z.]+", "-", model.name).strip("-")
    metadata = {"name": f"jaxdistill/{name}", "revision": model.digest[:12]}
    metadata["similarity_fn_name"] = ScoringFunction(model.similarity)

    class Encoder(AbsEncoder):
        mteb_model_meta = ModelMeta.create_empty(metadata)

        def encode(self, inputs: Any, *, prompt_type: Any = None, **_: Any) -> np.ndarray:
            # mteb's prompt types, `query` and `document`, are also the names of fields of `Model`.
            embed = getattr(model, prompt_type.value) if prompt_type else model.embed
            return np.asarray(embed([text for batch in inputs for text in batch["text"]]), np.float32)

    encoder: Any = Encoder()
    task, folder = test_set.content
    with foreign_errors(f"{test_set.name} cannot be run"):
        cache = mteb.ResultCache(folder)
        results = mteb.evaluate(encoder, task, cache=cache, co2_tracker=False, show_progress_bar=False)
        return {test_set.name: float(results.task_results[0].get_score())}


def _averages(measured: Mapping[str, float]) -> Mapping[str, float]:
    """The mean of the tasks' main scores; empty for a single task."""
    scores = [score for name, score in measured.items() if name.startswith("mteb/")]
    return {"mteb/average": float(np.mean(scores))} if len(scores) > 1 else {}


EVALUATION = Evaluation(task="mteb", scores=("mteb",), sets=_sets, run=_run, averages=_averages)
