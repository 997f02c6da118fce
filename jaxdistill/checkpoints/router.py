"""Writes two models in one folder for sentence-transformers' `Router`: a student for queries, the index's for documents."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxdistill.checkpoints.folder import save, write_general, write_json
from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.core import InputError

ROUTER = "sentence_transformers.models.Router"
OF_THE_WHOLE = ("modules.json", "config_sentence_transformers.json", "README.md")
"""Files of a model's folder that a route within a `Router` does not have."""


def save_router(query: SentenceModel, document: SentenceModel, folder: Path, *, card: str) -> None:
    """Writes both models into an empty folder. `encode_query` then runs the query model and `encode_document` the document
    model, each with its own prompt; `encode` runs the document model.

    Raises:
      InputError: the models' vectors are not comparable, or an export cannot hold one of the models.
    """
    widths = query.definition.embedding_width, document.definition.embedding_width
    pairs = [model.source for model in (query, document) if model.definition.reads_pairs]
    if pairs:
        raise InputError(f"{pairs[0]} is a cross-encoder, which has no vectors; a router takes two sentence encoders.")
    if widths[0] != widths[1]:
        raise InputError(
            f"{query.source} has vectors of {widths[0]} numbers and {document.source} of {widths[1]}; a router needs a student as "
            "wide as the model that encodes the documents."
        )
    routes = {role: _write_route(role, model, folder) for role, model in (("query", query), ("document", document))}
    types = routes["query"] | routes["document"]
    structure = {role: list(route) for role, route in routes.items()}
    parameters = {"default_route": "document", "allow_empty_key": True, "route_mappings": {}}
    write_json(folder / "router_config.json", {"types": types, "structure": structure, "parameters": parameters})
    write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": ROUTER}])
    prompts = {"query": query.role_prompts["query"], "document": document.role_prompts["document"]}
    write_general(folder, prompts, None)
    (folder / "README.md").write_text(card, "utf-8")


def _write_route(role: str, model: SentenceModel, folder: Path) -> dict[str, str]:
    """Writes a model's modules, each in its own folder; maps the folders' names to the modules' types, in order."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        save(model, whole := Path(temporary))
        modules = json.loads((whole / "modules.json").read_text("utf-8"))
        for name in OF_THE_WHOLE:
            (whole / name).unlink()
        places = {entry["path"]: folder / f"{role}_{entry['idx']}_{_kind(entry)}" for entry in modules}
        # The module in the folder itself is moved last, when the other modules' subfolders are gone.
        for path in sorted(places, reverse=True):
            places[path].mkdir()
            for file in list((whole / path).iterdir()):
                shutil.move(file, places[path])
            if path:
                (whole / path).rmdir()
    return {places[entry["path"]].name: entry["type"] for entry in modules}


def _kind(entry: Mapping[str, Any]) -> str:
    """The class of a module in `modules.json`."""
    return entry["type"].rpartition(".")[2]
