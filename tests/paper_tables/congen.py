"""ConGen, Limkonchotiwat et al., Findings of EMNLP 2022; code: github.com/KornWtp/ConGen, commit 82ffe36. Its baselines L2, Dual-L2
and SKD, whose code is not public (SKD also as in github.com/mrpeerat/CL-ReLKT), and SEED (Fang et al., ICLR 2021; code:
github.com/jacobswan1/SEED), as which its Table 5 names the control term alone."""

import math

from paper_tables import Fact, Stage, cited, facts, presets

NLI_ROWS = 2 * (550_152 + 392_702)
"""Premises and hypotheses of SNLI and MultiNLI; the rows of the code's back-translated file are not published."""
NLI_TEXT = ",".join(
    f"hf:{name}:train:{side}"
    for name in ("stanfordnlp/snli", "nyu-mll/multi_nli")
    for side in ("premise", "hypothesis")
)
PARALLEL_ROWS = 3 * 50_000 + 35_351 + 10_640
"""English sentences with translations in a data folder; the paper's are NLI in Google's translation."""
# Table 7: student, teacher temperature, student temperature, queue size, learning rate.
TABLE_7 = {
    "bert-tiny": ("nreimers/BERT-Tiny_L-2_H-128_A-2", 0.05, 0.05, 16384, 5e-4),
    "bert-mini": ("nreimers/BERT-Mini_L-4_H-256_A-4", 0.05, 0.07, 16384, 3e-4),
    "tinybert-l4": ("nreimers/TinyBERT_L-4_H-312_v2", 0.05, 0.05, 65536, 1e-4),
    "minilm-l3": ("nreimers/MiniLM-L3-H384-uncased", 0.05, 0.07, 16384, 5e-4),
    "minilm-l6": ("nreimers/MiniLM-L6-H384-uncased", 0.05, 0.07, 65536, 3e-4),
    "bert-small": ("nreimers/BERT-Small_L-4_H-512_A-8", 0.05, 0.07, 65536, 3e-4),
    "minilm-l12": ("microsoft/MiniLM-L12-H384-uncased", 0.05, 0.07, 16384, 5e-5),
    "tinybert-l6": ("nreimers/TinyBERT_L-6_H-768_v2", 0.05, 0.07, 65536, 5e-5),
    "bert-base": ("google-bert/bert-base-uncased", 0.05, 0.07, 65536, 5e-5),
    "roberta-base": ("FacebookAI/roberta-base", 0.1, 0.1, 1024, 5e-5),
    "mdistilbert": ("distilbert/distilbert-base-multilingual-cased", 0.05, 0.07, 65536, 3e-4),
    "mminilm-l12": ("microsoft/Multilingual-MiniLM-L12-H384", 0.05, 0.07, 65536, 3e-4),
}
MULTILINGUAL = ("mdistilbert", "mminilm-l12")
TABLE_1 = tuple(student for student in TABLE_7 if student not in MULTILINGUAL)

COMMON = facts(f"""
ConGen 4.1 | data.batch_size=128, run.epochs=20.0, teacher.model=princeton-nlp/unsup-simcse-roberta-large
ConGen 4.1: SNLI and MultiNLI | data.text={NLI_TEXT}
ConGen: train_congen.sh | data.max_length=128
ConGen: SentenceTransformer of a plain checkpoint appends mean pooling | teacher.pooling=mean | SimCSE, which the paper cites,
  reads the first token: 78.90 is the score of `cls`
ConGen: main.py encodes the teacher's sentences once, before training | teacher.kind=stored
ConGen 4.1: mean pooling, a linear layer with tanh | student.pooling=mean, student.head=tanh
ConGen: torch.nn.Linear's default; the Dense layer is a module of the saved model | student.head_init=uniform,
  student.keep_head=True
sentence-transformers 2.0.0: fit, AdamW with lr 2e-5, eps 1e-6, correct_bias False by default | optimizer.weight_decay=0.01,
  optimizer.b1=0.9, optimizer.b2=0.999, optimizer.eps=1e-6, optimizer.bias_correction=False, optimizer.clip_norm=1.0
ConGen 4.1: 10 % of the training; the code: WarmupLinear | optimizer.schedule=linear
ConGen A.1 | evals.every=512 | the code evaluates at each epoch's end too
ConGen: main.py, STS-B dev; nothing is evaluated before training | evals.best=sts-b-dev/spearman, evals.untrained=False
ConGen: main.py | evals.patience_epochs=7.0 | the code counts epochs that end strictly below the best, a tie neither way
ConGen: train_congen.sh; the paper has means of three seeds | run.seed=1000
""")
UNPUBLISHED = "the paper's back-translated file is not public; its Table 6 puts word deletion within 0.7 points"
TRANSLATIONS = "ours: parallel files of a data folder; the paper has NLI in Google's translation"
CONGEN = facts("""
ConGen 3.3 and the code: half each | objective.alpha=0.5
ConGen: the loss comes before the batch replaces rows | objective.key_set=queue+batch | section 3.2 replaces first: `queue`
ConGen 4.1 | objective.queue_init=sentences
ConGen 3.1: teacher and control read x1 | objective.control_view=text
""")
SILENT = "ours, as in ConGen's own row of Table 7; the paper gives no settings of its baselines"


