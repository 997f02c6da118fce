"""Teachers: options classes that load their models and make their targets."""

from jaxdistill.models.teachers.columns import Columns as Columns
from jaxdistill.models.teachers.function import Function as Function
from jaxdistill.models.teachers.labels import Labels as Labels
from jaxdistill.models.teachers.live import Live as Live
from jaxdistill.models.teachers.scores import Scores as Scores
from jaxdistill.models.teachers.sentence_transformers import SentenceTransformers as SentenceTransformers
from jaxdistill.models.teachers.several import Several as Several
from jaxdistill.models.teachers.stored import Stored as Stored
from jaxdistill.models.teachers.vectors import Vectors as Vectors

KINDS: dict[str, type] = {
    "columns": Columns,
    "function": Function,
    "labels": Labels,
    "live": Live,
    "scores": Scores,
    "sentence_transformers": SentenceTransformers,
    "several": Several,
    "stored": Stored,
    "vectors": Vectors,
}
"""By the names that configs use."""
