"""Several teachers whose stored vectors are concatenated."""

import dataclasses

from jaxdistill.core import Positive, refuse
from jaxdistill.models.teacher import StoredVectors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Several(StoredVectors):
    """Several models, of any width and tokenizer, whose vectors are computed once and cached on disk. The target is one vector,
    the concatenation of the teachers' unit vectors; its cosines are the weighted mean of theirs."""

    kind: str = "several"
    weights: tuple[Positive, ...] = ()
    """Relative weight of each of several teachers; empty: equal weights."""

    takes_several = True

    def check(self) -> None:
        super().check()
        count = len(self.models)
        refuse([
            (self.weights and len(self.weights) != count,
             f"teacher.weights={self.weights} has {len(self.weights)} weights, but teacher.model names {count} teachers; give one weight for each."),
            (not self.normalize,
             f"teacher.normalize=False: {count} teachers' vectors are joined at unit length; set --config.teacher.normalize=True."),
        ])  # fmt: skip

    def shares(self) -> tuple[float, ...]:
        weights = self.weights or (1.0,) * len(self.models)
        return tuple(weight / sum(weights) for weight in weights)
