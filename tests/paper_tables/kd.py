"""DistilCSE's KD, on News-5m with stage 2 and on NLI alone."""

from paper_tables import Stage, cited, facts
from paper_tables.ckd import CODE_BATCHES, NEWS, PAPER_BATCHES, RATES, STAGE_1, STARTS, second
from paper_tables.congen import NLI_ROWS, NLI_TEXT

KD = STAGE_1 | facts("""
no regulariser in either paper | objective.spread_weight=0.0
DistilCSE eq. 3 | objective.distance=squared, objective.view=text, objective.second_view=, objective.third=none
sentemb: kd_distillation.py, MSELoss of vectors as they are | objective.normalize=False
sentemb: kd_distillation.py | optimizer.clip_norm=0.0, teacher.dropout=False
sentemb: kd_distillation.py's default, which its script leaves | run.seed=42
""")


def first(student: str, *, code: bool) -> Stage:
    """Stage 1."""
    rate, _ = RATES[student]
    found = KD | (CODE_BATCHES if code else PAPER_BATCHES)
    return Stage(NEWS, found | cited("DistilCSE 4.2", optimizer__learning_rate=rate, student__model=STARTS[student]))


def on_nli(student: str) -> Stage:
    """Appendix A, Table 4."""
    differs = "the paper's set is SimCSE's 275K triplets; the hub has all of SNLI and MultiNLI, of which that was made"
    changed = facts(f"""
DistilCSE Table 4: NLI | data.text={NLI_TEXT} | {differs}
DistilCSE 4.2: 20 epochs | derived.steps=73660 | {differs}
sentemb: a tenth of one epoch | derived.warmup_steps=369 | {differs}
""")
    return Stage(NLI_ROWS, first(student, code=False).facts | changed)


TABLE = {
    f"{preset}{argument}": stages(student or "bert-base")
    for preset, stages in {
        "paper": lambda student: [first(student, code=False), second(student, code=False)],
        "code": lambda student: [first(student, code=True), second(student, code=True)],
        "paper-nli": lambda student: [on_nli(student)],
    }.items()
    for student, argument in {"": "", **{name: f":{name}" for name in STARTS}}.items()
}
