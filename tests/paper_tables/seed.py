"""SEED, Fang et al., ICLR 2021 (code: github.com/jacobswan1/SEED), and what ConGen's Table 5 calls SEED."""

from paper_tables import Fact, Stage, cited, facts
from paper_tables.congen import NLI_ROWS, TABLE_1, of_student, row, steps

UNREAD = "ours: not read with alpha 1"
CODE = of_student("bert-base", "ConGen Table 7, SEED is for images") | steps(NLI_ROWS, 1)
CODE |= facts(f"""
SEED: one view | objective.alpha=1.0, objective.control_view=text
{UNREAD} | objective.generalize_view=delete_words
SEED: defaults of its code | objective.student_temperature=0.2, objective.teacher_temperature=1e-4
SEED: its paper's queue | objective.queue_size=65536
SEED: builder.py, the own positive and the queue | objective.key_set=queue+own
SEED: builder.py, torch.randn | objective.queue_init=random
""")


def control_alone(student: str) -> list[Stage]:
    """ConGen's row with its first term alone (Table 5, 100 %)."""
    (stage,) = row(student)
    changed = cited("ConGen Table 5, control only", objective__alpha=1.0) | steps(stage.rows, 1)
    return [Stage(stage.rows, stage.facts | changed | {"objective.generalize_view": Fact("delete_words", UNREAD)})]


TABLE = {
    "code": [Stage(NLI_ROWS, CODE)],
    "congen": control_alone("bert-base"),
    **{f"congen:{student}": control_alone(student) for student in TABLE_1},
}
