"""The snippet of docs/mteb.md, and `evaluate --mteb`, run a task of MTEB on an export; it is a real class with local data.

With the export's prompts for queries, for documents, for both and for neither nDCG differs, so that each prompt is seen.
"""

import json
import re
from dataclasses import replace
from functools import partial
from itertools import combinations, product

import datasets
import mteb
import pytest
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata

import jaxdistill
from jaxdistill.core import InputError
from jaxdistill.evals.documents import ranked_by_vectors, scored
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder

from conftest import ROOT
from eval_cases import read_test, write_orders
from tiny_models import tiny_model


class LocalRetrieval(AbsTaskRetrieval):
    """A task of MTEB on a retrieval set in local files."""

    metadata = TaskMetadata(
        name="LocalRetrieval", description="documents of this test", dataset={"path": "none", "revision": "1"},
        type="Retrieval", category="t2t", modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )  # fmt: skip
    local_set = None

    def load_data(self, **_):
        corpus = [{"id": name, "title": "", "text": text} for name, text in self.local_set.documents.items()]
        queries = [{"id": name, "text": text} for name, text in self.local_set.queries.items()]
        split = {
            "corpus": datasets.Dataset.from_list(corpus), "queries": datasets.Dataset.from_list(queries),
            "relevant_docs": self.local_set.judged, "top_ranked": None,
        }  # fmt: skip
        self.dataset, self.data_loaded = {"default": {"test": split}}, True


@pytest.fixture
def local_set(tmp_path, monkeypatch):
    """The set of documents that the task reads; `export` is a model with prompts for both roles."""
    model = replace(tiny_model(tmp_path / "tokenizer"), prompts={"query": "cat, cat: ", "document": "12 dog: "})
    save(model, tmp_path / "export")
    for name in ("MTEB_CACHE", "JAXDISTILL_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr(LocalRetrieval, "local_set", read_test(write_orders(tmp_path / "documents")))
    return LocalRetrieval.local_set


@pytest.mark.filterwarnings("ignore")  # mteb calls what it and sentence-transformers have deprecated
def test_the_documented_snippet_scores_an_export_as_this_project_does(local_set, tmp_path, capsys):
    page = (ROOT / "docs" / "mteb.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.S)[1].replace('"runs/l3/export"', repr(str(tmp_path / "export")))
    code, replaced = re.subn(r"mteb\.get_tasks\(.*?\)", "[LocalRetrieval()]", code)
    assert replaced == 1
    exec(code, {"LocalRetrieval": LocalRetrieval})
    name, score = capsys.readouterr().out.splitlines()[-1].split()
    assert name == "LocalRetrieval"
    embed = Embedder(load_model(str(tmp_path / "export"))).encode
    ndcg = {
        roles: scored(
            ranked_by_vectors(*(partial(embed, role=role) for role in roles), local_set), local_set, "own"
        ).scores["own ndcg@10"]
        for roles in product(("", "query"), ("", "document"))
    }
    assert min(abs(first - second) for first, second in combinations(ndcg.values(), 2)) > 0.001
    assert float(score) == pytest.approx(100 * ndcg["query", "document"], abs=0.01)


def test_evaluate_runs_a_task_of_mteb_and_keeps_its_result_file(local_set, tmp_path, monkeypatch):
    monkeypatch.setattr(mteb, "get_task", {"LocalRetrieval": LocalRetrieval()}.__getitem__)
    result = jaxdistill.evaluate(
        tmp_path / "export", mteb="LocalRetrieval", retrieval=tmp_path / "documents", out=f"{tmp_path}/report/"
    )
    scores = result.scores[str(tmp_path / "export")]
    assert scores["mteb/LocalRetrieval"] == pytest.approx(scores["documents/documents ndcg@10"], abs=1e-4)
    (file,) = (tmp_path / "report" / "mteb").rglob("LocalRetrieval.json")
    assert json.loads(file.read_text())["scores"]["test"][0]["main_score"] == scores["mteb/LocalRetrieval"]
    with pytest.raises(InputError, match="mteb=Absent names no benchmark or task of an installed mteb"):
        jaxdistill.evaluate(tmp_path / "export", mteb="Absent")
