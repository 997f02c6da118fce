"""Trans-Encoder, Liu et al., ICLR 2022, and its released code (amzn/trans-encoder at 368f722)."""

from collections.abc import Sequence
from functools import partial

from paper_tables import WHOLE, Fact, Stage, cited, facts, presets, simcse

TABLE_15, TABLE_16, TABLE_17 = (f"Trans-Encoder Table {number}" for number in (15, 16, 17))
CODE = "trans-encoder, src/self_distill.py"
DATA = "trans-encoder, src/data.py"

ROWS = dict(sts=37_081, sick=9_927, qqp=21_000, qnli=15_463, mrpc=5_801)
"""Table 15 (STS train, QQP, QNLI, MRPC); SICK's three parts."""
BINARY = ("qqp", "qnli", "mrpc")
COLUMNS = [
    ["text", "sentence1|premise|question1|text"],
    ["second", "sentence2|hypothesis|question2|sentence|negative"],
]
TEXTS = dict(
    sts="data:sts/sts1*.tsv.gz,data:sts/stsb.*.tsv.gz,data:sts/sick.*.tsv.gz",
    sick="data:sts/sick.*.tsv.gz",
    qqp="hf:nyu-mll/glue:qqp:train[:10000]:question1,hf:nyu-mll/glue:qqp:validation[:11000]:question1",
    qnli="hf:nyu-mll/glue:qnli:train[:10000]:question,data:pairs/qnli.dev.tsv.gz",
    mrpc="data:transfer/mrpc.*.tsv.gz",
)
BEST = dict.fromkeys(("sts", "qqp"), "sts-b-dev/spearman")
BEST |= dict(sick="pairs/spearman", qnli="qnli-dev/auc", mrpc="mrpc-dev/auc")
"""What chooses the checkpoint of each stage."""
MODELS = {
    "bert-base": ("princeton-nlp/unsup-simcse-bert-base-uncased", "google-bert/bert-base-uncased"),
    "roberta-base": ("princeton-nlp/unsup-simcse-roberta-base", "FacebookAI/roberta-base"),
    "bert-large": ("princeton-nlp/unsup-simcse-bert-large-uncased", "google-bert/bert-large-uncased"),
    "roberta-large": ("princeton-nlp/unsup-simcse-roberta-large", "FacebookAI/roberta-large"),
    "mirror-roberta-base": ("cambridgeltl/mirror-roberta-base-sentence", "FacebookAI/roberta-base"),
    "mirror-roberta-base-drophead": ("cambridgeltl/mirror-roberta-base-sentence-drophead", "FacebookAI/roberta-base"),
    "ct-bert-base": ("Contrastive-Tension/BERT-Base-CT", "google-bert/bert-base-uncased"),
    "declutr-roberta-base": ("johngiorgi/declutr-base", "FacebookAI/roberta-base"),
}
"""Table 17, and the model that each of them was made of, from which its cross-encoders start (section 2.2)."""
SIMCSE = ("bert-base", "roberta-base", "bert-large", "roberta-large")

COMMON = WHOLE | facts(f"""
{CODE} | teacher.kind=labels, run.seed=2021, objective.kind=trans_encoder
sentence-transformers 2.0.0 fit and transformers 4.9.0 AdamW, with which the code trains | optimizer.schedule=linear,
  optimizer.weight_decay=0.01, optimizer.eps=1e-6, optimizer.eps_before_correction=True, optimizer.clip_norm=1.0
section 4 and {CODE} | evals.every=200 | the code evaluates at the end of each epoch too, here at the last alone
""")
RAW = facts(f"{CODE}: cosines as they are | objective.negatives=raw")
CLIPPED = facts("""
equation 2 | objective.negatives=clip | the code has raw cosines, for which the loss has no minimum below 0: preset `code`
""")
DEDUPED = facts(f"""
{DATA} | data.dedupe=True | the code compares pairs as they are, and SICK's with SICK's alone; here case and order are ignored,
  over all
""")


