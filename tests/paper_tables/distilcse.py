"""DistilCSE's CKD, Table 3's start from SimCSE, CKD as ConGen's authors adapted it, and KD."""

from collections.abc import Callable

from paper_tables import WHOLE, Fact, Stage, cited, congen, facts, presets
from paper_tables.simcse import LAST_BATCH, QUARTER, SUPERVISED, TRIPLETS

NEWS = 5_000_000
"""Sentences of News-5m, DistilCSE section 4.1."""
STARTS = {
    "bert-base": "google-bert/bert-base-uncased",
    "tinybert-l6": "nreimers/TinyBERT_L-6_H-768_v2",
    "tinybert-l4": "nreimers/TinyBERT_L-4_H-312_v2",
}
RATES = {"bert-base": (2e-4, 5e-5), "tinybert-l6": (3e-4, 1e-5), "tinybert-l4": (3e-4, 5e-5)}
"""Of the two stages, DistilCSE section 4.2."""
OPTIMIZER = WHOLE | facts("""
sentemb: all three scripts, transformers' AdamW and a cosine | optimizer.schedule=cosine, optimizer.weight_decay=0.0,
  optimizer.b2=0.98, optimizer.eps=1e-8, optimizer.eps_before_correction=True, data.max_length=64,
  evals.best=sts-b-dev/spearman, evals.every=125
""")
STAGE_1 = OPTIMIZER | facts("""
sentemb: kd_distillation.py, ckd_contrastive.py | teacher.model=princeton-nlp/sup-simcse-roberta-large, teacher.pooling=pooler,
  teacher.max_length=64, student.pooling=pooler, student.head=linear, student.keep_head=False
DistilCSE 4.1: News-5m | data.text=news5m.txt
DistilCSE 4.2 | run.epochs=20.0
DistilCSE 4.2 and scripts: 3 epochs without gain | evals.patience_epochs=3.0
""")
STAGE_2 = OPTIMIZER | facts(f"""
there is no teacher | teacher.model=
sentemb: nli_finetune.py | optimizer.clip_norm=1.0, data.columns={TRIPLETS}, student.model=previous, run.epochs=5.0, run.seed=1111
sentemb: nli_finetune.py, its pooler is what the stage before hands on | student.pooling=
DistilCSE eq. 7 | objective.views=("text", "positive", "negative"), objective.negative_weight=1.0, objective.among=others
SimCSE's; DistilCSE eq. 7 leaves it open | objective.temperature=0.05
""")


def batches(size: int, source: str, *, steps: int, warmup: int) -> dict[str, Fact]:
    """Batch, steps and warm-up of a first stage on News-5m."""
    return facts(f"""
{source} | data.batch_size={size}, derived.sequences_per_step={size}
DistilCSE 4.2: 20 epochs | derived.steps={steps} | {LAST_BATCH}
sentemb: 0.1 * len(dataloader), a tenth of one epoch | derived.warmup_steps={warmup}
""")


PAPER_BATCHES = batches(512, "DistilCSE 4.2", steps=195_300, warmup=977)
CODE_BATCHES = batches(4096, "sentemb: *_run.sh, 8 processes of 512", steps=24_400, warmup=122)


def second(student: str, *, code: bool) -> Stage:
    """Stage 2 of CKD and of KD."""
    _, rate = RATES[student]
    size, source = (512, "sentemb: nli_run.sh, 4 processes of 128") if code else (128, "DistilCSE 4.2")
    steps, warmup = (2690, 54) if code else (10_765, 216)
    stage_facts = STAGE_2 | facts(f"""
{source} | data.batch_size={size}, derived.sequences_per_step={3 * size}
DistilCSE 4.2 | optimizer.learning_rate={rate}
DistilCSE 4.2: 5 epochs | derived.steps={steps} | {LAST_BATCH}; the csv's header is no triplet
sentemb: nli_finetune.py, a tenth of one epoch | derived.warmup_steps={warmup}
DistilCSE eq. 7: a hyperparameter | objective.learned_scale=none
""")
    if code:
        stage_facts |= facts(f"""
sentemb: nli_finetune.py | optimizer.clip_norm=1.0 | {QUARTER}
sentemb: nli_run.sh temp=20, nli_finetune.py: above 5 the parameter is the scale | objective.learned_scale=linear
""")
    return Stage(275_601, stage_facts)


