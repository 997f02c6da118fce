"""SimCSE, Mirror-BERT, DistilFACE, and the supervised models that DistilCSE and SimTDE train by SimCSE's code."""

from paper_tables import Fact, Stage, cited
from paper_tables.congen import NLI_ROWS, NLI_TEXT, TABLE_1, TABLE_7

TRIPLETS = [["text", "sent0"], ["positive", "sent1"], ["negative", "hard_neg"]]
WIKI, NLI, STS_B = 1_000_000, 275_601, 10_000
"""Sentences of wiki1m_for_simcse.txt, triplets of nli_for_simcse.csv, Mirror-BERT's sentences of STS-B train."""
LAST_BATCH = "the code reads the last, partial batch of an epoch too; every batch is full here"
QUARTER = (
    "each of four processes has gradients of its own quarter of a batch alone, whose mean is a quarter of the whole"
)
COMMON = {
    **cited("none of these has a teacher", teacher__model=""),
    **cited("ours: there is no teacher, not read", teacher__pooling="", teacher__max_length=0, teacher__kind="live"),
    **cited("ours: there is no teacher, not read", teacher__dropout=False),
    **cited(
        "ours: the checkpoint as it is", student__layers="", student__kind="cut", student__width=0, student__embedding=0
    ),
    **cited("ours: not read without a compact embedding", student__embedding_init="svd"),
    **cited("ours: no code stops early", evals__patience=0, evals__patience_epochs=0.0),
    **cited("no code evaluates before it trains", evals__untrained=False),
}
BERT, BERT_LARGE = "google-bert/bert-base-uncased", "google-bert/bert-large-uncased"
ROBERTA, ROBERTA_LARGE = "FacebookAI/roberta-base", "FacebookAI/roberta-large"
SIMCSE = COMMON | {
    **cited("SimCSE: train.py, blank lines apart nothing is left out", data__dedupe=False),
    **cited("SimCSE: run_*_example.sh", data__max_length=32, evals__every=125),
    **cited("SimCSE: run_*_example.sh, metric_for_best_model", evals__best="sts-b-dev/spearman"),
    **cited("SimCSE: evaluation.py, nothing is truncated", student__max_length=512),
    **cited("SimCSE: models.py, the MLP of --pooler_type cls", student__pooling="cls", student__head="tanh"),
    **cited("SimCSE: models.py, BertModel's _init_weights", student__head_init="normal"),
    **cited("SimCSE: the checkpoint's own 0.1", student__dropout=-1.0, student__drophead=0.0),
    **cited(
        "transformers 4.2.1: defaults of Trainer and AdamW",
        optimizer__schedule="linear", optimizer__weight_decay=0.0, optimizer__b1=0.9, optimizer__b2=0.999,
        optimizer__eps=1e-8, optimizer__bias_correction=True, optimizer__eps_before_correction=True, run__seed=42,
        optimizer__clip_norm=1.0, derived__warmup_steps=0,
    ),
    **cited("ours: nothing is decayed", optimizer__decay="matrices"),
    **cited("SimCSE: run_*_example.sh", objective__temperature=0.05, objective__learned_scale="none"),
    **cited("SimCSE eq. 4 and 5", objective__among="others", objective__negative_weight=1.0),
}  # fmt: skip
SUPERVISED = SIMCSE | {
    **cited("SimCSE eq. 5", objective__views=("text", "positive", "negative"), data__columns=TRIPLETS),
    **cited("SimCSE README", data__batch_size=512, optimizer__learning_rate=5e-5, run__epochs=3.0, run__steps=0),
    **cited("SimCSE README, 512 triplets", derived__sequences_per_step=1536),
    **cited("SimCSE: --mlp_only_train is of the unsupervised script alone", student__keep_head=True),
    "optimizer.clip_norm": Fact(1.0, "transformers 4.2.1: Trainer", QUARTER),
    "derived.steps": Fact(1614, "SimCSE README: 3 epochs", LAST_BATCH),
}


