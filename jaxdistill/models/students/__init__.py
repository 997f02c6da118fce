"""Students: options classes that make the untrained model, by the names that configs use."""

from jaxdistill.models.students.fresh import Fresh as Fresh
from jaxdistill.models.students.layered import CrossEncoder as CrossEncoder
from jaxdistill.models.students.layered import Cut as Cut
from jaxdistill.models.students.static import Static as Static

KINDS: dict[str, type] = {student.kind: student for student in (CrossEncoder, Cut, Fresh, Static)}
