"""The models that `evaluate` scores, in the form that evaluations use: sentence encoders, cross-encoders, ensembles."""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from jaxdistill.checkpoints.locate import locate
from jaxdistill.checkpoints.model import SentenceModel, load_model
from jaxdistill.cli import BATCH_SIZE
from jaxdistill.cluster import processes
from jaxdistill.cluster.spread import over_processes
from jaxdistill.core import ROLES, Embed, InputError, RoleEmbed, Scorer, errors_of
from jaxdistill.data.sources import content_digest
from jaxdistill.evals.caches import EmbeddingCache
from jaxdistill.evals.evaluation import IndexModel, InRoles, Model, TestSet
from jaxdistill.evals.postprocess import whitening_on
from jaxdistill.inference import Embedder
from jaxdistill.inference.ensemble import Ensemble
from jaxdistill.ops.dense import dtype_of
from jaxdistill.training.export import weights_bytes


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How models read texts, and what is done to their vectors."""

    pooling: str = ""
    max_length: int = 0
    prompt: str = ""
    role_prompts: Mapping[str, str]
    """Maps roles to prompts that replace the checkpoint's."""
    precision: str = "float32"
    """Dtype of matrix products."""
    whitened_on: tuple[str, ...] = ()
    """The text whose vectors are whitened; empty: vectors stay as they are."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model to score, or several as an ensemble."""

    spec: str
    members: tuple[SentenceModel, ...]
    precision: str = "float32"
    whitened_on: tuple[str, ...] = ()
    dims: int = 0
    """Number of leading dimensions of its vectors; 0: all."""

    @property
    def label(self) -> str:
        """Its name in results."""
        return f"{self.spec} ({self.dims})" if self.dims else self.spec

    @property
    def width(self) -> int:
        """Width of its vectors; 0 if it has none of its own, or whitening changes it."""
        has_none = len(self.members) != 1 or self.members[0].definition.reads_pairs or self.whitened_on
        return 0 if has_none else self.dims or self.members[0].definition.embedding_width

    @property
    def similarity(self) -> str:
        """How documents are ranked by its vectors; an ensemble, whitened and truncated vectors have lost their lengths."""
        is_own = len(self.members) == 1 and not self.whitened_on and not self.dims
        return self.members[0].definition.similarity if is_own else "cosine"

    def digest(self) -> str:
        """Digest of everything that determines the scores."""
        digests = [member.digest() for member in self.members]
        digests += ["whiten", content_digest(self.whitened_on)] if self.whitened_on else []
        digests += [str(self.dims)] if self.dims else []
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
    return {
        "embedding_width": model.definition.embedding_width,
        "pooling": str(model.definition.pooling),
        "max_length": model.max_length,
        "prompt": model.prompt,
        "role_prompts": {} if model.definition.reads_pairs else {role: model.role_prompts[role] for role in ROLES},
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
        return IndexModel(EmbeddingCache(_in_role(embed, "document")), self.index.similarity)

    @cached_property
    def scorer(self) -> Scorer | None:
        """The reranker."""
        return cast(Scorer, self.reranker.embed(progress=_shows_progress())) if self.reranker else None

    @cached_property
    def teacher_embed(self) -> Embed | None:
        """The teacher; it encodes each text once, for all scored models and itself."""
        return model_of(self.teacher, Others(None, None), batch_size=BATCH_SIZE).embed if self.teacher else None

    def states(self) -> dict[str, str]:
        """Their digests by name, for the results file."""
        named = {"index_model": self.index, "reranker": self.reranker, "teacher": self.teacher}
        return {name: candidate.digest() for name, candidate in named.items() if candidate}

    def digests(self, test_set: TestSet) -> list[str]:
        """Digests of the other models that a set uses."""
        return [candidate.digest() for name in test_set.uses if (candidate := getattr(self, name))]


def _shows_progress() -> bool:
    return sys.stderr.isatty() and processes.is_first()


def _in_role(embed: Embed | Scorer, role: str) -> Embed:
    """Embeds sentences in a role; raises `InputError` for a cross-encoder or an ensemble, which have no vectors."""
    return cast(Embed, embed) if isinstance(embed, Scorer) else partial(cast(RoleEmbed, embed), role=role)


def model_of(candidate: Candidate, others: Others, *, batch_size: int) -> Model:
    """The candidate, with vectors of full width, as the `Model` that evaluations use."""
    embed = candidate.embed(batch_size, progress=_shows_progress())
    after: Callable[[Embed], Embed] = lambda embed: embed  # noqa: E731 - replaced below
    if candidate.whitened_on:
        if isinstance(embed, Scorer):
            raise InputError(
                "--postprocess=whiten transforms vectors; cross-encoders and ensembles have none, so leave it out."
            )
        whitening = cache(partial(whitening_on, embed, candidate.whitened_on))  # fitted on first use
        after = lambda embed: lambda sentences: whitening()(np.asarray(embed(sentences)))  # noqa: E731
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
        reranker=others.scorer,
        teacher=others.teacher_embed,
    )