def steps(rows: int, batch_size: int, epochs: float, warmup: float) -> dict[str, Fact]:
    """What follows for text of this size; the code takes the last, incomplete batch of an epoch too."""
    total = round(epochs * (rows // batch_size))
    return facts(f"""
{TABLE_15} and {TABLE_16} | derived.steps={total} | {"the code makes one more, incomplete step an epoch" if rows % batch_size else ""}
{CODE} | derived.warmup_steps={-(-total // 10) if warmup else 0}
""")


def counted(task: str, batch_size: int, epochs: float, warmup: float) -> dict[str, Fact]:
    """Epochs, and the steps that follow from them."""
    return cited(TABLE_16, run__epochs=epochs) | steps(ROWS[task], batch_size, epochs, warmup)


def cross(model: str, task: str, labellers: str, *, first: bool, start: str = "", negatives=CLIPPED) -> Stage:
    """A cross-encoder on bi-encoders' labels."""
    plain = MODELS[model][1]
    both_orders, batch_size = task != "qnli", 32 if task == "qnli" else 16
    stage_facts = facts(f"""
{CODE} | data.max_length=64, teacher.model={labellers}, teacher.pooling={"cls" if first else ""}, teacher.max_length=32,
  student.model={start or plain}, student.kind=cross_encoder, objective.form=cross, objective.loss=bce,
  objective.both_orders={both_orders}, derived.sequences_per_step=32
AutoModelForSequenceClassification: BERT's pooler, RoBERTa's own dense layer | student.pooling={"cls" if "roberta" in plain else "pooler"}
{TABLE_16}: 32 sequences, of which both orders of a pair are two | data.batch_size={batch_size}
{TABLE_16} | optimizer.learning_rate=2e-5
""")
    stage_facts |= counted(task, batch_size, 3.0 if task in BINARY else 1.0, 0.1)
    return Stage(ROWS[task], COMMON | negatives | ({} if task in BINARY else DEDUPED) | stage_facts)


def bi(model: str, task: str, labellers: str, *, start: str = "", negatives=CLIPPED, by: str = "cross") -> Stage:
    """A bi-encoder on cross-encoders' labels."""
    batch_size = 64 if "large" in model else 128
    stage_facts = facts(f"""
{CODE} | data.max_length=32, teacher.model={labellers}, teacher.pooling={"cls" if labellers == MODELS[model][0] else ""},
  teacher.max_length={64 if by == "cross" else 32}, student.model={start or MODELS[model][0]}, student.pooling=cls,
  objective.form=bi, objective.loss=mse, objective.both_orders=False, derived.sequences_per_step={2 * batch_size}
{TABLE_16} | data.batch_size={batch_size}, optimizer.learning_rate=5e-5
""")
    stage_facts |= counted(task, batch_size, 15.0 if task in BINARY else 10.0, 0.0)
    return Stage(ROWS[task], COMMON | negatives | ({} if task in BINARY else DEDUPED) | stage_facts)


def refreshing(models: Sequence[str], task: str = "sts", **changed) -> list[Stage]:
    """Cycles in which every stage starts from the same checkpoints; several models label together."""
    stages, labellers = [], ",".join(MODELS[model][0] for model in models)
    for cycle in range(5 if task in BINARY else 3):
        stages += [cross(model, task, labellers, first=cycle == 0, **changed) for model in models]
        labellers = names(len(stages), len(models))
        stages += [bi(model, task, labellers, **changed) for model in models]
        labellers = names(len(stages), len(models))
    return on_pairs(stages, task)


def on_pairs(stages: Sequence[Stage], task: str = "sts") -> list[Stage]:
    """The stages on a task's pairs, all of them."""
    of_all = cited(f"{TABLE_15} and {DATA}", evals__best=BEST[task], data__text=TEXTS[task], data__columns=COLUMNS)
    if task == "qqp":
        difference = "the code reads sbert.net's split, for which docs/guide/data.md has the command; GLUE's has the same pairs otherwise"
        of_all["data.text"] = Fact(TEXTS[task], of_all["data.text"].source, differs=difference)
    if task == "sick":
        of_all |= cited(f"{DATA}: SICK's trial pairs", evals__pairs="data:sts/sick.trial.tsv.gz")
    return [Stage(rows, facts | of_all) for rows, facts in stages]


def names(last: int, count: int) -> str:
    return ",".join(f"stage{number}" for number in range(last - count + 1, last + 1))


def sequential(model: str) -> list[Stage]:
    """Section 5.2: every stage starts from the model that made its labels, the first from the bi-encoder."""
    stages, previous = [], MODELS[model][0]
    for cycle in range(3):
        stages.append(cross(model, "sts", previous, first=cycle == 0, start=previous))
        stages.append(bi(model, "sts", f"stage{len(stages)}", start=f"stage{len(stages)}"))
        previous = f"stage{len(stages)}"
    return on_pairs(stages)


def alternating() -> list[Stage]:
    """Footnote 5: a cycle of BERT, then one of RoBERTa."""
    bert = [cross("bert-base", "sts", MODELS["bert-base"][0], first=True), bi("bert-base", "sts", "stage1")]
    return on_pairs([*bert, cross("roberta-base", "sts", "stage2", first=False), bi("roberta-base", "sts", "stage3")])


def standard_self_distillation(model: str, task: str = "sts") -> list[Stage]:
    """Table 14: bi-encoders alone; the paper does not say how many."""
    labellers = (MODELS[model][0], "stage1", "stage2")
    return on_pairs([bi(model, task, labeller, negatives=RAW, by="bi") for labeller in labellers], task)


def losses(combination: str) -> list[Stage]:
    """Table 8, or for Log-Cosh the last paragraph of appendix A.2: other losses in all cycles."""
    loss_of_form = dict(zip(("cross", "bi"), combination.split("-"), strict=True))
    source = "Trans-Encoder Table 8 and appendix A.2"
    return [
        Stage(rows, facts | cited(source, objective__loss=loss_of_form[facts["objective.form"].value]))
        for rows, facts in refreshing(["bert-base"])
    ]


def contrastive(model: str, task: str = "sts") -> list[Stage]:
    """Table 9: SimCSE's training, whose settings the paper does not give, on pairs."""
    stage_facts = facts(f"""
Trans-Encoder Table 9: pairs as positive ones | objective.views=("text", "second"), student.model={MODELS[model][0]}, student.head=none
ours: SimCSE's README for BERT-base | data.batch_size=64, optimizer.learning_rate=3e-5, run.epochs=1.0,
  derived.sequences_per_step=128, derived.steps={ROWS[task] // 64}, student.keep_head=False
""")
    return on_pairs([Stage(ROWS[task], simcse.SIMCSE | ({} if task in BINARY else DEDUPED) | stage_facts)], task)


def preset_name(preset: str, task: str) -> str:
    return preset if task == "sts" else f"{preset}-{task}"


def single_model(model: str, task: str = "sts", **changed) -> list[Stage]:
    return refreshing([model], task, **changed)


def mutual(size: str, task: str) -> list[Stage]:
    return refreshing(SIMCSE[:2] if size == "base" else SIMCSE[2:], task)


TASKS, FIRST = ("sts", *BINARY), "bert-base"
OTHERS = ("roberta-base", "mirror-roberta-base-drophead")
TABLE = {"alternating": alternating()}
TABLE |= presets("paper-sick", partial(single_model, task="sick"), SIMCSE, FIRST)
TABLE |= presets("code", partial(single_model, negatives=RAW), SIMCSE[:2], FIRST)
TABLE |= presets("sequential", sequential, SIMCSE[:2], FIRST)
TABLE |= presets("losses", losses, ("bce-bce", "mse-mse", "mse-bce", "bce-log_cosh"), "bce-bce")
for task in TASKS:
    TABLE |= presets(preset_name("paper", task), partial(single_model, task=task), MODELS, FIRST)
    TABLE |= presets(preset_name("mutual", task), partial(mutual, task=task), ("base", "large"), "base")
    TABLE |= presets(preset_name("contrastive", task), partial(contrastive, task=task), OTHERS, OTHERS[0])
for task in ("sts", "qnli"):
    TABLE |= presets(preset_name("bi-to-bi", task), partial(standard_self_distillation, task=task), SIMCSE[:2], FIRST)
TABLES = {"trans_encoder": TABLE}
