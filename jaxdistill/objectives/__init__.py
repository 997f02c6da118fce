"""Training objectives: one file each, found by name, with one options class that implements `core.Objective`."""

from typing import TYPE_CHECKING

from jaxdistill.core.plugins import KINDS

if TYPE_CHECKING:  # what editors complete and type checkers know; imported on use below
    from jaxdistill.objectives.ckd import CKD as CKD
    from jaxdistill.objectives.congen import ConGen as ConGen
    from jaxdistill.objectives.contrastive import Contrastive as Contrastive
    from jaxdistill.objectives.cosent import CoSENT as CoSENT
    from jaxdistill.objectives.embedding import Embedding as Embedding
    from jaxdistill.objectives.gist import GIST as GIST
    from jaxdistill.objectives.gram import Gram as Gram
    from jaxdistill.objectives.listwise import Listwise as Listwise
    from jaxdistill.objectives.simcse import SimCSE as SimCSE
    from jaxdistill.objectives.simtde import SimTDE as SimTDE
    from jaxdistill.objectives.trans_encoder import TransEncoder as TransEncoder
    from jaxdistill.objectives.weighted import Weighted as Weighted


def __getattr__(name: str) -> type:
    """`jaxdistill.objectives.ConGen`: the options class, from the file of that name in lower case."""
    return KINDS["objective"].class_named(name)