def truncated(model: Model, dims: int) -> Model:
    """The model, and the index that it searches, with the first `dims` numbers of each vector, at unit length."""

    def cut(embed: Embed) -> Embed:
        def leading(sentences: Sequence[str]) -> np.ndarray:
            vectors = np.asarray(np.asarray(embed(sentences))[:, :dims], np.float32)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            return vectors / np.where(lengths == 0, np.float32(1), lengths)

        return leading

    return replace(
        model,
        embed=cut(model.embed),
        in_roles=model.in_roles and InRoles(*map(cut, model.in_roles)),
        index=model.index and IndexModel(cut(model.index.document), "cosine"),
        similarity="cosine",
    )


def candidate_of(spec: str, reading: Reading, loaded: Mapping[str, Embedder]) -> Candidate:
    """The model, or an ensemble if the spec is `A+B` (a folder's name may contain +).

    Args:
      loaded: models that are already in memory.
    """
    names = [spec] if Path(spec).exists() else spec.split("+")
    if not all(names):
        raise InputError(f"{spec!r} has an empty name next to a +; write an ensemble as A+B.")
    read = partial(load_model, pooling=reading.pooling, max_length=reading.max_length, prompt=reading.prompt)
    models = [loaded[spec].model] if spec in loaded else [read(name) for name in names]
    prompts = {role: reading.role_prompts.get(role) or reading.prompt for role in ROLES}
    prompts = {role: prompt for role, prompt in prompts.items() if prompt}
    members = tuple(model.with_role_prompts(prompts) for model in models)
    return Candidate(
        spec=spec, members=members, precision=dtype_of(reading.precision).name, whitened_on=reading.whitened_on
    )


def index_model_of(spec: str, reading: Reading) -> Candidate | None:
    """Loads the index model, with the scored models' length and prompt for documents; None if `spec` is empty."""
    model = _single_model("index_model", spec, reads_pairs=False, max_length=reading.max_length) if spec else None
    prompts = {role: prompt for role, prompt in reading.role_prompts.items() if role == "document" and prompt}
    members = (model.with_role_prompts(prompts),) if model else ()
    return Candidate(spec=spec, members=members, precision=dtype_of(reading.precision).name) if model else None


def reranker_of(spec: str, reading: Reading) -> Candidate | None:
    """Loads the reranker, with its own maximum length; None if `spec` is empty."""
    model = _single_model("reranker", spec, reads_pairs=True) if spec else None
    return Candidate(spec=spec, members=(model,), precision=dtype_of(reading.precision).name) if model else None


def _single_model(option: str, spec: str, *, reads_pairs: bool, max_length: int = 0) -> SentenceModel:
    """Loads a model of one kind; raises `InputError` for another kind or an ensemble."""
    is_ensemble = not Path(spec).exists() and "+" in spec
    with errors_of(f"--{option}={spec}"):
        model = None if is_ensemble else load_model(spec, max_length=max_length)
    if model is None or model.definition.reads_pairs != reads_pairs:
        needed = "cross-encoder, which scores pairs" if reads_pairs else "sentence encoder"
        raise InputError(f"--{option}={spec} is not one {needed}; give its folder or hub name.")
    return model
