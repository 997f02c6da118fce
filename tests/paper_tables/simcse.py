"""SimCSE, Mirror-BERT, DistilFACE, and the supervised models that DistilCSE and SimTDE train by SimCSE's code."""

from paper_tables import WHOLE, Stage, cited, facts, presets
from paper_tables.congen import NLI_ROWS, NLI_TEXT, TABLE_1, TABLE_7

TRIPLETS = [["text", "sent0"], ["positive", "sent1"], ["negative", "hard_neg"]]
WIKI, NLI, STS_B = 1_000_000, 275_601, 10_000
"""Sentences of wiki1m_for_simcse.txt, triplets of nli_for_simcse.csv, Mirror-BERT's sentences of STS-B train."""
LAST_BATCH = "the code reads the last, partial batch of an epoch too; every batch is full here"
QUARTER = (
    "each of four processes has gradients of its own quarter of a batch alone, whose mean is a quarter of the whole"
)
NO_TEACHER = facts("none of these has a teacher | teacher.model=")
BERT, BERT_LARGE = "google-bert/bert-base-uncased", "google-bert/bert-large-uncased"
ROBERTA, ROBERTA_LARGE = "FacebookAI/roberta-base", "FacebookAI/roberta-large"
SIMCSE = NO_TEACHER | facts("""
SimCSE: run_*_example.sh | data.max_length=32, evals.every=125, objective.temperature=0.05, objective.learned_scale=none
SimCSE: run_*_example.sh, metric_for_best_model | evals.best=sts-b-dev/spearman
SimCSE: evaluation.py, nothing is truncated | student.max_length=512
SimCSE: models.py, the MLP of --pooler_type cls and BertModel's _init_weights | student.pooling=cls, student.head=tanh,
  student.head_init=normal
transformers 4.2.1: defaults of Trainer and AdamW | optimizer.schedule=linear, optimizer.weight_decay=0.0, optimizer.b1=0.9,
  optimizer.b2=0.999, optimizer.eps=1e-8, optimizer.eps_before_correction=True, optimizer.clip_norm=1.0, run.seed=42,
  derived.warmup_steps=0
SimCSE eq. 4 and 5 | objective.among=others, objective.negative_weight=1.0
""")
SUPERVISED = SIMCSE | facts(f"""
SimCSE eq. 5 | objective.views=("text", "positive", "negative"), data.columns={TRIPLETS}
SimCSE README | data.batch_size=512, optimizer.learning_rate=5e-5, run.epochs=3.0
SimCSE README, 512 triplets | derived.sequences_per_step=1536
SimCSE: --mlp_only_train is of the unsupervised script alone | student.keep_head=True
transformers 4.2.1: Trainer | optimizer.clip_norm=1.0 | {QUARTER}
SimCSE README: 3 epochs | derived.steps=1614 | {LAST_BATCH}
""")


def unsupervised(student: str, *, batch_size: int, learning_rate: float, rows: int = WIKI) -> list[Stage]:
    """A row of the table in SimCSE's README."""
    table = f"""
SimCSE README | student.model={student}, data.batch_size={batch_size}, optimizer.learning_rate={learning_rate}, run.epochs=1.0,
  derived.sequences_per_step={2 * batch_size}
SimCSE eq. 4 | objective.views=("text", "text")
SimCSE: --mlp_only_train | student.keep_head=False
SimCSE README: 1 epoch | derived.steps={rows // batch_size} | {LAST_BATCH if rows % batch_size else ""}
"""
    return [Stage(rows, SIMCSE | facts(table))]


def supervised(student: str, source: str = "SimCSE README", **changed) -> list[Stage]:
    return [Stage(NLI, SUPERVISED | cited(source, student__model=student, **changed))]


def mirror(student: str, script: str, *, pooling: str, dropout: float, drophead: float) -> list[Stage]:
    """A script of Mirror-BERT."""
    table = f"""
mirror-bert: {script} | data.batch_size=200, data.max_length=50, student.model={student}, student.dropout={dropout},
  student.drophead={drophead}, student.head=none, optimizer.learning_rate=2e-5, objective.temperature=0.04, run.epochs=1.0,
  derived.sequences_per_step=400, derived.steps=50
mirror-bert: {script} | student.pooling={pooling} | {"its mean includes padding; here it does not" if pooling == "mean" else ""}
mirror-bert: train.py and contrastive_learning.py, torch.optim.AdamW | optimizer.weight_decay=0.01, optimizer.decay=all,
  optimizer.eps=1e-8, optimizer.schedule=constant, optimizer.clip_norm=0.0, derived.warmup_steps=0, run.seed=42
Mirror-BERT eq. 1; mirror-bert: pytorch_metric_learning's NTXentLoss | objective.views=("text", "mask_span"), objective.among=both
ours: one form here | objective.learned_scale=none, objective.negative_weight=1.0
ours: there is no head, not read | student.head_init=normal, student.keep_head=False
mirror-bert: the code never evaluates and keeps the last step | evals.best=last
ours | evals.every=50 | the code never evaluates; step 50 is the last
"""
    return [Stage(STS_B, NO_TEACHER | WHOLE | facts(table))]


