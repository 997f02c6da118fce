"""Trans-Encoder (Liu et al., ICLR 2022): a bi- and a cross-encoder label pairs of sentences for each other, in turn.

    python -m jaxdistill.main --config=configs/trans_encoder.py:PRESET --workdir=runs/NAME --config.data.text=PAIRS.tsv

Odd stages train a cross-encoder on the bi-encoder's labels, even ones a bi-encoder on the cross-encoder's; two of them
are a cycle. PAIRS.tsv has the columns sentence1 and sentence2; what text and columns say holds for all stages. With
JAXDISTILL_DATA, the best checkpoint of each stage is that with the best score on STS-B dev; with --config.evals.pairs on
your own graded pairs; without either, the one that agrees best with the labels of pairs kept out of training. The best bi- and the best cross-encoder of all stages are
DIR/best-bi and DIR/best-cross.

minilm      all-MiniLM-L6-v2 is the first bi-encoder, and where every stage starts; three cycles
tiny        the path from text to both exports in about a minute; proves nothing about quality
paper       unsupervised SimCSE-BERT-base; cross-encoders start from BERT-base (refreshing); clipped labels; 3 cycles
code        the same with labels below 0 as they are
sequential  each stage starts from the one before (the paper's section 5.2)
mutual      SimCSE-BERT-base and SimCSE-RoBERTa-base label together, by the mean of their scores; 3 cycles
"""

from collections.abc import Mapping, Sequence

from _presets import TEACHER, chosen, options, tiny
from ml_collections import ConfigDict

COLUMNS = (("text", "sentence1"), ("second", "sentence2"))
BERT = dict(
    bi="princeton-nlp/unsup-simcse-bert-base-uncased",
    plain="google-bert/bert-base-uncased",
    pooling="cls",
    plain_pooling="pooler",
)
"""First bi-encoder with its pooling, and the checkpoint that its cross-encoder starts from, with its own."""
ROBERTA = dict(
    bi="princeton-nlp/unsup-simcse-roberta-base", plain="FacebookAI/roberta-base", pooling="cls", plain_pooling="cls"
)
MINILM = dict(bi=TEACHER, plain=TEACHER, pooling="mean", plain_pooling="pooler")


def trans_encoder(form: str, **changed) -> dict:
    """The objective with its options."""
    defaults = dict(form=form, loss="bce", negatives="clip", both_orders=True)
    defaults |= dict(loss="mse", both_orders=False) if form == "bi" else {}
    return dict(name="trans_encoder") | defaults | changed


def stage(form: str, *, model: str, pooling: str, labellers: Sequence[str], negatives: str) -> ConfigDict:
    """One direction, with the settings of the paper's Table 16 for base models on STS."""
    config = options(**trans_encoder(form, negatives=negatives))
    config.data.columns = COLUMNS
    config.teacher.targets = "labels"
    config.teacher.model = ",".join(labellers)
    config.student.model = model
    config.student.pooling = pooling
    config.student.head = "pair" if form == "cross" else "none"
    config.student.head_init = "normal"
    config.data.batch_size = 32 if form == "cross" else 128
    config.data.max_length = 64 if form == "cross" else 32
    config.optimizer.learning_rate = 2e-5 if form == "cross" else 5e-5
    config.run.epochs = 1.0 if form == "cross" else 10.0
    config.evals.every = 200
    return config


def cycles(*starts: Mapping[str, str], count: int, negatives: str = "clip", sequential: bool = False) -> ConfigDict:
    """Cross-encoders from all bi-encoders' labels, then bi-encoders from all cross-encoders', `count` times.

    Args:
      starts: for each of the models that label together, as `BERT`.
      sequential: start each stage from the last one of the other form, not from `starts`.
    """
    stages, labellers = [], [start["bi"] for start in starts]
    for form in ("cross", "bi") * count:
        names = []
        for start, labeller in zip(starts, labellers, strict=True):
            model, pooling = (
                (start["plain"], start["plain_pooling"]) if form == "cross" else (start["bi"], start["pooling"])
            )
            if sequential and stages:
                model = labeller
            stages.append(stage(form, model=model, pooling=pooling, labellers=labellers, negatives=negatives))
            names.append(f"stage{len(stages)}")
        labellers = names
    return chained(stages)


def chained(stages: Sequence[ConfigDict]) -> ConfigDict:
    """The first stage, which names the one that follows it, and so on."""
    config = None
    for current in reversed(stages):
        if config is not None:
            current.then = config
        config = current
    return config


def every(config: ConfigDict, change) -> ConfigDict:
    """The same change in every stage."""
    current = config
    while current is not None:
        change(current)
        current = current.get("then")
    return config


def minilm(count: int = 3) -> ConfigDict:
    return cycles(MINILM, count=count)


def small() -> ConfigDict:
    """One cycle; the pairs are the embedded graded ones, without their scores. The second stage takes them from the first."""

    def shrink(config: ConfigDict) -> None:
        tiny(config)
        config.data.text, config.evals.pairs = "", ""
        config.data.columns = COLUMNS
        config.teacher.targets = "labels"
        config.student.layers = "even:3" if config.student.model == TEACHER else ""
        config.student.dropout = 0.0

    config = every(minilm(count=1), shrink)
    config.data.text = config.evals.pairs = "package:jaxdistill/assets/graded_pairs.tsv"
    return config


PRESETS = {
    "minilm": minilm,
    "tiny": small,
    "paper": lambda: cycles(BERT, count=3),
    "code": lambda: cycles(BERT, count=3, negatives="raw"),
    "sequential": lambda: cycles(BERT, count=3, sequential=True),
    "mutual": lambda: cycles(BERT, ROBERTA, count=3),
}


def get_config(preset: str = "minilm") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("trans_encoder", PRESETS, preset)
