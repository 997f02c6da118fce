"""Options of students with layers: which layers, heads and units to keep, compact tables, dropout, and prompts."""

import dataclasses
from typing import Annotated, Literal

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.core import CountOrNone, Range, Rate
from jaxdistill.data.model_text import length_read, sampled_ids
from jaxdistill.students.parts import layer_choice
from jaxdistill.students.parts.student import Student, StudentInputs
from jaxdistill.surgery import pruning, resizing
from jaxdistill.teachers.parts.prompts import Prompting
from jaxdistill.teachers.parts.teacher import ModelContext


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompted(Prompting, Student):
    """A student whose sentences can have prompts."""

    export_prompt: bool = False
    """Make `prompt` the export's default prompt, which sentence-transformers prepends to all sentences, queries and
    documents alike. False: keep the checkpoint's default."""

    def with_prompts(self, context: ModelContext, model: SentenceModel) -> SentenceModel:
        """The model with the prompts that the options name."""
        model = model.with_prompt(self.prompt) if self.prompt else model
        return self.prompted(context.data, model, "student")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layered(Student):
    """A student with layers and dropout."""

    dropout: Annotated[float, Range(below=1)] = -1.0
    """Rate of all dropout layers in training; negative: the checkpoint's rates (0.1 for BERT)."""
    drophead: Rate = 0.0
    """Probability of dropping a whole attention head in training, per sentence and layer (DropHead)."""
    embedding: CountOrNone = 0
    """Above 0: width of the embedding tables, projected to the width of the layers (SimTDE); exported as ELECTRA."""
    embedding_init: Literal["svd", "random"] = "svd"
    """Initial compact tables: `svd`, a truncated singular value decomposition of the model's, or `random` (SimTDE)."""

    def compact(self, inputs: StudentInputs, model: SentenceModel) -> SentenceModel:
        """The model with compact tables, if the options ask for them."""
        if not self.embedding:
            return model
        return resizing.compact(model, self.embedding, key=inputs.key("tables"), init=self.embedding_init)

    def in_training(self, student: SentenceModel) -> SentenceModel:
        rates = dict(hidden_dropout=self.dropout, attention_dropout=self.dropout) if self.dropout >= 0 else {}
        architecture = dataclasses.replace(student.definition.architecture, drophead=self.drophead, **rates)
        definition = dataclasses.replace(student.definition, architecture=architecture)
        return dataclasses.replace(student, definition=definition)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cutting(Layered):
    """A student that keeps some layers, heads and units of a model."""

    layers: str = ""
    """Layers to keep: empty for all, `last:3`, `first:3`, `even:3`, a list such as `1,3,5`, or `greedy:3`. `greedy`
    drops, one at a time, the layer whose removal changes the model's vectors of up to 512 sentences of `data.text`
    least. It then swaps kept and dropped layers while that helps."""
    heads: CountOrNone = 0
    """Attention heads to keep in each layer; 0: all. Heads keep their size, so this needs a family whose config.json states
    a head size."""
    intermediate: CountOrNone = 0
    """Units to keep in each feed-forward network; 0: all."""
    prune_by: Literal["magnitude", "activation"] = "activation"
    """Criterion for pruning heads and feed-forward units: the norm of their output weights, or the size of their
    contribution to the hidden states on up to 1,024 sentences of `data.text`."""

    @property
    def computes(self) -> bool:
        return self.layers.startswith(layer_choice.GREEDY) or bool(self.heads or self.intermediate)

    def cut(self, context: ModelContext, model: SentenceModel) -> SentenceModel:
        """The model with only the layers, heads and units to keep."""
        if self.layers:
            model = layer_choice.cut(self.layers, context, model)
        if self.model == "teacher":
            model = model.with_params(model.params)  # float32, which the teacher's file need not have
        if not (self.heads or self.intermediate):
            return model
        moments = None
        if self.prune_by == "activation" and not context.draft:
            ids = sampled_ids(context.data, context.student_views, model, pruning.SAMPLE)
            moments = pruning.activation_moments(model, ids, longest=length_read(context.data, model))
        return pruning.pruned(model, heads=self.heads, intermediate=self.intermediate, moments=moments)
