"""A teacher that runs inside the training step."""

import dataclasses

from jaxdistill.models.teacher import VectorModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Live(VectorModel):
    """Runs inside the training step, so its views may differ at every step. Without a `model`, there is no teacher."""

    kind: str = "live"
    dropout: bool = False
    """Run the teacher with its own dropout, as DistilCSE's code does for CKD."""

    is_live = True
