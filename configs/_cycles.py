"""The stages of Trans-Encoder (configs/trans_encoder.py): its models, both directions, and cycles of them."""

from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import TEACHER, options, set_kind

FIRST = ("text", "sentence1|premise|question1|text")
COLUMNS = (FIRST, ("second", "sentence2|hypothesis|question2|sentence|negative"))
"""Columns of STS and MRPC, NLI, QQP, QNLI (whose spec names the first), and of pairs that `jaxdistill.mine` made."""
LENGTHS = dict(bi=32, cross=64)
"""Most tokens of a sentence or of a pair, in training and while it is labelled (the code)."""


def start(bi: str, plain: str, **changed) -> Mapping[str, str | int]:
    """First bi-encoder with its pooling, the checkpoint that its cross-encoders start from, with its own, and the
    bi-encoder's batch."""
    pooler = "cls" if "roberta" in plain else "pooler"  # RoBERTa's cross-encoder has a dense layer of its own instead
    return dict(bi=bi, plain=plain, pooling="cls", plain_pooling=pooler, batch_size=128) | changed


def large(bi: str, plain: str) -> Mapping[str, str | int]:
    return start(bi, plain, batch_size=64)


MODELS = {
    "bert-base": start("princeton-nlp/unsup-simcse-bert-base-uncased", "google-bert/bert-base-uncased"),
    "roberta-base": start("princeton-nlp/unsup-simcse-roberta-base", "FacebookAI/roberta-base"),
    "bert-large": large("princeton-nlp/unsup-simcse-bert-large-uncased", "google-bert/bert-large-uncased"),
    "roberta-large": large("princeton-nlp/unsup-simcse-roberta-large", "FacebookAI/roberta-large"),
    "mirror-roberta-base": start("cambridgeltl/mirror-roberta-base-sentence", "FacebookAI/roberta-base"),
    "mirror-roberta-base-drophead": start(
        "cambridgeltl/mirror-roberta-base-sentence-drophead", "FacebookAI/roberta-base"
    ),
    "ct-bert-base": start("Contrastive-Tension/BERT-Base-CT", "google-bert/bert-base-uncased"),
    "declutr-roberta-base": start("johngiorgi/declutr-base", "FacebookAI/roberta-base"),
}
"""The paper's Table 17, all read at the first token, as it says."""
PAIRS_OF_MODELS = {"base": ("bert-base", "roberta-base"), "large": ("bert-large", "roberta-large")}
MINILM = start(TEACHER, TEACHER, pooling="mean")


def trans_encoder(form: str, **changed) -> dict:
    """The objective with its options."""
    defaults = dict(form=form, loss="bce", negatives="clip", both_orders=True)
    defaults |= dict(loss="mse", both_orders=False) if form == "bi" else {}
    return dict(kind="trans_encoder") | defaults | changed


def stage(
    form: str,
    origin: Mapping[str, str | int],
    *,
    labellers: Sequence[str],
    labelled_by: str,
    negatives: str = "clip",
    model: str = "",
) -> ConfigDict:
    """One direction, with the settings of the paper's Table 16 on STS.

    Args:
      origin: one of `MODELS`.
      labelled_by: the form of the labellers, which read as many tokens as models of this form do in training.
      model: starts the student instead.
    """
    config = options(**trans_encoder(form, negatives=negatives))
    config.data.columns = COLUMNS
    set_kind(config, "teacher", "labels")
    config.teacher.model = ",".join(labellers)
    config.teacher.pooling = origin["pooling"] if origin["bi"] in labellers else ""  # exports of stages say their own
    config.teacher.max_length = LENGTHS[labelled_by]
    if form == "cross":
        set_kind(config, "student", "cross_encoder")
    config.student.model = model or (origin["plain"] if form == "cross" else origin["bi"])
    config.student.max_length = 512  # evaluations read more than training does
    config.student.pooling = origin["plain_pooling"] if form == "cross" else origin["pooling"]
    config.data.batch_size = 16 if form == "cross" else origin["batch_size"]  # pairs; in both orders 32 sequences
    config.data.max_length = LENGTHS[form]
    config.optimizer.learning_rate = 2e-5 if form == "cross" else 5e-5
    config.optimizer.warmup_fraction = 0.1 if form == "cross" else 0.0
    config.optimizer.eps_before_correction = True
    config.run.epochs = 1.0 if form == "cross" else 10.0
    config.run.seed = 2021
    config.evals.every = 200
    # Never a random head, and in the paper's rows never the start; ours may be better than what it is trained to be.
    config.evals.untrained = form == "bi" and origin is MINILM
    return config


def cycles(
    *starts: Mapping[str, str | int],
    count: int,
    negatives: str = "clip",
    sequential: bool = False,
    alternating: bool = False,
    before: Sequence[ConfigDict] = (),
) -> list[ConfigDict]:
    """Cross-encoders from all bi-encoders' labels, then bi-encoders from all cross-encoders', `count` times.

    Args:
      starts: of `MODELS`, one for each that labels together with the others.
      sequential: start each stage from the model that made its labels, not from `starts`.
      alternating: the starts take turns, a cycle each, instead of labelling together.
      before: stages that come first.
    """
    stages, labellers = list(before), []
    for cycle in range(count):
        origins = [starts[cycle % len(starts)]] if alternating else starts
        labellers = labellers or [origin["bi"] for origin in origins]
        for form in ("cross", "bi"):
            names = []
            for index, origin in enumerate(origins):
                model = labellers[index] if sequential else ""
                labelled_by = "bi" if form == "cross" else "cross"
                settings = dict(labellers=labellers, labelled_by=labelled_by, negatives=negatives, model=model)
                stages.append(stage(form, origin, **settings))
                names.append(f"stage{len(stages)}")
            labellers = names
    return stages


def bi_to_bi(origin: Mapping[str, str | int], *, count: int) -> list[ConfigDict]:
    """Bi-encoders alone, each from the start and on the labels of the one before, which are cosines as its own are."""
    labellers = [origin["bi"], *(f"stage{number}" for number in range(1, count))]
    return [stage("bi", origin, labellers=[name], labelled_by="bi", negatives="raw") for name in labellers]


def every(stages: list[ConfigDict], change) -> list[ConfigDict]:
    """The same change in every stage."""
    for stage in stages:
        change(stage)
    return stages
