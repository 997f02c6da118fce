"""Teachers: one kind per file, found by name, each an options class that loads its models and makes its targets."""

from typing import TYPE_CHECKING

from jaxdistill.core.plugins import KINDS

if TYPE_CHECKING:  # what editors complete and type checkers know; imported on use below
    from jaxdistill.models.teachers.columns import Columns as Columns
    from jaxdistill.models.teachers.function import Function as Function
    from jaxdistill.models.teachers.labels import Labels as Labels
    from jaxdistill.models.teachers.live import Live as Live
    from jaxdistill.models.teachers.scores import Scores as Scores
    from jaxdistill.models.teachers.sentence_transformers import SentenceTransformers as SentenceTransformers
    from jaxdistill.models.teachers.several import Several as Several
    from jaxdistill.models.teachers.stored import Stored as Stored
    from jaxdistill.models.teachers.vectors import Vectors as Vectors


def __getattr__(name: str) -> type:
    """`jaxdistill.teachers.Stored`: the options class, from the file of that name in lower case."""
    return KINDS["teacher"].class_named(name)
