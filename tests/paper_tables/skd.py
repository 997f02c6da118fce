"""SKD as a baseline of ConGen, whose code is not public, and as the code of CL-ReLKT has it (github.com/mrpeerat/CL-ReLKT)."""

from paper_tables import cited
from paper_tables.congen import TABLE_1, second_view
from paper_tables.l2 import row

PAPER = cited("ConGen 4.2: a third term between the student's views", objective__third="views")
CODE = {
    **cited("CL-ReLKT: the teacher's document, the student's query", objective__third="teacher"),
    **cited("ours: the teacher reads augmented views, which change each epoch", teacher__kind="live"),
}


def skd_row(student: str, changed: dict):
    return row(student, {"objective.second_view": second_view(student)} | changed, sequences=2)


TABLE = {
    f"{preset}{argument}": skd_row(argument[1:] or "bert-base", changed)
    for preset, changed in (("paper", PAPER), ("code", CODE))
    for argument in ("", *(f":{student}" for student in TABLE_1))
}
