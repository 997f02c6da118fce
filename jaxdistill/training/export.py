"""Exports a model to a folder that sentence-transformers (if it supports the pooling) and `AutoModel` load too.
The folder is written under a temporary name, loaded again and compared, and then renamed. It replaces an earlier export but keeps files
that the user added to it; any other folder is refused."""

import dataclasses
import json
import logging
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from jaxdistill.core import InputError
from jaxdistill.core.files import MARK, local, replacing, writing
from jaxdistill.core.paths import HELDOUT, public_name
from jaxdistill.core.runtime import versions
from jaxdistill.data.text import read
from jaxdistill.evals.model_card import Facts, model_card, origin_of, read_facts, write_facts
from jaxdistill.models.checkpoints import onnx
from jaxdistill.models.checkpoints.folder import save, write_json
from jaxdistill.models.checkpoints.model import SentenceModel, load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.models.vectors import unit_rows
from jaxdistill.training.workdir.folder import read_note

log = logging.getLogger(__name__)

Form = Literal["", "onnx"]
CHECK_SENTENCES = ("Rain.", "Zwei Äpfel, drei Birnen, 茶 and a café au lait: €12.40!", " ".join(["word"] * 600), "")
"""A short sentence, several scripts, more tokens than most models read, and no token."""


def export(model: SentenceModel, folder: str | Path, *, facts: Facts | None = None, to: Form = "") -> Path:
    """Saves `model`, loads it again and compares its vectors, or scores, of `CHECK_SENTENCES`; returns the folder.

    Args:
      facts: how the model was made, for its card; None: the facts of the export that it was loaded from, if it is unchanged.
      to: `onnx`: also write ONNX files, which are compared with the model; the card gives the differences.

    Raises:
      InputError: a form cannot hold the model, what is written gives other vectors than the model, or `folder` holds something else; it then
        stays unchanged.
    """
    if to:
        onnx.check(model)
    folder = local(folder, "--out").resolve()
    if facts is None:
        origin = model.tokenizer_folder  # where the model was loaded from
        is_unchanged = read_note(origin / MARK).get("model_digest") == model.digest()
        origin_facts = read_facts(origin) if is_unchanged else None
        facts = dataclasses.replace(origin_facts or Facts(name=""), name=folder.name)
    if not facts.base_models:
        facts = dataclasses.replace(facts, **origin_of(model))
    is_below = Path.cwd() in folder.parents
    spec = folder.relative_to(Path.cwd()).as_posix() if is_below else public_name(str(folder))  # in the card's examples
    card = partial(model_card, model, facts, spec=spec)
    marker = dict[str, Any](versions=versions())  # gets entries below; `replacing` writes it at the end
    with writing(folder, ". Nothing was changed there; --out names another folder"), replacing(folder, marker) as new:
        save(model, new, card=card())
        write_facts(new, facts)
        config = new / "config.json"
        if facts.dims and config.exists():  # where vLLM and SGLang look for nested widths; a static table has no config
            widths = sorted({*map(int, facts.dims.split(",")), model.definition.embedding_width})
            write_json(config, json.loads(config.read_text("utf-8")) | {"matryoshka_dimensions": widths})
        reloaded = load_model(str(new))
        _refuse_difference(str(folder), largest_difference(model, reloaded), 1e-5)
        # Not the digest of `model`: a static model's table is written with its head folded in, and without its unused row.
        marker["model_digest"] = reloaded.digest()
        if to:
            marker["forms"] = _write_onnx(model, new)
            (new / "README.md").write_text(card(forms=marker["forms"]), "utf-8")
    return folder


def _write_onnx(model: SentenceModel, folder: Path) -> list[dict[str, str]]:
    """Adds the ONNX files, compares them with the model on 98 sentences, and returns a row of measurements for each: it maps columns to
    cells. A file of 8-bit weights is left out if the mean cosine to the model's vectors, or the correlation of logits, is below 0.99."""
    held_out = [sentence for (sentence,) in islice(read([HELDOUT]), 94)]
    texts = [*CHECK_SENTENCES, *held_out]
    is_cross = model.definition.reads_pairs  # then each sentence is scored with the next, as in `_outputs`
    inputs: Any = list(zip(texts, [*texts[1:], *texts[:1]], strict=True)) if is_cross else texts
    expected = _outputs(model, texts, logits=True)
    rows = []
    for file in onnx.write(model, folder):
        name = f"{onnx.FOLDER}/{file.name}"
        actual = onnx.encoder(model, file)(inputs)
        if is_cross:
            similarity = np.corrcoef(actual[:, 0], expected[:, 0])[0, 1]
        else:  # the mean cosine of unit vectors; this formula gives 1 for two zero vectors
            actual = unit_rows(actual)
            similarity = 1 - np.square(actual - expected).sum(axis=1).mean() / 2
        difference = np.abs(actual - expected).max()
        if file.name == onnx.FLOAT:
            _refuse_difference(name, difference, 1e-4)
        if file.name == onnx.INT8 and not similarity >= 0.99:  # NaN is left out too
            file.unlink()
            log.warning("%s is left out: 8-bit weights change this model too much (%.4f)", name, similarity)
            continue
        row = {"form": name, "MB": f"{file.stat().st_size / 1e6:.1f}", "largest difference": f"{difference:.1e}"}
        rows.append(row | {"correlation" if is_cross else "mean cosine": f"{similarity:.6f}"})
    return rows


def _outputs(model: SentenceModel, sentences: Sequence[str], *, logits: bool = False) -> Float[np.ndarray, "n e"]:
    """Unit vectors of sentences; or a cross-encoder's score (or logit) of each sentence with the next, `[n, 1]`."""
    embedder = Embedder(model)
    if model.definition.reads_pairs:
        return embedder.score(sentences, [*sentences[1:], *sentences[:1]], logits=logits)[:, None]
    return unit_rows(embedder.encode(list(sentences)))


def largest_difference(before: SentenceModel, after: SentenceModel) -> float:
    """Largest absolute difference between elements of unit vectors, or between scores of pairs, of `CHECK_SENTENCES`."""
    return float(np.abs(_outputs(before, CHECK_SENTENCES) - _outputs(after, CHECK_SENTENCES)).max())


def weights_bytes(folder: str | Path) -> int:
    """Size of a model's weights on disk, Dense layers included: safetensors files if there are any, else PyTorch's."""
    files = [*Path(folder).rglob("*.safetensors")] or [*Path(folder).rglob("pytorch_model*.bin")]
    return sum(path.stat().st_size for path in files)


def _refuse_difference(name: str, difference: float, allowed: float) -> None:
    """Raises `InputError`, which names the file or folder `name`, if its largest difference is above the `allowed` one."""
    if not difference <= allowed:  # NaN is refused too
        raise InputError(
            f"{name} was not written: it differs from the model by {difference:.1e} (largest difference; {allowed:.0e} is allowed). "
            "This is a fault of the export; please report it."
        )
