"""SimTDE, Xie et al., SIGIR 2023. Its code is not public, and its text gives few settings: the others are ours. LRN-KD and LMX-KD, as its section 4.3 and
Table 2 have them."""

from paper_tables import Fact, Stage, cited, facts
from paper_tables.congen import NLI_ROWS, NLI_TEXT

ER_ROWS = 11_000_000
"""SimTDE section 4.2: 11M training rows of query, entity and label; not public."""
SILENT = facts("""
ours; SimTDE gives AdamW (section 4) without its settings, and neither batch, length, epochs nor seed | data.batch_size=128,
  data.max_length=64, optimizer.learning_rate=1e-4, optimizer.schedule=linear, optimizer.weight_decay=0.01, optimizer.eps=1e-8,
  optimizer.clip_norm=1.0, evals.every=512, evals.untrained=True, run.epochs=3.0, run.seed=0, derived.sequences_per_step=128,
  derived.steps=44196, derived.warmup_steps=4420
ours; SimTDE section 4: STS data sets are only used in testing | evals.best=sts-b-dev/spearman
""")
COMMON = SILENT | facts("""
SimTDE section 3, alpha = 0.5 in all experiments | objective.alpha=0.5
equations 1 to 3; I is the tokenized input | objective.token_loss=batch
equation 4 | objective.sentence_loss=mse
SimTDE section 3: without layer-to-layer distillation | objective.hidden_weight=0.0
SimTDE section 3: the last K layers | objective.hidden_map=last
equation 1: both read I | objective.view=text
SimTDE section 3: the teacher's last layers behind a compact token embedding; its start is not given | student.model=teacher,
  student.pooling=, student.embedding_init=random
""")
ON_NLI = COMMON | facts(f"""
SimTDE section 4: "we create final representations using mean pooling over all tokens" | teacher.normalize=False
ours: the paper does not name the text of its distillation | data.text={NLI_TEXT}
""")


def form(embedding: int, layers: int) -> dict[str, Fact]:
    """SimTDE section 4.3: method-token_embedding_dim-encoder_layer_num(encoder_layer_dim)."""
    return cited("SimTDE section 4.3", student__embedding=embedding, student__layers=f"last:{layers}")


BASE_ROW = (
    ON_NLI
    | form(384, 3)
    | facts("""
SimTDE section 4.1 | teacher.model=princeton-nlp/sup-simcse-bert-base-uncased | the authors trained their own, which is not public;
  configs/simcse.py:simtde-teacher trains one
SimTDE sections 4 and 4.1: supervised SimCSE, mean pooling | teacher.pooling=mean
""")
)
DUAL_ENCODER = SILENT | facts("""
ours; SimTDE section 4 names a dual encoder, and no loss for labelled pairs | objective.temperature=0.05,
  objective.learned_scale=none, objective.views=("text", "positive"), objective.negative_weight=1.0, objective.among=others,
  derived.sequences_per_step=256
a stage without a teacher | teacher.model=
SimTDE section 4.2: BERT-Tiny [24], mean pooling | student.model=nreimers/BERT-Tiny_L-2_H-128_A-2, student.pooling=mean
SimTDE section 4.2: query, entity and label | data.columns=[["text", "query"], ["positive", "entity"]]
""")
DISTILLED = COMMON | facts("""
SimTDE section 4.2: BERT-Tiny is the teacher | teacher.model=previous
SimTDE section 4.2: query, entity and label | data.columns=[["text", "query|text"]]
""")
CHOSEN = facts("""
ours; epochs of 11M rows | derived.steps=257811, derived.warmup_steps=25782
SimTDE section 4.2: R@1, and a dev set of 1M rows; that it chooses the checkpoint, and never the untrained model, is ours |
  evals.best=entities/recall@1, evals.untrained=False
""")


def row(changes: str = "", **values) -> list[Stage]:
    return [Stage(NLI_ROWS, BASE_ROW | (facts(changes) if changes else {}) | values)]


def entity_resolution(embedding: int) -> list[Stage]:
    return [Stage(ER_ROWS, DUAL_ENCODER | CHOSEN), Stage(ER_ROWS, DISTILLED | CHOSEN | form(embedding, 2))]


MINILM = facts("""
SimTDE Table 2, TCHR:MINILM-384-L6(384) | teacher.model=sentence-transformers/all-MiniLM-L6-v2, teacher.pooling=
""")
LMX_KD = facts("""
SimTDE Table 2, LMX-KD-384-L12(384): a small BERT | student.layers=, student.kind=fresh, student.width=384, student.depth=12,
  student.embedding=0
ours; BERT-base's, as Table 4 calls the form BERT-BASE-384-L12(384) | student.heads=12
SimTDE section 4.3: distilled each layer from the teacher | objective.hidden_map=last
ours; the paper does not weight the layers | objective.hidden_weight=1.0
ours; sentence vectors of different widths meet through a linear layer, dropped at the end | student.head=linear,
  student.keep_head=False
""")
LRN_KD = facts("""
SimTDE Table 2, LRN-KD-768-L2(768): the last 2 layers at full width | student.layers=last:2, student.embedding=0
SimTDE section 4.3: after BERT-PKD, which has no token loss | objective.alpha=0.0
ours; the paper does not weight the layers | objective.hidden_weight=1.0
""")
SIMTDE = {
    "paper-384-l3": row(),
    "paper-384-l12": row(**form(384, 12)),
    "paper-128-l3": row(**MINILM | form(128, 3)),
    "paper-no-tokens": row("SimTDE Table 2, - token embedding loss | objective.alpha=0.0"),
    "paper-hidden": row("""
SimTDE Table 2, + hidden states distillation; section 4.3: it replaces the initialisation from the teacher |
  objective.hidden_weight=1.0, student.layers=, student.kind=fresh, student.width=768, student.depth=3
"""),
    "paper-kl": row("SimTDE section 4.3: KL divergence | objective.sentence_loss=kl"),
    "paper-cosine-mse": row(
        "ours; reads section 4.3, MSE loss on the cosine similarity | objective.sentence_loss=cosine_mse"
    ),
    "paper-cosine-mae": row(
        "ours; reads section 4.3, MAE loss on the cosine similarity | objective.sentence_loss=cosine_mae"
    ),
    "paper-64-l2": entity_resolution(64),
    "paper-32-l2": entity_resolution(32),
}
TABLES = {"simtde": SIMTDE, "lmx_kd": {"paper": row(**LMX_KD)}, "lrn_kd": {"paper": row(**LRN_KD)}}
