"""Exports a model to a folder that sentence-transformers (if it supports the pooling) and `AutoModel` load too.

The folder is written under a temporary name, loaded again and compared, and then renamed. It replaces an earlier export
but keeps files that the user added to it; any other folder is refused.
"""

import contextlib
import dataclasses
import json
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxdistill import exports
from jaxdistill.checkpoints.folder import check_exportable, save, save_router, write_json
from jaxdistill.checkpoints.model import SentenceModel, load_model
from jaxdistill.core import InputError
from jaxdistill.evals.similarity import unit_rows
from jaxdistill.exports import demo
from jaxdistill.files import local, unwritable
from jaxdistill.files.folders import MARK, replacing
from jaxdistill.inference import Embedder
from jaxdistill.paths import public_name
from jaxdistill.reporting.hub_results import write_results
from jaxdistill.reporting.model_card import Facts, Origin, model_card, origin_of, read_facts, router_card, write_facts
from jaxdistill.reporting.mteb_entry import mteb_entry
from jaxdistill.versions import versions
from jaxdistill.workdir.folder import read_note

log = logging.getLogger(__name__)

TOLERANCE = 1e-5
"""Largest allowed difference between numbers of a unit vector before export and after reloading."""
CHECK_SENTENCES = (
    "Rain.",
    "The ferry leaves at nine, or whenever the fog lifts.",
    "Who left the garden gate open last night?",
    "Prices rose by 3.5 % in March; wages (as ever) did not.",
    "Zwei Äpfel, drei Birnen, 茶 and a café au lait: €12.40!",
    "She read the letter twice, folded it along its old creases, put it back into the drawer, and told nobody about it "
    "until the spring, when the roof was mended and the house was sold to a family from the coast.",
    " ".join(["word"] * 600),
    "",
)


def export(
    model: SentenceModel,
    folder: str | Path,
    *,
    facts: Facts | None = None,
    to: Sequence[str] = (),
    calibration: Sequence[str] = (),
    spec: str = "",
    licence: str = "",
) -> Path:
    """Saves `model`, loads it again and compares the embeddings of `CHECK_SENTENCES`; returns the folder.

    Args:
      facts: how the model was made, for its card; None: as the export says that it was loaded from.
      to: forms for other runtimes (`exports.FORMS`), which are also compared with the model; the card gives the differences.
      calibration: sentences for ONNX with 8-bit activations, see `exports.add`.
      spec: name of the model on the hub, for its card; empty: the card has its path, or the folder's name.
      licence: of the exported model, as `check_licence` allows it; empty: the one in `facts`, or handed down.

    Raises:
      InputError: the format cannot express the model, `folder` holds something else, the disk is full, or the reloaded
        model differs; `folder` then stays unchanged.
    """
    check_exportable(model.definition)
    exports.check(to, model)
    folder = local(folder, "--out").resolve()
    pooling = model.definition.pooling
    if not pooling.in_sentence_transformers:
        log.warning(
            "%s: sentence-transformers has no module for pooling %s and refuses to load this export; jaxdistill.load and the"
            " commands of this project read it",
            folder,
            pooling,
        )
    facts = facts or dataclasses.replace(_facts_of(model) or Facts(name=""), name=folder.name)
    origin = facts.origin
    if not origin.licences:
        own = origin_of(model)
        languages = origin.languages or own.languages
        origin = dataclasses.replace(
            origin, licences=own.licences, licence=origin.licence or own.licence, languages=languages
        )
    facts = dataclasses.replace(facts, origin=_licensed(origin, licence, folder))
    trained_for = {} if facts.index.vectors == "float" else {"trained_for_vectors": facts.index.vectors}
    with _put_in_place(folder, model.digest(), facts.origin, **trained_for) as (new, mark):
        card = partial(card_of, model, facts, spec=spec or _spec(folder), hub_name=spec)
        save(model, new, card=card())
        write_facts(new, facts)
        write_results(new, facts.checkpoint.scores, reads_pairs=model.definition.reads_pairs)
        if facts.index.dims:
            _name_widths(new / "config.json", facts.index.dims, model.definition.embedding_width)
        reloaded = load_model(str(new))
        _refuse_difference(largest_difference(model, reloaded, CHECK_SENTENCES), folder)
        # A table is written with its head folded in, and without the row that it does not read.
        mark["model_digest"] = reloaded.digest()
        if rows := exports.add(to, model, new, size=weights_bytes(new), calibration=calibration):
            (new / "README.md").write_text(card(forms=rows), "utf-8")
            mark["forms"] = exports.table(rows)
    return folder


