"""Students: one kind per file, found by name, each an options class that makes the untrained model."""

from typing import TYPE_CHECKING

from jaxdistill.core.plugins import KINDS

if TYPE_CHECKING:  # what editors complete and type checkers know; imported on use below
    from jaxdistill.models.students.cross_encoder import CrossEncoder as CrossEncoder
    from jaxdistill.models.students.cut import Cut as Cut
    from jaxdistill.models.students.fresh import Fresh as Fresh
    from jaxdistill.models.students.static import Static as Static


def __getattr__(name: str) -> type:
    """`jaxdistill.students.CrossEncoder`: the options class of that name, whose file is `cross_encoder`."""
    return KINDS["student"].class_named(name)
