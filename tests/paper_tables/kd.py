"""DistilCSE's KD, on News-5m with stage 2 and on NLI alone."""

from paper_tables import Fact, Stage, cited
from paper_tables.ckd import CODE_BATCHES, NEWS, PAPER_BATCHES, RATES, STAGE_1, STARTS, second
from paper_tables.congen import NLI_ROWS, NLI_TEXT

KD = STAGE_1 | {
    **cited("no regulariser in either paper", objective__spread_weight=0.0),
    **cited("DistilCSE eq. 3", objective__distance="squared", objective__view="text", objective__second_view=""),
    **cited("DistilCSE eq. 3: no third term", objective__third="none"),
    "objective.normalize": Fact(False, "sentemb: kd_distillation.py, MSELoss of vectors as they are"),
    **cited("sentemb: kd_distillation.py", optimizer__clip_norm=0.0, teacher__dropout=False),
    "run.seed": Fact(42, "sentemb: kd_distillation.py's default, which its script leaves"),
}


def first(student: str, *, code: bool) -> Stage:
    """Stage 1."""
    rate, _ = RATES[student]
    facts = KD | (CODE_BATCHES if code else PAPER_BATCHES)
    return Stage(NEWS, facts | cited("DistilCSE 4.2", optimizer__learning_rate=rate, student__model=STARTS[student]))


def on_nli(student: str) -> Stage:
    """Appendix A, Table 4."""
    differs = "the paper's set is SimCSE's 275K triplets; the hub has all of SNLI and MultiNLI, of which that was made"
    changed = {
        "data.text": Fact(NLI_TEXT, "DistilCSE Table 4: NLI", differs),
        "derived.steps": Fact(73_660, "DistilCSE 4.2: 20 epochs", differs),
        "derived.warmup_steps": Fact(369, "sentemb: a tenth of one epoch", differs),
    }
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
