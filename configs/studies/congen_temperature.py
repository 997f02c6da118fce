"""ConGen's two temperatures (its Table 8).

    python -m jaxdistill.sweep --grid=congen_temperature --workdir=runs/temperature --config.data.text=TEXT
    python -m jaxdistill.sweep --grid=congen_temperature --workdir=runs/temperature-tiny \\
      --config=configs/congen.py:paper:bert-tiny

STS-B dev (x 100) in the paper, BERT-Tiny / BERT-base:

    student          0.1            0.09           0.07           0.05
    teacher 0.1    83.69 / 86.02  83.71 / 85.37  82.15 / 83.85  79.75 / 83.58
    teacher 0.05   84.02 / 86.17  84.14 / 86.25  84.18 / 86.31  84.83 / 85.96
    teacher 0.01   84.08 / 86.22  84.18 / 86.23  84.16 / 86.09  83.79 / 85.19

The best student temperature is 0.05 for BERT-Tiny and 0.07 for BERT-base, both with 0.05 for the teacher. A student
with a lower temperature than a teacher at 0.1 loses most. As in the paper, the points have both terms of the loss
(alpha 0.5); `minilm-l3` alone has only the control term.
"""

CONFIG = "configs/congen.py:minilm-l3"
GRID = {
    "objective.alpha": [0.5],
    "objective.student_temperature": [0.1, 0.09, 0.07, 0.05],
    "objective.teacher_temperature": [0.1, 0.05, 0.01],
}
