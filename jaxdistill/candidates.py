"""The models that `evaluate` scores, in the form that its units use: sentence encoders, ensembles, cross-encoders, BM25."""

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from jaxdistill.checkpoints.locate import locate
from jaxdistill.checkpoints.model import SentenceModel, load_model
from jaxdistill.cli import BATCH_SIZE
from jaxdistill.cluster import processes
from jaxdistill.core import ROLES, Embed, InputError, RoleEmbed, Scorer, errors_of
from jaxdistill.data.sources import local_files
from jaxdistill.data.spread import over_processes
from jaxdistill.evals import bm25
from jaxdistill.evals.caches import EmbeddingCache, ScoreCache
from jaxdistill.evals.evaluation import IndexModel, InRoles, Model, Unit
from jaxdistill.evals.postprocess import Postprocessing
from jaxdistill.evals.small_forms import SmallForm
from jaxdistill.inference import Embedder
from jaxdistill.inference.ensemble import Ensemble
from jaxdistill.ops.dense import dtype_of
from jaxdistill.ops.small_vectors import row_bytes
from jaxdistill.training.export import weights_bytes


class Candidate(NamedTuple):
    """A model to score, or several as an ensemble."""

    spec: str
    members: tuple[SentenceModel, ...]
    """The models; empty for BM25."""
    precision: str = "float32"
    """Dtype of matrix products."""
    postprocessing: Postprocessing = Postprocessing()
    form: SmallForm | None = None
    """Form in which its vectors are stored; None: unchanged."""

    @property
    def label(self) -> str:
        """Its name in results."""
        return f"{self.spec} ({self.form})" if self.form else self.spec

    @property
    def width(self) -> int:
        """Width of its vectors; 0 if it has none of its own."""
        several = len(self.members) != 1 or self.members[0].definition.reads_pairs
        return 0 if several else self.members[0].definition.embedding_width

    @property
    def similarity(self) -> str:
        """How documents are ranked by its vectors; an ensemble and a transform have lost their lengths."""
        is_own = len(self.members) == 1 and not self.postprocessing.method
        return self.members[0].definition.similarity if is_own else "cosine"

    @property
    def vector_bytes(self) -> int:
        """Bytes per stored vector; 0 if it has no vectors, or a transform changes their width."""
        dims, dtype = (self.form.dims, self.form.dtype) if self.form else (0, "float32")
        return 0 if self.postprocessing.method else row_bytes(dims or self.width, dtype)

    def digest(self) -> str:
        """Digest of everything that determines the scores."""
        digests = [member.digest() for member in self.members] or [bm25.digest()]
        digests += [*self.postprocessing.digests(), *(self.form.digests() if self.form else ())]
        digests += [] if self.precision == "float32" else [self.precision]
        return digests[0] if len(digests) == 1 else hashlib.sha256("+".join(digests).encode()).hexdigest()

    def reading(self) -> list[dict[str, Any]]:
        """How each member reads texts, for results."""
        return [_reading(member) for member in self.members]

    def embed(self, batch_size: int = BATCH_SIZE, *, progress: bool = False) -> Embed:
        """The model for evaluations, on the devices of all processes; a `RoleEmbed` if it is a single sentence encoder."""
        return over_processes(cast(RoleEmbed | Scorer, self.own_embed(batch_size, progress=progress)))

    def own_embed(self, batch_size: int = BATCH_SIZE, *, progress: bool = False) -> Embed:
        """The same on the devices of this process."""
        embedders = [Embedder(member, compute_dtype=self.precision, batch_size=batch_size) for member in self.members]
        if len(embedders) > 1:
            return Ensemble(embedders, progress=progress)
        return embedders[0].as_embed(progress=progress)


def _reading(model: SentenceModel) -> dict[str, Any]:
    """How a model reads texts; a cross-encoder has no prompts for roles."""
    roles = {} if model.definition.reads_pairs else {role: model.role_prompts[role] for role in ROLES}
    return {
        "embedding_width": model.definition.embedding_width,
        "pooling": str(model.definition.pooling),
        "max_length": model.max_length,
        "prompt": model.prompt,
        "role_prompts": roles,
    }


@dataclass(frozen=True)
class Others:
    """Models that evaluations use besides the scored one; one object serves all scored models."""

    index: Candidate | None
    """The model that makes the index of asymmetric retrieval."""
    reranker: Candidate | None
    """A cross-encoder that reorders the first documents of a query."""
    teacher: Candidate | None = None
    """The model with which the task agreement compares."""

    @cached_property
    def searched(self) -> IndexModel | None:
        """The index model; it encodes each text once, for all scored models."""
        if self.index is None:
            return None
        embed = self.index.embed(progress=_shows_progress())
        return IndexModel(EmbeddingCache(cast(Embed, embed)), EmbeddingCache(_in_role(embed, "document")))

    @cached_property
    def scorer(self) -> Scorer | None:
        """The reranker; reads each pair once, for all scored models."""
        return ScoreCache(cast(Scorer, self.reranker.embed(progress=_shows_progress()))) if self.reranker else None

    @cached_property
    def teacher_embed(self) -> Embed | None:
        """The teacher; it encodes each text once, for all scored models and itself."""
        return model_of(self.teacher, Others(None, None), batch_size=BATCH_SIZE).embed if self.teacher else None

    def digests(self, unit: Unit) -> list[str]:
        """Digests of the other models that a unit uses."""
        asked = [getattr(self, name) for name in unit.asks]
        return [candidate.digest() for candidate in asked if candidate]


def _shows_progress() -> bool:
    return sys.stderr.isatty() and processes.is_first()


