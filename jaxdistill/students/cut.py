"""A student that keeps all or some of a model's layers."""

import dataclasses

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.students.parts.heads import Headed
from jaxdistill.students.parts.layers import Cutting, Prompted
from jaxdistill.students.parts.student import Ground
from jaxdistill.students.parts.vocabulary import Trimming


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut(Cutting, Prompted, Trimming, Headed):
    """A sentence encoder that keeps all or some of a model's layers."""

    kind: str = "cut"

    def make(self, ground: Ground) -> SentenceModel:
        setting = ground.setting
        model = self.with_prompts(setting, self.loaded(ground))
        model = self.cut(setting, self.trimmed(setting, model))
        return self.with_head(ground, self.compact(ground, model))
