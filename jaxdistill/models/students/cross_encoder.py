"""A cross-encoder, which scores a pair of sentences with one number."""

import dataclasses
import logging

from jaxdistill.models import surgery
from jaxdistill.models.checkpoints.model import SentenceModel, labels_of
from jaxdistill.models.student import Cutting, StudentInputs

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEncoder(Cutting):
    """Reads both sentences of a pair together and scores the pair with one number. If `model` is a cross-encoder, the student
    keeps its trained head."""

    kind: str = "cross_encoder"

    reads_pairs = True

    def make(self, inputs: StudentInputs) -> SentenceModel:
        has_head = self.model != "teacher" and labels_of(inputs.context.located(self.model)) == 1
        options = dataclasses.replace(self, pooling="") if has_head else self
        model = options.cut(inputs, options.loaded(inputs))
        origin = "its own, trained" if model.definition.reads_pairs else "a new"
        log.info("student: a cross-encoder of %s with %s head for pairs, and no prompt", model.source, origin)
        return surgery.cross_encoder(model, key=inputs.key("head"))
