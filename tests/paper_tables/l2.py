"""L2 as a baseline of ConGen, whose code is not public."""

from paper_tables import Fact, Stage, cited, facts
from paper_tables.congen import MULTILINGUAL, SILENT, TABLE_7, TRANSLATIONS, of_student, rows_of, steps

L2 = facts("""
no regulariser in either paper | objective.spread_weight=0.0
ConGen 4.2: L2 | objective.distance=squared, objective.second_view=, objective.third=none
ConGen 3.1: vectors of unit length | objective.normalize=True
ConGen 4.2: teacher and student read x1 | objective.view=text
ours | optimizer.eps=1e-8 | ConGen's own 1e-6 is above the gradients of a mean square of unit vectors: the student hardly moves
""")


def row(student: str, changed: dict[str, Fact], *, sequences: int) -> list[Stage]:
    """A baseline's row of Tables 1 and 3."""
    found = of_student(student, SILENT) | L2 | steps(rows_of(student), sequences)
    return [Stage(rows_of(student), found | changed)]


def english_alone(student: str) -> list[Stage]:
    """L2 reads no second view, and so no translations."""
    columns = cited(TRANSLATIONS, data__columns=[["text", "en"]]) if student in MULTILINGUAL else {}
    return row(student, columns, sequences=1)


TABLE = {"paper": english_alone("bert-base")} | {f"paper:{student}": english_alone(student) for student in TABLE_7}