def distilface(source: str, *, batch_size: int, learning_rate: float, steps: int) -> list[Stage]:
    """DistilFACE trains with SimCSE's loss and transformers' Trainer, without an MLP."""
    table = f"""
{source} | data.batch_size={batch_size}, optimizer.learning_rate={learning_rate}, run.steps={steps}, derived.steps={steps},
  derived.sequences_per_step={2 * batch_size}, student.pooling=mean:last4, data.max_length=32, objective.temperature=0.05
DistilFACE 4 | student.model=distilbert/distilbert-base-uncased, student.head=none
DistilFACE 3 | objective.views=("text", "text")
ours: there is no head, not read | student.head_init=normal, student.keep_head=False
ours: steps are given, not read | run.epochs=1.0
DistilFACE's notebooks: the model after the last step | evals.best=last
SimCSE: run_unsup_example.sh | evals.every=125 | the notebooks evaluate at the end alone, on test sets; here STS-B dev shows
  the curve if there is a data folder
"""
    return [Stage(WIKI, SIMCSE | facts(table))]


TABLE = {
    "unsup-bert": unsupervised(BERT, batch_size=64, learning_rate=3e-5),
    "unsup-bert-large": unsupervised(BERT_LARGE, batch_size=64, learning_rate=1e-5),
    "unsup-roberta": unsupervised(ROBERTA, batch_size=512, learning_rate=1e-5),
    "unsup-roberta-large": unsupervised(ROBERTA_LARGE, batch_size=512, learning_rate=3e-5),
    "sup-bert": supervised(BERT),
    "sup-bert-large": supervised(BERT_LARGE, optimizer__learning_rate=1e-5),
    "sup-tinybert-l6": supervised("nreimers/TinyBERT_L-6_H-768_v2", "DistilCSE Table 2, SimCSE's code"),
    "sup-tinybert-l4": supervised("nreimers/TinyBERT_L-4_H-312_v2", "DistilCSE Table 2, SimCSE's code"),
    "simtde-teacher": supervised(
        BERT, "SimTDE 4.1: mean-pooled, supervised SimCSE", student__pooling="mean", student__head="none"
    ),
    "mirror": mirror(BERT, "mirror_sentence_bert.sh", pooling="mean", dropout=0.1, drophead=0.0),
    "mirror-drophead": mirror(BERT, "mirror_sentence_bert_drophead.sh", pooling="mean", dropout=0.0, drophead=0.2),
    "mirror-roberta": mirror(ROBERTA, "mirror_sentence_roberta.sh", pooling="cls", dropout=0.1, drophead=0.0),
    "mirror-roberta-drophead": mirror(
        ROBERTA, "mirror_sentence_roberta_drophead.sh", pooling="cls", dropout=0.0, drophead=0.05
    ),
    "distilface": distilface("DistilFACE Table 3", batch_size=128, learning_rate=1e-5, steps=20_000),
    "distilface-alternative": distilface(
        "DistilFACE: notebook cl-distilbert_pooling_avg-last4", batch_size=64, learning_rate=5e-5, steps=30_000
    ),
}


def on_nli(student: str) -> list[Stage]:
    """ConGen's row of unsupervised SimCSE, on ConGen's text."""
    (stage,) = unsupervised(student, batch_size=64, learning_rate=3e-5, rows=NLI_ROWS)
    return [Stage(NLI_ROWS, stage.facts | cited("ConGen 4.1: SNLI and MultiNLI", data__text=NLI_TEXT))]


OF_CONGEN = "ConGen 4.2; settings of SimCSE's README for BERT-base, as the paper gives none"
TABLE |= presets("congen-unsup", lambda student: on_nli(TABLE_7[student][0]), TABLE_1, "bert-base")
TABLE |= presets("congen-sup", lambda student: supervised(TABLE_7[student][0], OF_CONGEN), TABLE_1, "bert-base")
TABLES = {"simcse": TABLE}
