"""DistilCSE's CKD, Table 3's start from SimCSE, and CKD as ConGen's authors adapted it."""

from paper_tables import Fact, Stage, cited, congen
from paper_tables.simcse import QUARTER, SUPERVISED, TRIPLETS

NEWS = 5_000_000
"""Sentences of News-5m, DistilCSE section 4.1."""
STARTS = {
    "bert-base": "google-bert/bert-base-uncased",
    "tinybert-l6": "nreimers/TinyBERT_L-6_H-768_v2",
    "tinybert-l4": "nreimers/TinyBERT_L-4_H-312_v2",
}
RATES = {"bert-base": (2e-4, 5e-5), "tinybert-l6": (3e-4, 1e-5), "tinybert-l4": (3e-4, 5e-5)}
"""Of the two stages, DistilCSE section 4.2."""
NONE_CUT = cited(
    "ours: the checkpoint as it is", student__layers="", student__kind="cut", student__width=0, student__embedding=0
)
NONE_CUT |= cited("ours: not read without a compact embedding", student__embedding_init="svd")
LAST_BATCH = "the code reads the last, partial batch of an epoch too; every batch is full here"


def optimizer(source: str, **changed) -> dict[str, Fact]:
    """What the three scripts of DistilCSE share: transformers' AdamW and a cosine."""
    facts = cited(
        source,
        optimizer__schedule="cosine",
        optimizer__weight_decay=0.0,
        optimizer__b1=0.9,
        optimizer__b2=0.98,
        optimizer__eps=1e-8,
        optimizer__bias_correction=True,
        optimizer__eps_before_correction=True,
    )
    return facts | cited("ours: nothing is decayed", optimizer__decay="matrices") | cited(source, **changed)


WHOLE = cited("ours: no sentence of an evaluation is longer", student__max_length=512)
STAGE_1 = NONE_CUT | {
    **optimizer("sentemb: kd_distillation.py, ckd_contrastive.py"),
    **cited(
        "sentemb: kd_distillation.py, ckd_contrastive.py",
        data__max_length=64, data__dedupe=False, teacher__model="princeton-nlp/sup-simcse-roberta-large",
        teacher__pooling="pooler", teacher__max_length=64, teacher__kind="live", student__pooling="pooler",
        student__head="linear", student__head_init="uniform", student__keep_head=False, student__dropout=-1.0,
        student__drophead=0.0, evals__every=125, evals__best="sts-b-dev/spearman",
    ),
    **WHOLE,
    **cited("DistilCSE 4.1: News-5m", data__text="news5m.txt"),
    **cited("DistilCSE 4.2", run__epochs=20.0, run__steps=0),
    **cited("DistilCSE 4.2 and scripts: 3 epochs without gain", evals__patience=0, evals__patience_epochs=3.0),
    **cited("DistilCSE scripts: nothing is evaluated before training", evals__untrained=False),
}  # fmt: skip
STAGE_2 = NONE_CUT | {
    **optimizer("sentemb: nli_finetune.py", optimizer__clip_norm=1.0),
    **cited(
        "sentemb: nli_finetune.py",
        data__max_length=64, data__dedupe=False, data__columns=TRIPLETS, student__model="previous", student__head="none",
        student__dropout=-1.0, student__drophead=0.0, evals__best="sts-b-dev/spearman", evals__every=125, evals__untrained=False, evals__patience=0, evals__patience_epochs=0.0, run__epochs=5.0, run__steps=0,
        run__seed=1111,
    ),
    **WHOLE,
    **cited("sentemb: nli_finetune.py, its pooler is what the stage before hands on", student__pooling=""),
    **cited("ours: there is no teacher", teacher__model="", teacher__kind="live", teacher__dropout=False),
    **cited("ours: there is no teacher, not read", teacher__pooling="", teacher__max_length=0),
    **cited("ours: there is no head, not read", student__head_init="uniform", student__keep_head=True),
    **cited(
        "DistilCSE eq. 7",
        objective__views=("text", "positive", "negative"), objective__negative_weight=1.0, objective__among="others",
    ),
    **cited("SimCSE's; DistilCSE eq. 7 leaves it open", objective__temperature=0.05),
}  # fmt: skip


def batches(size: int, source: str, *, steps: int, warmup: int) -> dict[str, Fact]:
    """Batch, steps and warm-up of a first stage on News-5m."""
    return cited(source, data__batch_size=size, derived__sequences_per_step=size) | {
        "derived.steps": Fact(steps, "DistilCSE 4.2: 20 epochs", LAST_BATCH),
        "derived.warmup_steps": Fact(warmup, "sentemb: 0.1 * len(dataloader), a tenth of one epoch"),
    }