def _in_role(embed: Embed | Scorer, role: str) -> Embed:
    """Embeds sentences in a role; raises `InputError` for a cross-encoder or an ensemble, which have no vectors."""
    return cast(Embed, embed) if isinstance(embed, Scorer) else partial(cast(RoleEmbed, embed), role=role)


def model_of(candidate: Candidate, others: Others, *, batch_size: int) -> Model:
    """The candidate as the `Model` that evaluations use."""
    if candidate.spec == bm25.NAME:
        return Model(
            embed=bm25.no_vectors, embed_in_batches=lambda size: bm25.no_vectors, parameters=0, size_bytes=0,
            rank=bm25.rank, reranker=others.scorer, teacher=others.teacher_embed,
        )  # fmt: skip
    embed = candidate.embed(batch_size, progress=_shows_progress())
    after = candidate.postprocessing.of(embed)
    cached = cast(Embed, embed) if isinstance(embed, Scorer) else EmbeddingCache(after(embed))
    shared = others.teacher_embed if candidate is others.teacher else None
    return Model(
        embed=shared or cached,
        embed_in_batches=lambda size: after(candidate.own_embed(size)),
        parameters=sum(member.parameter_count for member in candidate.members),
        size_bytes=sum(weights_bytes(locate(member.source)) for member in candidate.members),
        in_roles=InRoles(*(EmbeddingCache(after(_in_role(embed, role))) for role in ("query", "document"))),
        similarity=candidate.similarity,
        index=others.searched,
        index_similarity=others.index.similarity if others.index else "cosine",
        reranker=others.scorer,
        teacher=others.teacher_embed,
    )


def candidate_of(
    spec: str, given: argparse.Namespace, postprocessing: Postprocessing, loaded: Mapping[str, Embedder]
) -> Candidate:
    """The model, or an ensemble if the spec is `A+B` (a folder's name may contain +); `bm25` is BM25.

    Args:
      loaded: models that are already in memory.
    """
    if spec == bm25.NAME:
        return Candidate(spec, ())
    roles = {role: getattr(given, f"{role}_prompt") or given.prompt for role in ROLES}
    prompts = {role: prompt for role, prompt in roles.items() if prompt}
    names = [spec] if Path(spec).exists() else spec.split("+")
    if not all(names):
        raise InputError(f"{spec!r} has an empty name next to a +; write an ensemble as A+B.")
    reading = {"pooling": given.pooling, "max_length": given.max_length, "prompt": given.prompt}
    models = [loaded[spec].model] if spec in loaded else [load_model(name, **reading) for name in names]
    members = tuple(model.with_role_prompts(prompts) for model in models)
    return Candidate(spec, members, dtype_of(given.precision).name, postprocessing)


def postprocessing_of(given: argparse.Namespace, units: Sequence[Unit]) -> Postprocessing:
    """The transform that `--postprocess` names; raises `InputError` if its text is a test set of this evaluation."""
    if not given.postprocess:
        if given.postprocess_text:
            raise InputError("--postprocess_text needs --postprocess=whiten or --postprocess=flow; add one of them.")
        return Postprocessing()
    if not given.postprocess_text:
        raise InputError(f"--postprocess={given.postprocess} is fitted on a text; add --postprocess_text=FILE.")
    if given.index_model:
        raise InputError(
            "--postprocess fits one transform per model, so it excludes --index_model; leave out one of them."
        )
    scored = {path.resolve() for unit in units for path in unit.files}
    for path in local_files(given.postprocess_text):
        if path.resolve() in scored:
            raise InputError(f"--postprocess_text={path} is a test set of this evaluation; fit on another text.")
    return Postprocessing(given.postprocess, tuple(given.postprocess_text))


def index_model_of(given: argparse.Namespace, precision: str) -> Candidate | None:
    """Loads the index model with the same `--max_length` as the scored models, and with `--document_prompt`."""
    spec = given.index_model
    if not spec:
        return None
    begin = f"--index_model={spec}"
    if _is_no_single_model(spec):
        raise InputError(f"{begin}: an index needs one sentence encoder; give its folder or hub name.")
    with errors_of(begin):
        model = load_model(spec, max_length=given.max_length)
    if model.definition.reads_pairs:
        raise InputError(f"{begin} is a cross-encoder; an index needs one sentence encoder.")
    prompts = {"document": given.document_prompt} if given.document_prompt else {}
    return Candidate(spec, (model.with_role_prompts(prompts),), precision)


def others_of(
    given: argparse.Namespace, postprocessing: Postprocessing, loaded: Mapping[str, Embedder], units: Sequence[Unit]
) -> Others:
    """Loads the other models that the units use."""
    precision, compares = dtype_of(given.precision).name, any("teacher" in unit.asks for unit in units)
    teacher = candidate_of(given.teacher, given, postprocessing, loaded) if compares else None
    return Others(index_model_of(given, precision), reranker_of(given.reranker, precision), teacher)


def reranker_of(spec: str, precision: str) -> Candidate | None:
    """Loads the reranker, with its own maximum length; None if `spec` is empty."""
    if not spec:
        return None
    model = None if _is_no_single_model(spec) else load_model(spec)
    if model is None or not model.definition.reads_pairs:
        raise InputError(f"--reranker={spec} is not a cross-encoder; give one model that scores pairs.")
    return Candidate(spec, (model,), precision)


def _is_no_single_model(spec: str) -> bool:
    """Whether a spec stands for BM25 or an ensemble; a folder's name may contain +."""
    return not Path(spec).exists() and (spec == bm25.NAME or "+" in spec)
