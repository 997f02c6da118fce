"""Teachers whose vectors are the targets: models that run inside the training step, or vectors made before training."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from jaxdistill.core import CountOrNone, Fraction, InputError, Positive, refuse
from jaxdistill.core.paths import cache_folder
from jaxdistill.data import targets
from jaxdistill.models.checkpoints.model import SentenceModel, check_size
from jaxdistill.models.inference import Embedder
from jaxdistill.models.model_text import check_reads
from jaxdistill.models.surgery import truncated
from jaxdistill.models.teacher import Encoder, ModelContext, TargetInputs, Teacher


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorModel(Encoder):
    """Models whose vectors are the targets."""

    dims: CountOrNone = 0
    """Above 0: truncates the teacher's vectors to this width, and normalises them again if the teacher normalises. For
    teachers trained with nested widths (Matryoshka); a narrow student then needs no head."""
    normalize: bool = True
    """False: compare pooled vectors, without the Normalize module of checkpoints such as all-MiniLM-L6-v2; students then lack it too."""

    def load(self, context: ModelContext) -> tuple[SentenceModel, ...]:
        models = [options.read(context, frozen=True) for options in self.per_model()]
        if not self.normalize:
            models = [model.as_pooled() for model in models]
        return tuple(truncated(model, self.dims or model.definition.embedding_width) for model in models)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Live(VectorModel):
    """Runs inside the training step, so its views may differ at every step. Without a `model`, there is no teacher."""

    kind: str = "live"
    dropout: bool = False
    """Run the teacher with its own dropout, as DistilCSE's code does for CKD."""

    def check(self) -> None:
        if len(self.models) > 1:
            raise InputError(
                f"teacher.model={self.model!r} names {len(self.models)} models, but the teacher {self.kind} takes one; choose "
                "--config=FILE.py:PRESET:teacher=stored."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredVectors(Teacher):
    """Vectors of the text that are made before training, one for each row."""

    normalize: bool = True
    """False: compare vectors as they come; a student made from a checkpoint with a Normalize module lacks it."""
    whiten: Fraction = 0.0
    """Above 0: centres stored targets and divides each principal component by its standard deviation raised to this power;
    1 is full whitening. For teachers whose vectors lie in a narrow cone, such as GTE and E5."""
    components: CountOrNone = 0
    """Above 0: keeps this many leading principal components of centred targets, for narrow students without a head."""

    @property
    def transforms(self) -> bool:
        return bool(self.whiten or self.components)

    def width(self, widths: Sequence[int]) -> int:
        most = sum(widths)
        check_size("teacher.components", self.components, most, "the width of the targets", least=0)
        return self.components or most

    def vectors(
        self, inputs: TargetInputs, view: str
    ) -> Float[np.ndarray, "rows _"] | targets.Selected | targets.Joined:
        """The vectors of a view of the text, one for each row, before `whiten` and `components`."""
        raise NotImplementedError

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        arrays = tuple(self.vectors(inputs, view) for view in inputs.objective.teacher_views)
        if not self.transforms:
            return arrays
        return tuple(targets.Whitened(array, power=self.whiten, components=self.components) for array in arrays)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored(VectorModel, StoredVectors):
    """Computes the vectors of one or several models once and caches them on disk. Several models may differ in width and
    tokenizer: the target is the concatenation of their unit vectors, whose cosine is the weighted mean of the models'."""

    kind: str = "stored"
    weights: tuple[Positive, ...] = ()
    """Relative weight of each of several models; empty: equal weights."""

    def check(self) -> None:
        count = len(self.models)
        refuse([
            (self.weights and len(self.weights) != count,
             f"teacher.weights={self.weights} has {len(self.weights)} weights, but teacher.model names {count} teachers; give one weight for each."),
            (count > 1 and not self.normalize,
             f"teacher.normalize=False: {count} teachers' vectors are joined at unit length; set --config.teacher.normalize=True."),
        ])  # fmt: skip

    def shares(self) -> tuple[float, ...]:
        """The weight of each model, scaled so that their sum is 1."""
        weights = self.weights or (1.0,) * len(self.models)
        return tuple(weight / sum(weights) for weight in weights)

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        # All views are checked before the vectors of the first one are computed.
        for embedder in inputs.embedders:
            check_reads(inputs.data, embedder.model, inputs.objective.teacher_views, inputs.text)
        return super().stored(inputs)

    def vectors(self, inputs: TargetInputs, view: str) -> Float[np.ndarray, "rows _"] | targets.Joined:
        arrays = [_vectors_of(embedder, inputs, view) for embedder in inputs.embedders]
        return arrays[0] if len(arrays) == 1 else targets.Joined(arrays, self.shares())


def _vectors_of(embedder: Embedder, inputs: TargetInputs, view: str) -> Float[np.ndarray, "rows e"]:
    """A model's vectors of a view of the text, one for each row, from the cache or computed now."""
    model = embedder.model
    texts = inputs.text.texts(view, model.role_prompts)  # with the prompts, so `encode` adds none
    return targets.cached_vectors(
        cache_folder(inputs.data.cache_folder) / "targets",
        f"{model.digest()} {inputs.text.content_digest} {view} {np.dtype(inputs.compute_dtype).name}",
        lambda texts, advance: embedder.encode(texts, prompt="", show_progress_bar=advance),
        texts, embedder.width, what=f"targets of {model.source}", progress=inputs.progress,
    )  # fmt: skip
