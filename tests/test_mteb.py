"""The snippet of docs/mteb.md, and `evaluate --mteb`, run a task of MTEB on an export; it is a real class with local data.

With the export's prompts for queries, for documents, for both and for neither nDCG differs, so that each prompt is seen.
"""

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import combinations, product

import pytest

import jaxdistill
from jaxdistill.core import InputError
from jaxdistill.evals.documents import ranked_by_vectors, scored
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder

from eval_cases import read_test, write_orders
from program import ROOT, environment
from tiny_models import tiny_model

LOCAL_TASK = """
import datasets
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata

class LocalRetrieval(AbsTaskRetrieval):
    metadata = TaskMetadata(
        name="LocalRetrieval", description="documents of this test", dataset={"path": "none", "revision": "1"},
        type="Retrieval", category="t2t", modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )

    def load_data(self, **_):
        corpus, queries, judged = SET
        split = {
            "corpus": datasets.Dataset.from_list(corpus), "queries": datasets.Dataset.from_list(queries),
            "relevant_docs": judged, "top_ranked": None,
        }
        self.dataset, self.data_loaded = {"default": {"test": split}}, True
"""


def snippet() -> str:
    """The Python code of the page."""
    return re.search(r"```python\n(.*?)```", (ROOT / "docs" / "mteb.md").read_text(encoding="utf-8"), re.S)[1]


def test_the_documented_snippet_scores_an_export_as_we_do(tmp_path):
    model = replace(tiny_model(tmp_path / "tokenizer"), prompts={"query": "cat, cat: ", "document": "12 dog: "})
    save(model, tmp_path / "export")
    code = snippet().replace('"runs/l3/export"', repr(str(tmp_path / "export")))
    code, replaced = re.subn(r"mteb\.get_tasks\(.*?\)", "[LocalRetrieval()]", code)
    assert replaced == 1
    script = tmp_path / "run.py"
    known = read_test(write_orders(tmp_path / "documents"))
    corpus = [{"id": name, "title": "", "text": text} for name, text in known.documents.items()]
    queries = [{"id": name, "text": text} for name, text in known.queries.items()]
    tasks = LOCAL_TASK.replace("SET", repr((corpus, queries, known.judged)))
    script.write_text(tasks + code)
    ended = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment() | {"MTEB_CACHE": str(tmp_path / "mteb"), "HF_HOME": str(tmp_path / "hf")},
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    name, score = ended.stdout.splitlines()[-1].split()
    assert name == "LocalRetrieval"
    embed = Embedder(load_model(str(tmp_path / "export"))).encode
    ndcg = {
        roles: scored(ranked_by_vectors(*(partial(embed, role=role) for role in roles), known), known)[
            "documents/documents ndcg@10"
        ]
        for roles in product(("", "query"), ("", "document"))
    }
    assert min(abs(first - second) for first, second in combinations(ndcg.values(), 2)) > 0.001
    assert float(score) == pytest.approx(100 * ndcg["query", "document"], abs=0.01)


def test_evaluate_runs_a_task_of_mteb_and_keeps_its_result_file(tmp_path, monkeypatch):
    import mteb

    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    save(replace(tiny_model(tmp_path / "tokenizer"), prompts={"query": "cat, cat: "}), tmp_path / "export")
    known = read_test(write_orders(tmp_path / "documents"))
    corpus = [{"id": name, "title": "", "text": text} for name, text in known.documents.items()]
    queries = [{"id": name, "text": text} for name, text in known.queries.items()]
    namespace = {}
    exec(LOCAL_TASK.replace("SET", repr((corpus, queries, known.judged))), namespace)
    monkeypatch.setattr(mteb, "get_task", {"LocalRetrieval": namespace["LocalRetrieval"]()}.__getitem__)
    result = jaxdistill.evaluate(
        tmp_path / "export", mteb="LocalRetrieval", retrieval=tmp_path / "documents", out=f"{tmp_path}/report/"
    )
    scores = result.scores[str(tmp_path / "export")]
    assert scores["mteb/LocalRetrieval"] == pytest.approx(scores["documents/documents ndcg@10"], abs=1e-4)
    (file,) = (tmp_path / "report" / "mteb").rglob("LocalRetrieval.json")
    assert json.loads(file.read_text())["scores"]["test"][0]["main_score"] == scores["mteb/LocalRetrieval"]
    with pytest.raises(InputError, match="mteb=Absent names no benchmark or task of an installed mteb"):
        jaxdistill.evaluate(tmp_path / "export", mteb="Absent")
