"""The models that `evaluate` scores, in the form that evaluations use: sentence encoders, cross-encoders, ensembles."""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from jaxdistill.checkpoints.model import SentenceModel, load_model, locate
from jaxdistill.cli import BATCH_SIZE
from jaxdistill.cluster import processes
from jaxdistill.cluster.spread import over_processes
from jaxdistill.core import ROLES, Embed, InputError, RoleEmbed, Scorer, errors_of
from jaxdistill.data.sources import content_digest
from jaxdistill.evals.caches import EmbeddingCache
from jaxdistill.evals.evaluation import Model
from jaxdistill.evals.postprocess import whitening_on
from jaxdistill.inference import Embedder
from jaxdistill.inference.embed import Ensemble
from jaxdistill.ops.dense import dtype_of
from jaxdistill.training.export import weights_bytes


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model to score, or several as an ensemble."""

    spec: str
    members: tuple[SentenceModel, ...]
    precision: str = "float32"
    """Dtype of matrix products."""
    whitened_on: tuple[str, ...] = ()
    """The text whose vectors are whitened; empty: vectors stay as they are."""
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
        """How each member reads texts, for results; a cross-encoder has no prompts for roles."""
        return [
            {
                "embedding_width": member.definition.embedding_width,
                "pooling": str(member.definition.pooling),
                "max_length": member.max_length,
                "prompt": member.prompt,
                "role_prompts": {
                    role: member.role_prompts[role] for role in ROLES if not member.definition.reads_pairs
                },
            }
            for member in self.members
        ]

    def embed(self, batch_size: int = BATCH_SIZE) -> Embed:
        """The model for evaluations, on the devices of all processes; a `RoleEmbed` if it is a single sentence encoder."""
        shows_progress = sys.stderr.isatty() and processes.is_first()
        return over_processes(cast(RoleEmbed | Scorer, self.local_embed(batch_size, progress=shows_progress)))

    def local_embed(self, batch_size: int, *, progress: bool = False) -> Embed:
        """The same on the devices of this process."""
        embedders = [Embedder(member, compute_dtype=self.precision, batch_size=batch_size) for member in self.members]
        return (
            Ensemble(embedders, progress=progress) if len(embedders) > 1 else embedders[0].as_embed(progress=progress)
        )


def in_role(embed: Embed | Scorer, role: str) -> Embed:
    """Embeds sentences in a role; raises `InputError` for a cross-encoder or an ensemble, which have no vectors."""
    return cast(Embed, embed) if isinstance(embed, Scorer) else partial(cast(RoleEmbed, embed), role=role)


def other_models(others: Mapping[str, Candidate]) -> dict[str, Any]:
    """The fields of a `Model` that are the same for all scored models: each encodes a text once for all of them."""
    fields: dict[str, Any] = {}
    if index := others.get("index_model"):
        fields |= {"index": EmbeddingCache(in_role(index.embed(), "document")), "index_similarity": index.similarity}
    if teacher := others.get("teacher"):
        fields["teacher"] = model_of(teacher, {}, batch_size=BATCH_SIZE).embed
    return fields


def model_of(candidate: Candidate, other_fields: Mapping[str, Any], *, batch_size: int) -> Model:
    """The candidate, with vectors of full width, as the `Model` that evaluations use."""
    embed = candidate.embed(batch_size)
    after: Callable[[Embed], Embed] = lambda embed: embed  # noqa: E731 - replaced below
    if candidate.whitened_on:
        if isinstance(embed, Scorer):
            raise InputError(
                "postprocess=whiten transforms vectors; cross-encoders and ensembles have none, so leave it out."
            )
        whitening = cache(partial(whitening_on, embed, candidate.whitened_on))  # fitted on first use
        after = lambda embed: lambda sentences: whitening()(np.asarray(embed(sentences)))  # noqa: E731
    return Model(
        embed=cast(Embed, embed) if isinstance(embed, Scorer) else EmbeddingCache(after(embed)),
        embed_in_batches=lambda size: after(candidate.local_embed(size)),
        parameters=sum(member.parameter_count for member in candidate.members),
        size_bytes=sum(weights_bytes(locate(member.source)) for member in candidate.members),
        query=EmbeddingCache(after(in_role(embed, "query"))),
        document=EmbeddingCache(after(in_role(embed, "document"))),
        similarity=candidate.similarity,
        **other_fields,
    )


def truncated(model: Model, dims: int) -> Model:
    """The model, and the index that it searches, with the first `dims` numbers of each vector, at unit length."""

    def cut(embed: Embed) -> Embed:
        def leading(sentences: Sequence[str]) -> np.ndarray:
            vectors = np.asarray(np.asarray(embed(sentences))[:, :dims], np.float32)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            return vectors / np.where(lengths == 0, np.float32(1), lengths)

        return leading

    roles = {name: cut(embed) for name in ("query", "document", "index") if (embed := getattr(model, name))}
    return replace(model, embed=cut(model.embed), similarity="cosine", index_similarity="cosine", **roles)


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Loads models with the options of an evaluation."""

    pooling: str
    max_length: int
    prompt: str
    role_prompts: Mapping[str, str]
    """Maps roles to prompts that replace the checkpoint's; empty: the prompt of all texts does."""
    precision: str
    whitened_on: tuple[str, ...]
    loaded: Mapping[str, Embedder]
    """Models that are already in memory, by name."""

    def candidate(self, spec: str) -> Candidate:
        """A model, or an ensemble if the spec is `A+B` (a folder's name may contain +)."""
        names = [spec] if Path(spec).exists() else spec.split("+")
        if not all(names):
            raise InputError(f"{spec!r} has an empty name next to a +; write an ensemble as A+B.")
        options = {"pooling": self.pooling, "max_length": self.max_length, "prompt": self.prompt}
        models = [load_model(name, **options) for name in names if spec not in self.loaded]
        prompts = {role: prompt for role in ROLES if (prompt := self.role_prompts[role] or self.prompt)}
        members = [model.with_role_prompts(prompts) for model in models or [self.loaded[spec].model]]
        precision = dtype_of(self.precision).name
        return Candidate(spec=spec, members=tuple(members), precision=precision, whitened_on=self.whitened_on)

    def index_model(self, spec: str) -> Candidate:
        """The index model, with the scored models' length and prompt for documents; raises `InputError` if it has no vectors."""
        with errors_of(f"index_model={spec}"):
            is_ensemble = not Path(spec).exists() and "+" in spec
            model = None if is_ensemble else load_model(spec, max_length=self.max_length)
        if model is None or model.definition.reads_pairs:
            raise InputError(f"index_model={spec} is not one sentence encoder; give its folder or hub name.")
        if prompt := self.role_prompts["document"]:
            model = model.with_role_prompts({"document": prompt})
        return Candidate(spec=spec, members=(model,), precision=dtype_of(self.precision).name)
