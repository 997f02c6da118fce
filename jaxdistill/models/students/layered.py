"""Students with layers that start from a model's: all or some of them, as a sentence encoder or a cross-encoder."""

import dataclasses
import logging
from typing import Annotated, Literal

from jaxdistill.core import CountOrNone, Range, Rate
from jaxdistill.models import pruning, surgery
from jaxdistill.models.checkpoints.model import SentenceModel, locate
from jaxdistill.models.checkpoints.modules import read_modules
from jaxdistill.models.student import Headed, Prompted, Student, StudentInputs

log = logging.getLogger(__name__)


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
        """The model with compact embedding tables (SimTDE), if the options ask for them."""
        if not self.embedding:
            return model
        return surgery.compact(model, self.embedding, key=inputs.key("tables"), init=self.embedding_init)

    def in_training(self, student: SentenceModel) -> SentenceModel:
        rates = {"hidden_dropout": self.dropout, "attention_dropout": self.dropout} if self.dropout >= 0 else {}
        return student.with_architecture(drophead=self.drophead, **rates)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cutting(Layered):
    """A student that keeps some layers and units of a model."""

    layers: str = ""
    """Layers to keep: empty for all, `last:3`, `first:3`, `even:3`, a list such as `1,3,5`, or `greedy:3`. `greedy`
    drops, one at a time, the layer whose removal changes the model's vectors of up to 512 sentences of `data.text`
    least. It then swaps kept and dropped layers while that helps."""
    intermediate: CountOrNone = 0
    """Units to keep per feed-forward network: those that add most to the hidden states of up to 1,024 sentences of `data.text`. 0: all."""

    def cut(self, inputs: StudentInputs, model: SentenceModel) -> SentenceModel:
        """The model with only the layers and units to keep, and with compact tables if the options ask for them."""
        context = inputs.context
        if self.layers:
            model = surgery.from_layers(model, pruning.resolved_layers(self.layers, context, model))
        if self.model == "teacher":
            model = model.with_params(model.params)  # to float32: a frozen teacher keeps the stored dtype
        if self.intermediate:
            model = pruning.pruned(model, self.intermediate, pruning.unit_energies(context, model))
        return self.compact(inputs, model)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut(Cutting, Prompted, Headed):
    """A sentence encoder that keeps all or some of a model's layers."""

    kind: str = "cut"

    def make(self, inputs: StudentInputs) -> SentenceModel:
        return self.with_head(inputs, self.cut(inputs, self.loaded(inputs)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEncoder(Cutting):
    """Reads both sentences of a pair together and scores the pair with one number. Keeps the trained head if `model` is a cross-encoder."""

    kind: str = "cross_encoder"

    reads_pairs = True

    def make(self, inputs: StudentInputs) -> SentenceModel:
        # A cross-encoder's folder states one label; `teacher` names no folder.
        has_head = self.model != "teacher" and read_modules(locate(inputs.context.located(self.model))).labels == 1
        options = dataclasses.replace(self, pooling="") if has_head else self  # a pooling would drop the head
        model = options.cut(inputs, options.loaded(inputs))
        head = "its own, trained" if model.definition.reads_pairs else "a new"
        log.info("student: a cross-encoder of %s with %s head for pairs, and no prompt", model.source, head)
        return surgery.cross_encoder(model, key=inputs.key("head"))