def first(student: str, *, code: bool) -> Stage:
    """Stage 1 of CKD."""
    rate, _ = RATES[student]
    stage_facts = STAGE_1 | (CODE_BATCHES if code else PAPER_BATCHES)
    stage_facts |= facts(f"""
DistilCSE 4.2 | optimizer.learning_rate={rate}, student.model={STARTS[student]}
sentemb: ckd_contrastive.py | optimizer.clip_norm=1.0, run.seed=1111, objective.view=text
DistilCSE 4.2 | objective.queue_size=65536 | the code has a queue for each of 8 processes: 512 + 65,536 negatives; here the
  whole batch and one queue are
""")
    changed = """
sentemb: ckd_contrastive_run.sh temp=1, temp_exp=1 | objective.temperature=0.36787944117144233, objective.learned_scale=log
sentemb: ckd_contrastive.py, model.train() on both | teacher.dropout=True
"""
    if not code:
        changed = """
DistilCSE eq. 5: a hyperparameter | objective.learned_scale=none
SimCSE's; DistilCSE names none | objective.temperature=0.05
DistilCSE 3.1: the teacher is fixed | teacher.dropout=False
"""
    return Stage(NEWS, stage_facts | facts(changed))


def from_simcse(student: str) -> list[Stage]:
    """Table 3; the TinyBERTs are trained by SimCSE first, as Table 2's rows of small SimCSE models are."""
    stages = [first(student, code=False), second(student, code=False)]
    if student == "bert-base":
        start = cited("DistilCSE Table 3", student__model="princeton-nlp/sup-simcse-bert-base-uncased")
        return [Stage(NEWS, stages[0].facts | start), stages[1]]
    start = cited("DistilCSE Table 3", student__model="previous", student__pooling="")
    first_stage = SUPERVISED | cited("DistilCSE Table 3", student__model=STARTS[student])
    return [Stage(275_601, first_stage), Stage(NEWS, stages[0].facts | start), stages[1]]


def adapted(student: str) -> list[Stage]:
    """ConGen's Table 1; the paper gives no settings of it."""
    row_facts = congen.of_student(student, congen.SILENT) | congen.steps(congen.NLI_ROWS, 1)
    row_facts |= facts("""
DistilCSE 4.2 | objective.queue_size=65536
ConGen 4.2: DistilCSE's, whose paper fixes it | objective.learned_scale=none
SimCSE's; ConGen names none | objective.temperature=0.05
ConGen 4.2 | objective.view=text
""")
    return [Stage(congen.NLI_ROWS, row_facts)]


KD = STAGE_1 | facts("""
no regulariser in either paper | objective.spread_weight=0.0
DistilCSE eq. 3 | objective.distance=squared, objective.view=text, objective.second_view=, objective.third=none
sentemb: kd_distillation.py, MSELoss of vectors as they are | objective.normalize=False
sentemb: kd_distillation.py | optimizer.clip_norm=0.0, teacher.dropout=False
sentemb: kd_distillation.py's default, which its script leaves | run.seed=42
""")


def kd_first(student: str, *, code: bool) -> Stage:
    """Stage 1 of KD."""
    rate, _ = RATES[student]
    table = KD | (CODE_BATCHES if code else PAPER_BATCHES)
    return Stage(NEWS, table | cited("DistilCSE 4.2", optimizer__learning_rate=rate, student__model=STARTS[student]))


def on_nli(student: str) -> list[Stage]:
    """Appendix A, Table 4."""
    differs = "the paper's set is SimCSE's 275K triplets; the hub has all of SNLI and MultiNLI, of which that was made"
    changed = facts(f"""
DistilCSE Table 4: NLI | data.text={congen.NLI_TEXT} | {differs}
DistilCSE 4.2: 20 epochs | derived.steps=73660 | {differs}
sentemb: a tenth of one epoch | derived.warmup_steps=369 | {differs}
""")
    return [Stage(congen.NLI_ROWS, kd_first(student, code=False).facts | changed)]


def both_stages(stage_1: Callable[..., Stage], code: bool) -> Callable[[str], list[Stage]]:
    return lambda student: [stage_1(student, code=code), second(student, code=code)]


FIRST = "bert-base"
TABLES = {
    "ckd": presets("paper", both_stages(first, False), STARTS, FIRST)
    | presets("code", both_stages(first, True), STARTS, FIRST)
    | presets("paper-simcse", from_simcse, STARTS, FIRST)
    | presets("congen", adapted, congen.TABLE_1, FIRST),
    "kd": presets("paper", both_stages(kd_first, False), STARTS, FIRST)
    | presets("code", both_stages(kd_first, True), STARTS, FIRST)
    | presets("paper-nli", on_nli, STARTS, FIRST),
}
