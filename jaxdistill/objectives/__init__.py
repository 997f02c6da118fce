"""Training objectives: options classes that implement `core.Objective`."""

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

KINDS: dict[str, type] = {
    "ckd": CKD,
    "congen": ConGen,
    "contrastive": Contrastive,
    "cosent": CoSENT,
    "embedding": Embedding,
    "gist": GIST,
    "gram": Gram,
    "listwise": Listwise,
    "simcse": SimCSE,
    "simtde": SimTDE,
    "trans_encoder": TransEncoder,
    "weighted": Weighted,
}
"""Objectives by the names that configs use."""