def of_student(student: str, source: str = "ConGen Table 7") -> dict[str, Fact]:
    """Checkpoint, learning rate and text of a row."""
    model, *_, learning_rate = TABLE_7[student]
    table = COMMON | cited("ConGen 4.1", student__model=model) | cited(source, optimizer__learning_rate=learning_rate)
    if student in MULTILINGUAL:
        columns = [["text", "en"], ["translation", "ar|de|es|fr|tr"]]
        table |= cited(TRANSLATIONS, data__text="data:parallel/en-*.tsv.gz", data__columns=columns)
    return table


def steps(rows: int, sequences: int) -> dict[str, Fact]:
    """20 epochs of 128 rows; `sequences` of each row."""
    count = 20 * (rows // 128)
    return facts(f"""
ConGen 4.1: batch 128 | derived.sequences_per_step={128 * sequences}
ConGen 4.1: 20 epochs | derived.steps={count} | the code reads the last, partial batch of an epoch too
ConGen 4.1: 10 % | derived.warmup_steps={math.ceil(round(0.1 * count, 6))}
""")


def rows_of(student: str) -> int:
    return PARALLEL_ROWS if student in MULTILINGUAL else NLI_ROWS


def second_view(student: str) -> Fact:
    if student in MULTILINGUAL:
        return Fact("translation", "ConGen 4.3: the second view is the translation")
    return Fact("delete_words", "ConGen 3.1", UNPUBLISHED)


def row(student: str) -> list[Stage]:
    """A row of Table 7. Drawn sentences of the queue are no training rows."""
    _, teacher_temperature, student_temperature, queue_size, _ = TABLE_7[student]
    rows = rows_of(student) - queue_size
    row_facts = of_student(student) | CONGEN | steps(rows, 2) | {"objective.generalize_view": second_view(student)}
    temperatures = (
        f"objective.teacher_temperature={teacher_temperature}, objective.student_temperature={student_temperature}"
    )
    return [Stage(rows, row_facts | facts(f"ConGen Table 7 | {temperatures}, objective.queue_size={queue_size}"))]


L2 = facts("""
no regulariser in either paper | objective.spread_weight=0.0
ConGen 4.2: L2 | objective.distance=squared, objective.second_view=, objective.third=none
ConGen 3.1: vectors of unit length | objective.normalize=True
ConGen 4.2: teacher and student read x1 | objective.view=text
ours | optimizer.eps=1e-8 | ConGen's own 1e-6 is above the gradients of a mean square of unit vectors: the student hardly moves
""")


def baseline(student: str, changed: dict[str, Fact], *, sequences: int) -> list[Stage]:
    """A row of Tables 1 and 3."""
    row_facts = of_student(student, SILENT) | L2 | steps(rows_of(student), sequences)
    return [Stage(rows_of(student), row_facts | changed)]


def english_alone(student: str) -> list[Stage]:
    """L2 reads no second view, and so no translations."""
    columns = cited(TRANSLATIONS, data__columns=[["text", "en"]]) if student in MULTILINGUAL else {}
    return baseline(student, columns, sequences=1)


def two_views(student: str, **changed: Fact) -> list[Stage]:
    """ConGen 4.2: a second term for the second view."""
    return baseline(student, {"objective.second_view": second_view(student)} | changed, sequences=2)


SKD = facts("ConGen 4.2: a third term between the student's views | objective.third=views")
SKD_CODE = facts("""
CL-ReLKT: the teacher's document, the student's query | objective.third=teacher
ours: the teacher reads augmented views, which change each epoch | teacher.kind=live
""")
UNREAD = "ours: not read with alpha 1"
SEED = of_student("bert-base", "ConGen Table 7, SEED is for images") | steps(NLI_ROWS, 1)
SEED |= facts(f"""
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


FIRST = "bert-base"
TABLES = {
    "congen": presets("paper", row, TABLE_7, FIRST),
    "l2": presets("paper", english_alone, TABLE_7, FIRST),
    "dual_l2": presets("paper", two_views, TABLE_7, FIRST),
    "skd": presets("paper", lambda student: two_views(student, **SKD), TABLE_1, FIRST)
    | presets("code", lambda student: two_views(student, **SKD_CODE), TABLE_1, FIRST),
    "seed": {"code": [Stage(NLI_ROWS, SEED)]} | presets("congen", control_alone, TABLE_1, FIRST),
}
