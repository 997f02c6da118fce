"""Dual-L2 as a baseline of ConGen, whose code is not public."""

from paper_tables.congen import TABLE_7, second_view
from paper_tables.l2 import row


def dual_row(student: str):
    """ConGen 4.2: a second term for the second view."""
    return row(student, {"objective.second_view": second_view(student)}, sequences=2)


TABLE = {"paper": dual_row("bert-base")} | {f"paper:{student}": dual_row(student) for student in TABLE_7}
