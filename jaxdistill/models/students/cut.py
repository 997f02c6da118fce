"""A student that keeps all or some of a model's layers."""

import dataclasses

from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.student import Cutting, Headed, Prompted, StudentInputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut(Cutting, Prompted, Headed):
    """A sentence encoder that keeps all or some of a model's layers."""

    kind: str = "cut"

    def make(self, inputs: StudentInputs) -> SentenceModel:
        context = inputs.context
        model = self.with_prompts(context, self.loaded(inputs))
        model = self.cut(context, self.trimmed(context, model))
        return self.with_head(inputs, self.compact(inputs, model))
