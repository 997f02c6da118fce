"""SimTDE, Xie et al., SIGIR 2023. Its code is not public, and its text gives few settings: the others are ours."""

from paper_tables import Fact, Stage, cited
from paper_tables.congen import NLI_ROWS, NLI_TEXT

ER_ROWS = 11_000_000
"""SimTDE section 4.2: 11M training rows of query, entity and label; not public."""

SECTION_4_2 = "SimTDE section 4.2: query, entity and label"
SECTION_3 = "SimTDE section 3"
NAMES = "SimTDE section 4.3: method-token_embedding_dim-encoder_layer_num(encoder_layer_dim)"

MEAN_POOLED = cited(
    'SimTDE section 4: "we create final representations using mean pooling over all tokens"', teacher__normalize=False
)
SILENT = (
    cited(
        "ours; SimTDE gives AdamW (section 4) without its settings, and neither batch, length, epochs nor seed",
        data__batch_size=128,
        data__max_length=64,
        data__dedupe=False,
        teacher__max_length=0,
        teacher__kind="live",
        teacher__dropout=False,
        student__head="none",
        student__head_init="uniform",
        student__keep_head=True,
        student__dropout=-1.0,
        student__drophead=0.0,
        optimizer__learning_rate=1e-4,
        optimizer__schedule="linear",
        optimizer__weight_decay=0.01,
        optimizer__decay="matrices",
        optimizer__clip_norm=1.0,
        evals__every=512,
        evals__patience=0,
        evals__patience_epochs=0.0,
        evals__untrained=True,
        run__epochs=3.0,
        run__steps=0,
        run__seed=0,
        derived__sequences_per_step=128,
        derived__steps=44_196,
        derived__warmup_steps=4_420,
    )
    | cited(
        "ours; SimTDE section 4: STS data sets are only used in testing",
        evals__best="sts-b-dev/spearman",
    )
    | cited(
        "PyTorch's AdamW",
        optimizer__b1=0.9,
        optimizer__b2=0.999,
        optimizer__eps=1e-8,
        optimizer__eps_before_correction=False,
        optimizer__bias_correction=True,
    )
)
OBJECTIVE = {
    "objective.alpha": Fact(0.5, f"{SECTION_3}, alpha = 0.5 in all experiments"),
    "objective.token_loss": Fact("batch", "equations 1 to 3; I is the tokenized input"),
    "objective.sentence_loss": Fact("mse", "equation 4"),
    "objective.hidden_weight": Fact(0.0, f"{SECTION_3}: without layer-to-layer distillation"),
    "objective.hidden_map": Fact("last", f"{SECTION_3}: the last K layers"),
    "objective.view": Fact("text", "equation 1: both read I"),
}
BERT = cited("SimTDE sections 4 and 4.1: supervised SimCSE, mean pooling", teacher__pooling="mean") | {
    "teacher.model": Fact(
        "princeton-nlp/sup-simcse-bert-base-uncased",
        "SimTDE section 4.1",
        differs="the authors trained their own, which is not public; configs/simcse.py:simtde-teacher trains one",
    )
}
MINILM = cited(
    "SimTDE Table 2, TCHR:MINILM-384-L6(384)",
    teacher__model="sentence-transformers/all-MiniLM-L6-v2",
    teacher__pooling="",
)
STUDENT = cited(
    f"{SECTION_3}: the teacher's last layers behind a compact token embedding; its start is not given",
    student__model="teacher",
    student__kind="cut",
    student__width=0,
    student__pooling="",
    student__embedding_init="random",
)
COMMON = SILENT | OBJECTIVE | STUDENT


def form(embedding: int, layers: int) -> dict[str, Fact]:
    return cited(NAMES, student__embedding=embedding, student__layers=f"last:{layers}")


NLI = cited("ours: the paper does not name the text of its distillation", data__text=NLI_TEXT)
BASE = COMMON | MEAN_POOLED | BERT | NLI | form(384, 3)


def ablation(source: str, **values) -> list[Stage]:
    return [Stage(NLI_ROWS, BASE | cited(source, **values))]


DUAL_ENCODER = (
    SILENT
    | cited(
        "ours; SimTDE section 4 names a dual encoder, and no loss for labelled pairs",
        objective__temperature=0.05,
        objective__learned_scale="none",
        objective__views=("text", "positive"),
        objective__negative_weight=1.0,
        objective__among="others",
        student__layers="",
        student__kind="cut",
        student__width=0,
        student__embedding=0,
        student__embedding_init="svd",
        derived__sequences_per_step=256,
        derived__steps=257_811,
        derived__warmup_steps=25_782,
    )
    | cited("a stage without a teacher", teacher__model="", teacher__pooling="")
    | cited(
        "SimTDE section 4.2: BERT-Tiny [24], mean pooling",
        student__model="nreimers/BERT-Tiny_L-2_H-128_A-2",
        student__pooling="mean",
    )
)
DISTILLED = (
    COMMON
    | cited("SimTDE section 4.2: BERT-Tiny is the teacher", teacher__model="previous", teacher__pooling="")
    | cited(f"ours; epochs of {ER_ROWS} rows", derived__steps=257_811, derived__warmup_steps=25_782)
)


CHOSEN = cited(
    "SimTDE section 4.2: R@1, and a dev set of 1M rows; that it chooses the checkpoint, and never the untrained model, is ours",
    evals__best="entities/recall@1",
    evals__untrained=False,
)


def entity_resolution(embedding: int) -> list[Stage]:
    pairs = cited(SECTION_4_2, data__columns=[["text", "query"], ["positive", "entity"]])
    queries = cited(SECTION_4_2, data__columns=[["text", "query|text"]])
    return [
        Stage(ER_ROWS, DUAL_ENCODER | CHOSEN | pairs),
        Stage(ER_ROWS, DISTILLED | CHOSEN | queries | form(embedding, 2)),
    ]


TABLE = {
    "paper-384-l3": [Stage(NLI_ROWS, BASE)],
    "paper-384-l12": [Stage(NLI_ROWS, BASE | form(384, 12))],
    "paper-128-l3": [Stage(NLI_ROWS, COMMON | MEAN_POOLED | MINILM | NLI | form(128, 3))],
    "paper-no-tokens": ablation("SimTDE Table 2, - token embedding loss", objective__alpha=0.0),
    "paper-hidden": ablation(
        "SimTDE Table 2, + hidden states distillation; section 4.3: it replaces the initialisation from the teacher",
        objective__hidden_weight=1.0,
        student__layers="",
        student__kind="fresh",
        student__width=768,
        student__depth=3,
    ),
    "paper-kl": ablation("SimTDE section 4.3: KL divergence", objective__sentence_loss="kl"),
    "paper-cosine-mse": ablation(
        "ours; reads SimTDE section 4.3, MSE loss on the cosine similarity", objective__sentence_loss="cosine_mse"
    ),
    "paper-cosine-mae": ablation(
        "ours; reads SimTDE section 4.3, MAE loss on the cosine similarity", objective__sentence_loss="cosine_mae"
    ),
    "paper-64-l2": entity_resolution(64),
    "paper-32-l2": entity_resolution(32),
}