def _facts_of(model: SentenceModel) -> Facts | None:
    """The facts of the export that the model was loaded from; None for another model, and for one that was changed since."""
    folder = model.provenance.tokenizer_folder
    digest = read_note(folder / MARK).get("model_digest")
    return read_facts(folder) if digest and digest == model.digest() else None


def _licensed(origin: Origin, stated: str, folder: Path) -> Origin:
    """The origin with the stated licence, or else the one handed down; a warning says if it is unknown or contradicts another."""
    origin = dataclasses.replace(origin, licence=stated or origin.licence)
    licence = origin.known_licence
    listed = "; ".join(f"{name}: {theirs or 'not stated'}" for name, theirs in origin.licences.items()) or "no card"
    if not licence:
        log.warning(
            "%s: its licence is unknown (%s); state it with --license=ID, in a training --config.run.license=ID",
            folder,
            listed,
        )
    elif any(theirs not in ("", licence) for theirs in origin.licences.values()):
        log.warning("%s: its licence %s is not the one of what it was made from (%s)", folder, licence, listed)
    return origin


def _name_widths(config: Path, dims: str, width: int) -> None:
    """Lists nested widths and the full one in `config.json`, where vLLM and SGLang look for the widths to offer."""
    if config.exists():  # a static table in sentence-transformers' format has none
        widths = sorted({*map(int, dims.split(",")), width})
        write_json(config, json.loads(config.read_text("utf-8")) | {"matryoshka_dimensions": widths})


def export_router(
    query: SentenceModel, document: SentenceModel, folder: str | Path, *, spec: str = "", licence: str = ""
) -> Path:
    """Saves a student for queries with the index's model for documents, as sentence-transformers' `Router`; returns the folder.

    If that library is installed, compares the vectors of both models with it.

    Raises:
      InputError: as `export`, or the two models' vectors are not comparable.
    """
    folder = local(folder, "--out").resolve()
    for model in (query, document):
        check_exportable(model.definition)
        if not model.definition.pooling.in_sentence_transformers:
            raise InputError(
                f"{model.source} has pooling {model.definition.pooling}, for which sentence-transformers has no module, and Router is"
                " its own; use another model."
            )
    origin = _licensed(origin_of(query, document), licence, folder)
    card = router_card(query, document, Facts(name=folder.name, origin=origin), spec=spec or _spec(folder))
    with _put_in_place(folder, f"{query.digest()} {document.digest()}", origin) as (new, _):
        new.mkdir()
        save_router(query, document, new, card=card)
        _refuse_difference(_router_difference(query, document, new), folder)
    return folder


def export_demo(
    model: SentenceModel, folder: str | Path, *, name: str, sentences: Sequence[str], runtime: Sequence[Path]
) -> Path:
    """Writes a page that finds the nearest of some sentences as one types, in the browser; returns its folder.

    Args:
      name, sentences, runtime: as of `demo.write`.

    Raises:
      InputError: as `export`, or the model scores pairs.
    """
    folder = local(folder, "--out").resolve()
    exports.check(["onnx"])
    if reason := demo.refusal(model):
        raise InputError(f"--demo cannot hold this model: {reason}.")
    demo.refuse_other(folder)
    with _put_in_place(folder, model.digest(), origin_of(model)) as (new, _):
        demo.write(model, new, name=name, sentences=sentences, runtime=runtime)
    return folder


