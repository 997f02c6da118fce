"""Teachers: options classes that load models and make targets, by the names that configs use."""

from jaxdistill.models.teachers.labels import Labels as Labels
from jaxdistill.models.teachers.outside import Function as Function
from jaxdistill.models.teachers.outside import SentenceTransformers as SentenceTransformers
from jaxdistill.models.teachers.own import Columns as Columns
from jaxdistill.models.teachers.own import Scores as Scores
from jaxdistill.models.teachers.own import Vectors as Vectors
from jaxdistill.models.teachers.vectors import Live as Live
from jaxdistill.models.teachers.vectors import Stored as Stored

_CLASSES = (Columns, Function, Labels, Live, Scores, SentenceTransformers, Stored, Vectors)
KINDS: dict[str, type] = {teacher.kind: teacher for teacher in _CLASSES}