PAPER_BATCHES = batches(512, "DistilCSE 4.2", steps=195_300, warmup=977)
CODE_BATCHES = batches(4096, "sentemb: *_run.sh, 8 processes of 512", steps=24_400, warmup=122)


def second(student: str, *, code: bool) -> Stage:
    """Stage 2 of CKD and of KD."""
    _, rate = RATES[student]
    size, source = (512, "sentemb: nli_run.sh, 4 processes of 128") if code else (128, "DistilCSE 4.2")
    steps, warmup = (2690, 54) if code else (10_765, 216)
    facts = STAGE_2 | cited(source, data__batch_size=size, derived__sequences_per_step=3 * size)
    facts |= cited("DistilCSE 4.2", optimizer__learning_rate=rate)
    if code:
        facts["optimizer.clip_norm"] = Fact(1.0, "sentemb: nli_finetune.py", QUARTER)
    facts["objective.learned_scale"] = (
        Fact("linear", "sentemb: nli_run.sh temp=20, nli_finetune.py: above 5 the parameter is the scale")
        if code
        else Fact("none", "DistilCSE eq. 7: a hyperparameter")
    )
    facts["derived.steps"] = Fact(steps, "DistilCSE 4.2: 5 epochs", LAST_BATCH + "; the csv's header is no triplet")
    facts["derived.warmup_steps"] = Fact(warmup, "sentemb: nli_finetune.py, a tenth of one epoch")
    return Stage(275_601, facts)


def first(student: str, *, code: bool) -> Stage:
    """Stage 1 of CKD."""
    rate, _ = RATES[student]
    facts = STAGE_1 | (CODE_BATCHES if code else PAPER_BATCHES)
    facts |= cited("DistilCSE 4.2", optimizer__learning_rate=rate, student__model=STARTS[student])
    facts |= cited("sentemb: ckd_contrastive.py", optimizer__clip_norm=1.0, run__seed=1111, objective__view="text")
    facts["objective.queue_size"] = Fact(
        65536,
        "DistilCSE 4.2",
        "the code has a queue for each of 8 processes: 512 + 65,536 negatives; here the whole batch and one queue are",
    )
    if code:
        facts |= cited(
            "sentemb: ckd_contrastive_run.sh temp=1, temp_exp=1", objective__temperature=0.36787944117144233,
            objective__learned_scale="log",
        )  # fmt: skip
        facts |= cited("sentemb: ckd_contrastive.py, model.train() on both", teacher__dropout=True)
    else:
        facts |= cited("DistilCSE eq. 5: a hyperparameter", objective__learned_scale="none")
        facts |= cited("SimCSE's; DistilCSE names none", objective__temperature=0.05)
        facts |= cited("DistilCSE 3.1: the teacher is fixed", teacher__dropout=False)
    return Stage(NEWS, facts)


def from_simcse(student: str) -> list[Stage]:
    """Table 3; the TinyBERTs are trained by SimCSE first, as Table 2's rows of small SimCSE models are."""
    stages = [first(student, code=False), second(student, code=False)]
    if student == "bert-base":
        start = cited("DistilCSE Table 3", student__model="princeton-nlp/sup-simcse-bert-base-uncased")
        return [Stage(NEWS, stages[0].facts | start), stages[1]]
    start = cited("DistilCSE Table 3", student__model="previous", student__pooling="")
    before = SUPERVISED | cited("DistilCSE Table 3", student__model=STARTS[student])
    return [Stage(275_601, before), Stage(NEWS, stages[0].facts | start), stages[1]]


def adapted(student: str) -> list[Stage]:
    """ConGen's Table 1; the paper gives no settings of it."""
    facts = congen.of_student(student, congen.SILENT) | congen.steps(congen.NLI_ROWS, 1)
    facts |= cited("DistilCSE 4.2", objective__queue_size=65536)
    facts |= cited("ConGen 4.2: DistilCSE's, whose paper fixes it", objective__learned_scale="none")
    facts |= cited("SimCSE's; ConGen names none", objective__temperature=0.05)
    return [Stage(congen.NLI_ROWS, facts | cited("ConGen 4.2", objective__view="text"))]


TABLE = {
    f"{preset}{argument}": stages(student or "bert-base")
    for preset, stages in {
        "paper": lambda student: [first(student, code=False), second(student, code=False)],
        "code": lambda student: [first(student, code=True), second(student, code=True)],
        "paper-simcse": from_simcse,
    }.items()
    for student, argument in {"": "", **{name: f":{name}" for name in STARTS}}.items()
}
TABLE |= {"congen": adapted("bert-base")} | {f"congen:{student}": adapted(student) for student in congen.TABLE_1}
