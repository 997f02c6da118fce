"""Options of teachers that are models: which models, how they read a sentence, and how their vectors are transformed."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import numpy as np
from jaxtyping import Float

from jaxdistill.checkpoints.model import SentenceModel, load_model
from jaxdistill.core import CountOrNone, Fraction, InputError
from jaxdistill.data import targets
from jaxdistill.data.model_text import check_reads
from jaxdistill.data.sources import split_specs
from jaxdistill.inference import Embedder
from jaxdistill.paths import cache_folder
from jaxdistill.surgery import resizing
from jaxdistill.teachers.parts.prompts import Prompting
from jaxdistill.teachers.parts.teacher import ModelContext, TargetInputs, Teacher

SEPARATOR = "|"
"""Separates the values of an option that has one per model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder(Prompting, Teacher):
    """A model that gives targets."""

    model: str = dataclasses.field(default="", kw_only=False)
    """Folder, also at `s3://` or `gs://`, `package:NAME/PATH`, hub name, or an earlier stage (`previous`, `stage2`). Empty
    if the objective needs no teacher. The kinds `several` and `labels` take several models, separated by commas; `pooling`,
    `prompt`, `query_prompt` and `document_prompt` then apply to all of them or list one value per model, separated by `|`:
    `--config.teacher.prompt="none|query: "`."""
    pooling: str = ""
    """Pooling of token states, such as `mean` or `cls`; empty: the checkpoint's. Required if it states none."""
    max_length: CountOrNone = 0
    """Maximum tokens per sentence; longer sentences are truncated. 0: the checkpoint's."""

    @property
    def is_given(self) -> bool:
        return bool(self.model)

    @property
    def models(self) -> Sequence[str]:
        return split_specs(self.model)

    def each(self) -> list[Self]:
        """One `Encoder` per model; raises `InputError` if an option has neither one value nor one per model."""
        names = self.models
        if len(names) < 2:
            return [self]
        options = ("pooling", "prompt", "query_prompt", "document_prompt")
        parts = {option: self._parts(option, len(names)) for option in options}
        return [
            dataclasses.replace(self, model=name, **{option: parts[option][index] for option in options})
            for index, name in enumerate(names)
        ]

    def _parts(self, option: str, count: int) -> list[str]:
        given = getattr(self, option)
        parts = given.split(SEPARATOR)
        if len(parts) not in (1, count):
            raise InputError(
                f"teacher.{option}={given!r} has {len(parts)} parts, separated by {SEPARATOR}; teacher.model names {count} "
                f"teachers: give one part, which applies to all, or {count}."
            )
        return parts * (count // len(parts))

    def read(self, context: ModelContext, *, frozen: bool) -> SentenceModel:
        """The one model that `model` names, with its prompts."""
        source = context.located(self.model)
        model = load_model(
            source, pooling=self.pooling, max_length=self.max_length, prompt=self.prompt, frozen=frozen,
            option="teacher.pooling",
        )  # fmt: skip
        return self.prompted(context.data, model, "teacher")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorModel(Encoder):
    """A model whose vectors are the targets."""

    dims: CountOrNone = 0
    """Above 0: truncates the teacher's vectors to this width, and normalises them again if the teacher normalises. For
    teachers trained with nested widths (Matryoshka); a narrow student then needs no head."""
    normalize: bool = True
    """False: compare vectors as pooled, without the Normalize module that ends checkpoints such as all-MiniLM-L6-v2; the
    student and its export then lack it too."""

    takes_several = False
    """Whether `model` names several models, separated by commas."""

    def load(self, context: ModelContext) -> tuple[SentenceModel, ...]:
        if not self.model:
            if self.dims:
                raise InputError(f"teacher.dims={self.dims} needs a teacher model that gives vectors; set it to 0.")
            for role, prompt in self.of_roles.items():
                if prompt:
                    raise InputError(f"teacher.{role}_prompt={prompt!r} needs a teacher model; leave it empty.")
            return ()
        return tuple(one.vectors_of(context) for one in self.each())

    def check(self) -> None:
        count = len(self.models)
        if (count > 1) != self.takes_several:
            raise InputError(
                f"teacher.model={self.model!r} names {count} model{'s' * (count > 1)}, but the teacher {self.kind} takes "
                f"{'several, separated by commas' if self.takes_several else 'one'}; choose --config=FILE.py:PRESET:teacher="
                f"{'several' if count > 1 else 'stored'}."
            )

    def vectors_of(self, context: ModelContext) -> SentenceModel:
        """The one model that `model` names, with `normalize` and `dims` applied."""
        model = self.read(context, frozen=True)
        model = model if self.normalize else model.as_pooled()
        if model.definition.reads_pairs or not self.dims:
            return model
        try:
            return resizing.first_numbers(model, self.dims)
        except InputError as error:
            raise InputError(f"teacher.{error}") from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhiteningOptions(Teacher):
    """Transforms of stored vectors before they are compared."""

    whiten: Fraction = 0.0
    """Above 0: centres stored targets and divides each principal component by its standard deviation raised to this power;
    1 is full whitening. For teachers whose vectors lie in a narrow cone, such as GTE and E5."""
    components: CountOrNone = 0
    """Above 0: keeps this many leading principal components of centred targets, for narrow students without a head."""

    @property
    def transforms(self) -> bool:
        return bool(self.whiten or self.components)

    def check_components(self, width: int) -> None:
        """Raises `InputError` if `components` exceeds the targets' width."""
        if self.components > width:
            raise InputError(
                f"teacher.components={self.components} is above the {width} numbers of the targets; set "
                f"--config.teacher.components to at most {width}."
            )

    def whitened(self, array: Float[np.ndarray, "rows _"] | targets.Selected | targets.Joined) -> targets.Stored:
        """The targets with `whiten` and `components` applied."""
        self.check_components(array.shape[1])
        return targets.Whitened(array, power=self.whiten, components=self.components) if self.transforms else array


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredVectors(VectorModel, WhiteningOptions):
    """Models whose vectors are computed once and cached on disk."""

    def width(self, widths: Sequence[int]) -> int:
        self.check_components(sum(widths))
        return self.components or sum(widths)

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        views = inputs.objective.teacher_views
        for embedder in inputs.embedders:
            check_reads(inputs.data, embedder.model, views, inputs.text)
        return tuple(self.whitened(self._of_view(inputs, view)) for view in views)

    def _of_view(self, inputs: TargetInputs, view: str) -> Float[np.ndarray, "rows _"] | targets.Joined:
        of_view = f"{inputs.text.content_digest} {view} {np.dtype(inputs.compute_dtype).name}"
        arrays = [_of_model(embedder, inputs, view, of_view) for embedder in inputs.embedders]
        return arrays[0] if len(arrays) == 1 else targets.Joined(arrays, self.shares())


def _of_model(embedder: Embedder, inputs: TargetInputs, view: str, of_view: str) -> Float[np.ndarray, "rows e"]:
    return targets.cached_vectors(
        cache_folder(inputs.data.cache_folder) / "targets",
        f"{embedder.model.digest()} {of_view}",
        lambda texts, advance: embedder.encode(texts, prompt="", show_progress_bar=advance),
        inputs.text.texts(view, embedder.model.role_prompts),
        width=embedder.width,
        what=f"targets of {embedder.model.source}",
        progress=inputs.progress,
    )
