"""Makes the table and the report of an evaluation from the content of its results file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxdistill.evals import speed
from jaxdistill.evals.pairs import ScoredPairs
from jaxdistill.reporting.page import short_names, write_page
from jaxdistill.reporting.tables import Entry

ROLE_TEXTS = {"query": "queries", "document": "documents"}


def entries_of(content: Mapping[str, Any], scored_pairs: Mapping[str, ScoredPairs | None] | None = None) -> list[Entry]:
    """The models and rows of papers in the content of a results file.

    Args:
      scored_pairs: maps models to graded pairs with their similarities.
    """
    names = short_names([row["model"] for row in content["models"]])
    models = [
        Entry(
            name=names[row["model"]],
            scores=row["scores"],
            # 0: none, as of an ensemble's vectors
            costs={name: row[name] or None for name in ("parameters", "size_bytes", "vector_bytes")}
            | {"sentences_per_s": row["scores"].get(speed.RATE)},
            scored_pairs=(scored_pairs or {}).get(row["model"]),
        )
        for row in content["models"]
    ]
    return models + [Entry(name=row["label"], scores=row["scores"], is_cited=True) for row in content["papers"]]


def write_evaluation(
    content: Mapping[str, Any], scored_pairs: Mapping[str, ScoredPairs | None], path: Path, *, teacher: str
) -> Path:
    """Writes the page; returns its path.

    Args:
      content: content of the results file.
      scored_pairs: maps models to graded pairs with their similarities.
      teacher: the model with which others are compared; empty: none.
    """
    rows = {row["model"]: row for row in content["models"]}
    failed = content["failed"] | {
        f"{unit} of {model}": why for model, row in rows.items() for unit, why in row["failed"].items()
    }
    index = {content["index_model"]: content["index_model_reading"]} if content["index_model"] else {}
    settings = {
        "Data": ", ".join(filter(None, [content["data"], *content["sets"].values()])),
        "Missing sets": " ".join(content["absent"]),
        **{f"Texts as {model} reads them": _reading(row) for model, row in (rows | index).items()},
        "Transform of vectors": content["postprocess"],
        **{row["label"]: row["tables"] for row in content["papers"]},
        "Versions": ", ".join(f"{name} {version}" for name, version in content["versions"].items()),
    }
    return write_page(
        path,
        entries_of(content, scored_pairs),
        title="Evaluation of sentence encoders",
        teacher=short_names(list(rows)).get(teacher, ""),
        sections={"Failed": failed, "What was evaluated": settings, "How it was measured": content["protocol"]},
    )


def _reading(row: Mapping[str, Any]) -> str:
    """How a model, or each member of an ensemble, reads texts."""
    lines = []
    for of in row.get("members", [row]):
        prompts = {"texts": of["prompt"], **{ROLE_TEXTS[role]: text for role, text in of["role_prompts"].items()}}
        prefixes = "".join(f", {text!r} before {what}" for what, text in prompts.items() if text)
        lines.append(f"pooling {of['pooling']}, at most {of['max_length']:,} tokens{prefixes}")
    return "; ".join(lines)