def _router_difference(query: SentenceModel, document: SentenceModel, folder: Path) -> float:
    """Largest difference to sentence-transformers' numbers of unit vectors; 0, with a warning, if it is not installed."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        log.warning("%s: not compared, because sentence-transformers is not installed", folder)
        return 0.0
    router = SentenceTransformer(str(folder), device="cpu")
    sentences = [sentence for sentence in CHECK_SENTENCES if sentence]
    return max(
        _vector_difference(Embedder(query).encode_query(sentences), router.encode_query(sentences)),
        _vector_difference(Embedder(document).encode_document(sentences), router.encode_document(sentences)),
    )


@contextlib.contextmanager
def _put_in_place(folder: Path, digest: str, origin: Origin, **more: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields a folder to write to, and the facts of its marker; it then replaces `folder`, which an error leaves unchanged."""
    licences = {"licences": dict(origin.licences), "licence": origin.licence}
    mark = {"model_digest": digest, "versions": versions(), **licences, **more}
    try:
        with replacing(folder, mark) as new:
            yield new, mark
    except OSError as error:
        raise unwritable(folder, error, ". Nothing was changed there; --out names another folder") from error


def largest_difference(before: SentenceModel, after: SentenceModel, sentences: Sequence[str]) -> float:
    """Largest absolute difference between numbers of unit vectors of the same sentence, or between scores of pairs."""
    if before.definition.reads_pairs:
        if not after.definition.reads_pairs:
            return float("inf")
        scores = [Embedder(model).score(sentences, [*sentences[1:], *sentences[:1]]) for model in (before, after)]
        return float(np.abs(scores[0] - scores[1]).max())
    return _vector_difference(*(Embedder(model).encode(list(sentences)) for model in (before, after)))


def _vector_difference(before: Float[np.ndarray, "n e"], after: Float[np.ndarray, "n _"]) -> float:
    """Largest absolute difference between numbers of unit vectors; infinity if their widths differ."""
    if before.shape != after.shape:
        return float("inf")
    return float(np.abs(unit_rows(before) - unit_rows(after)).max())


def _spec(folder: Path) -> str:
    """The export's path relative to the current directory; its public name if it is not below that directory."""
    here = Path.cwd()
    inside = here in folder.parents and here != here.parent
    return folder.relative_to(here).as_posix() if inside else public_name(str(folder))


def card_of(
    model: SentenceModel, facts: Facts, *, spec: str, hub_name: str = "", forms: Sequence[exports.MeasuredForm] = ()
) -> str:
    """A model card with these facts.

    Args:
      spec: what the code examples load.
      hub_name: its name on the hub, for MTEB; empty if it is not there.
      forms: how forms for other runtimes compare with the model.
    """
    added = {row.name.partition("/")[0] for row in forms}
    is_standard = model.definition.pooling.in_sentence_transformers
    entry = mteb_entry(model, facts, hub_name=hub_name, forms=added) if is_standard else None
    return model_card(model, facts, spec=spec, forms=exports.table(forms), mteb=entry)


def weights_bytes(folder: str | Path) -> int:
    """Size of a model's weights on disk, Dense layers included: safetensors files if there are any, else PyTorch's."""
    files = [*Path(folder).rglob("*.safetensors")] or [*Path(folder).rglob("pytorch_model*.bin")]
    return sum(path.stat().st_size for path in files)


def _refuse_difference(difference: float, folder: Path) -> None:
    if not difference <= TOLERANCE:  # NaN is refused too
        raise InputError(
            f"{folder} was not written: reloaded, the model gives other embeddings (largest difference "
            f"{difference:.1e}, at most {TOLERANCE:.0e} is allowed). This is a fault of the export; please report it."
        )
