"""A student that keeps all or some of a model's layers."""

import dataclasses

from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.student import Cutting, Headed, Prompted, StudentInputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut(Cutting, Prompted, Headed):
    """A sentence encoder that keeps all or some of a model's layers."""

    kind: str = "cut"

    def make(self, inputs: StudentInputs) -> SentenceModel:
        return self.with_head(inputs, self.cut(inputs, self.loaded(inputs)))
