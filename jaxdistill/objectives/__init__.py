"""Training objectives: one file each, found by name, with one options class that implements `core.Objective`."""

from typing import TYPE_CHECKING, Any

from jaxdistill.config import options_from
from jaxdistill.config.kinds import Kinds
from jaxdistill.core import READS, InputError, Objective

OBJECTIVES = Kinds(section="objective", package=__name__, member="scored", base="core.Objective")
available = OBJECTIVES.available
options_class = OBJECTIVES.options_class
name_of = OBJECTIVES.name_of
default_options = OBJECTIVES.default_options

if TYPE_CHECKING:  # what editors complete and type checkers know; imported on use below
    from jaxdistill.objectives.ckd import CKD as CKD
    from jaxdistill.objectives.congen import ConGen as ConGen
    from jaxdistill.objectives.cosent import CoSENT as CoSENT
    from jaxdistill.objectives.embedding import Embedding as Embedding
    from jaxdistill.objectives.gist import GIST as GIST
    from jaxdistill.objectives.gram import Gram as Gram
    from jaxdistill.objectives.listwise import Listwise as Listwise
    from jaxdistill.objectives.simcse import SimCSE as SimCSE
    from jaxdistill.objectives.simtde import SimTDE as SimTDE
    from jaxdistill.objectives.trans_encoder import TransEncoder as TransEncoder


def __getattr__(name: str) -> type:
    """`jaxdistill.objectives.ConGen`: the options class, from the file of that name in lower case."""
    return OBJECTIVES.class_named(name)


def make(name: str, options: dict[str, Any]) -> Objective:
    """Makes the objective `name`; raises `InputError` for an unknown name, option or `reads`, or a value of a wrong type."""
    objective = options_from(options_class(name), options, prefix="objective")
    if unknown := set(objective.reads) - set(READS):
        raise InputError(f"objective {name}: reads has {', '.join(sorted(unknown))}; it may have {', '.join(READS)}.")
    return objective