def unsupervised(student: str, *, batch_size: int, learning_rate: float, rows: int = WIKI) -> list[Stage]:
    """A row of the table in SimCSE's README."""
    steps = rows // batch_size
    facts = cited(
        "SimCSE README", student__model=student, data__batch_size=batch_size, optimizer__learning_rate=learning_rate,
        run__epochs=1.0, run__steps=0, derived__sequences_per_step=2 * batch_size,
    )  # fmt: skip
    facts |= cited("SimCSE eq. 4", objective__views=("text", "text"))
    facts |= cited("SimCSE: --mlp_only_train", student__keep_head=False)
    facts |= {"derived.steps": Fact(steps, "SimCSE README: 1 epoch", "" if rows % batch_size == 0 else LAST_BATCH)}
    return [Stage(rows, SIMCSE | facts)]


def supervised(student: str, source: str = "SimCSE README", **changed) -> list[Stage]:
    return [Stage(NLI, SUPERVISED | cited(source, student__model=student, **changed))]


def mirror(student: str, script: str, *, pooling: str, dropout: float, drophead: float) -> list[Stage]:
    """A script of Mirror-BERT."""
    facts = cited(
        f"mirror-bert: {script}",
        data__batch_size=200, data__max_length=50, data__dedupe=False, student__model=student, student__pooling=pooling,
        student__dropout=dropout, student__drophead=drophead, student__head="none", optimizer__learning_rate=2e-5,
        objective__temperature=0.04, run__epochs=1.0, run__steps=0, derived__sequences_per_step=400, derived__steps=50,
    )  # fmt: skip
    if pooling == "mean":
        facts["student.pooling"] = Fact("mean", f"mirror-bert: {script}", "its mean includes padding; here it does not")
    facts |= cited(
        "mirror-bert: train.py and contrastive_learning.py, torch.optim.AdamW",
        optimizer__weight_decay=0.01, optimizer__decay="all", optimizer__b1=0.9, optimizer__b2=0.999, optimizer__eps=1e-8,
        optimizer__bias_correction=True, optimizer__eps_before_correction=False, optimizer__schedule="constant",
        optimizer__clip_norm=0.0, derived__warmup_steps=0, run__seed=42,
    )  # fmt: skip
    facts |= cited(
        "Mirror-BERT eq. 1; mirror-bert: pytorch_metric_learning's NTXentLoss",
        objective__views=("text", "mask_span"), objective__among="both",
    )  # fmt: skip
    facts |= cited("ours: no sentence of an evaluation is longer", student__max_length=512)
    facts |= cited("ours: one form here", objective__learned_scale="none", objective__negative_weight=1.0)
    facts |= cited("ours: there is no head, not read", student__head_init="normal", student__keep_head=False)
    facts |= cited("mirror-bert: the code never evaluates and keeps the last step", evals__best="last")
    facts["evals.every"] = Fact(50, "ours", "the code never evaluates; step 50 is the last")
    return [Stage(STS_B, COMMON | facts)]


def distilface(source: str, *, batch_size: int, learning_rate: float, steps: int) -> list[Stage]:
    """DistilFACE trains with SimCSE's loss and transformers' Trainer, without an MLP."""
    facts = cited(
        source, data__batch_size=batch_size, optimizer__learning_rate=learning_rate, run__steps=steps,
        derived__steps=steps, derived__sequences_per_step=2 * batch_size, student__pooling="mean:last4",
        data__max_length=32, objective__temperature=0.05,
    )  # fmt: skip
    facts |= cited("DistilFACE 4", student__model="distilbert/distilbert-base-uncased", student__head="none")
    facts |= cited("DistilFACE 3", objective__views=("text", "text"))
    facts |= cited("ours: there is no head, not read", student__head_init="normal", student__keep_head=False)
    facts |= cited("ours: steps are given, not read", run__epochs=1.0)
    facts |= cited("DistilFACE's notebooks: the model after the last step", evals__best="last")
    facts["evals.every"] = Fact(
        125,
        "SimCSE: run_unsup_example.sh",
        "the notebooks evaluate at the end alone, on test sets; here STS-B dev shows the curve if there is a data folder",
    )
    return [Stage(WIKI, SIMCSE | facts)]


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
TABLE |= {
    f"{preset}{argument}": make(TABLE_7[student][0])
    for preset, make in (
        ("congen-unsup", on_nli),
        ("congen-sup", lambda model: supervised(model, OF_CONGEN)),
    )
    for argument, student in (("", "bert-base"), *((f":{student}", student) for student in TABLE_1))
}
