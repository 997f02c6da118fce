"""Trans-Encoder (Liu et al., ICLR 2022): a bi- and a cross-encoder label pairs of sentences for each other, in turn.

    python -m jaxdistill.main --config=configs/trans_encoder.py:PRESET --workdir=runs/NAME --config.data.text=PAIRS.tsv

Odd stages train a cross-encoder on the bi-encoder's labels, even ones a bi-encoder on the cross-encoder's; two of them
are a cycle. PAIRS.tsv has the columns sentence1 and sentence2, or premise and hypothesis; a second file behind a comma
adds its pairs. What text, exclude and columns say holds for all stages. With JAXDISTILL_DATA, the best checkpoint of
each stage is that with the best score on STS-B dev; with --config.evals.pairs on your own graded pairs; without either,
the one that agrees best with the labels of pairs kept out of training. The best bi- and the best cross-encoder of all
stages are DIR/best-bi and DIR/best-cross. PRESET:N makes N cycles instead, as in sts:2.

minilm      all-MiniLM-L6-v2 is the first bi-encoder, and where every stage starts; three cycles
tiny        the path from text to both exports in about a minute; proves nothing about quality

The same on a task's pairs, which JAXDISTILL_DATA has, without their labels; a labelled dev set chooses:
sts         all pairs of STS12-16, STS-B and SICK-R, tests among them, as in the paper; STS-B dev
clean       pairs of NLI instead, but those that are in any test or dev file; STS-B dev
sick        all pairs of SICK-R; its trial set
qnli        the official dev set; by AUC of its first 1,000 pairs. Five cycles, as the next two
mrpc        train and test; by AUC of the first 408 pairs of train
qqp         the test sample and duplicates; STS-B dev, as there are no more pairs with both labels

The paper's models, on STS pairs where no text is given (--config.data.text=data:nli/train.tsv.gz
--config.data.exclude='data:sts/*.tsv.gz' for other ones, without those of STS):
paper       unsupervised SimCSE-BERT-base; cross-encoders start from BERT-base (refreshing); clipped labels; 3 cycles
code        the same with labels below 0 as they are
sequential  each stage starts from the one before (the paper's section 5.2)
mutual      SimCSE-BERT-base and SimCSE-RoBERTa-base label together, by the mean of their scores; 3 cycles
alternating one cycle of BERT, one of RoBERTa (footnote 5, the sequential ensemble, which the paper finds worse)
simcse-first mirror-first
            BERT-base becomes a bi-encoder by SimCSE or Mirror-BERT on the pairs' first sentences, then `paper`; with
            --config.data.text=FILE.txt --config.data.columns='()' --config.then.data.text=PAIRS.tsv on others

Ablations from all-MiniLM-L6-v2 on STS pairs:
bi-to-bi    standard self-distillation: bi-encoders on the labels of the one before, three of them (Table 14)
contrastive every pair is a positive one for SimCSE's loss (Table 9)

Two starts on pairs of STS and of NLI are measured in docs/results.md; the paper's models are not.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from _presets import TEACHER, chosen, options, tiny
from ml_collections import ConfigDict
from simcse import mirror, papers, simcse

FIRST = ("text", "sentence1|premise")
COLUMNS = (FIRST, ("second", "sentence2|hypothesis"))
STS_PAIRS = "data:sts/sts1*.tsv.gz,data:sts/stsb.*.tsv.gz,data:sts/sick.*.tsv.gz"
TESTS = (
    "data:sts/*.tsv.gz,data:nli/s*.tsv.gz,data:transfer/mrpc.*.tsv.gz,data:pairs/qnli.dev.tsv.gz,"
    "data:pairs/qqp.sample.tsv.gz"
)
"""All test and dev pairs of a data folder (and training ones that lie beside them)."""
QQP_PAIRS = 21_000
"""The paper's number of pairs; there are three times as many here, and as many steps are made."""

LENGTHS = dict(bi=32, cross=64)
"""Most tokens of a sentence or of a pair, in training and while it is labelled (the code)."""

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
BERT_OF_STAGE_1 = BERT | dict(bi="stage1", pooling="")


def trans_encoder(form: str, **changed) -> dict:
    """The objective with its options."""
    defaults = dict(form=form, loss="bce", negatives="clip", both_orders=True)
    defaults |= dict(loss="mse", both_orders=False) if form == "bi" else {}
    return dict(name="trans_encoder") | defaults | changed


def stage(
    form: str,
    start: Mapping[str, str],
    *,
    labellers: Sequence[str],
    labelled_by: str,
    negatives: str = "clip",
    model: str = "",
) -> ConfigDict:
    """One direction, with the settings of the paper's Table 16 for base models on STS.

    Args:
      start: as `BERT`.
      labelled_by: the form of the labellers, which read as many tokens as models of this form do in training.
      model: starts the student instead.
    """
    config = options(**trans_encoder(form, negatives=negatives))
    config.data.columns = COLUMNS
    config.teacher.targets = "labels"
    config.teacher.model = ",".join(labellers)
    config.teacher.pooling = start["pooling"] if start["bi"] in labellers else ""  # exports of stages say their own
    config.teacher.max_length = LENGTHS[labelled_by]
    config.student.model = model or (start["plain"] if form == "cross" else start["bi"])
    config.student.pooling = start["plain_pooling"] if form == "cross" else start["pooling"]
    config.student.head = "pair" if form == "cross" else "none"
    config.student.head_init = "normal"
    config.data.batch_size = 16 if form == "cross" else 128  # pairs; a cross-encoder reads both orders: 32 sequences
    config.data.max_length = LENGTHS[form]
    config.optimizer.learning_rate = 2e-5 if form == "cross" else 5e-5
    config.optimizer.warmup_fraction = 0.1 if form == "cross" else 0.0
    config.run.epochs = 1.0 if form == "cross" else 10.0
    config.run.seed = 2021
    config.evals.every = 200
    return config


def cycles(
    *starts: Mapping[str, str],
    count: int,
    negatives: str = "clip",
    sequential: bool = False,
    alternating: bool = False,
    before: Sequence[ConfigDict] = (),
) -> ConfigDict:
    """Cross-encoders from all bi-encoders' labels, then bi-encoders from all cross-encoders', `count` times.

    Args:
      starts: for each of the models that label together, as `BERT`.
      sequential: start each stage from the last one of the other form, not from `starts`.
      alternating: the starts take turns, a cycle each, instead of labelling together.
      before: stages that come first.
    """
    stages, labellers = list(before), []
    for cycle in range(count):
        trained = [starts[cycle % len(starts)]] if alternating else starts
        labellers = labellers or [start["bi"] for start in trained]
        for form in ("cross", "bi"):
            names = []
            for place, start in enumerate(trained):
                model = labellers[place] if sequential and stages else ""
                labelled_by = "bi" if form == "cross" else "cross"
                options = dict(labellers=labellers, labelled_by=labelled_by, negatives=negatives, model=model)
                stages.append(stage(form, start, **options))
                names.append(f"stage{len(stages)}")
            labellers = names
    return chained(stages)


def bi_to_bi(start: Mapping[str, str], *, count: int) -> ConfigDict:
    """Bi-encoders alone, each from the start and on the labels of the one before, which are cosines as its own are."""
    labellers = [start["bi"], *(f"stage{number}" for number in range(1, count))]
    stages = [stage("bi", start, labellers=[name], labelled_by="bi", negatives="raw") for name in labellers]
    return chained(stages)


def contrastive() -> ConfigDict:
    """SimCSE's loss with the sentences of a pair as anchor and positive."""
    config = papers(TEACHER, batch_size=64, learning_rate=3e-5)
    config.objective = ConfigDict(simcse(views=("text", "second")))
    config.data.columns = COLUMNS
    config.data.dedupe = True
    config.student.pooling = "mean"
    config.student.head = "none"
    return config


def on_first_sentences(config: ConfigDict) -> ConfigDict:
    """A stage of single sentences that reads the first one of each pair."""
    config.data.columns = (FIRST,)
    config.data.dedupe = True
    return config


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


def on_pairs(config: ConfigDict, text: str = STS_PAIRS, *, best: str = "", exclude: str = "") -> ConfigDict:
    """All stages on this text, with this dev metric; by default STS-B dev, which lies in the data folder too."""
    config.data.text = text
    config.data.exclude = exclude
    return every(config, lambda current: current.evals.update(best=best))


def after(first: ConfigDict, *, count: int) -> ConfigDict:
    """The paper's cycles, whose first bi-encoder is what this stage makes of a plain model."""
    return on_pairs(cycles(BERT_OF_STAGE_1, count=count, before=[on_first_sentences(first)]))


def sick(count: int) -> ConfigDict:
    config = on_pairs(cycles(MINILM, count=count), "data:sts/sick.*.tsv.gz", best="pairs/spearman")
    config.evals.pairs = "data:sts/sick.trial.tsv.gz"
    return config


def binary(text: str, count: int, *, best: str = "", both_orders: bool = True, pairs: int = 0) -> ConfigDict:
    """QQP, QNLI and MRPC in Table 16: cycles of 3 and 15 epochs; with `pairs`, epochs of so many pairs."""

    def change(config: ConfigDict) -> None:
        crosses = config.objective.form == "cross"
        config.data.batch_size = 128 if not crosses else 16 if both_orders else 32
        config.run.epochs = 3.0 if crosses else 15.0
        config.run.steps = round(config.run.epochs * pairs / config.data.batch_size)
        config.objective.both_orders = crosses and both_orders

    return every(on_pairs(cycles(MINILM, count=count), text, best=best), change)


def small() -> ConfigDict:
    """One cycle; the pairs are the embedded graded ones, without their scores. The second stage takes them from the first."""

    def shrink(config: ConfigDict) -> None:
        tiny(config)
        config.data.text, config.evals.pairs = "", ""
        config.data.columns = COLUMNS
        config.teacher.targets = "labels"
        config.student.layers = "even:3" if config.student.model == TEACHER else ""
        config.student.dropout = 0.0

    config = every(cycles(MINILM, count=1), shrink)
    config.data.text = config.evals.pairs = "package:jaxdistill/assets/graded_pairs.tsv"
    return config


CYCLES: Mapping[str, tuple[int, Callable[[int], ConfigDict]]] = {
    "minilm": (3, lambda count: cycles(MINILM, count=count)),
    "sts": (3, lambda count: on_pairs(cycles(MINILM, count=count))),
    "clean": (3, lambda count: on_pairs(cycles(MINILM, count=count), "data:nli/train.tsv.gz", exclude=TESTS)),
    "sick": (3, sick),
    "qnli": (5, lambda n: binary("data:pairs/qnli.dev.tsv.gz", n, best="qnli-dev/auc", both_orders=False)),
    "mrpc": (5, lambda count: binary("data:transfer/mrpc.*.tsv.gz", count, best="mrpc-dev/auc")),
    "qqp": (5, lambda count: binary("data:pairs/qqp.*.tsv.gz", count, pairs=QQP_PAIRS)),
    "paper": (3, lambda count: on_pairs(cycles(BERT, count=count))),
    "code": (3, lambda count: on_pairs(cycles(BERT, count=count, negatives="raw"))),
    "sequential": (3, lambda count: on_pairs(cycles(BERT, count=count, sequential=True))),
    "mutual": (3, lambda count: on_pairs(cycles(BERT, ROBERTA, count=count))),
    "alternating": (2, lambda count: on_pairs(cycles(BERT, ROBERTA, count=count, alternating=True))),
    "simcse-first": (3, lambda n: after(papers(BERT["plain"], batch_size=64, learning_rate=3e-5), count=n)),
    "mirror-first": (3, lambda count: after(mirror(BERT["plain"], pooling="mean"), count=count)),
    "bi-to-bi": (3, lambda count: on_pairs(bi_to_bi(MINILM, count=count))),
}
"""Name to the number of cycles, of bi-encoders in `bi-to-bi`, and what makes so many."""
PRESETS = {
    "tiny": small,
    **{name: partial(make, count) for name, (count, make) in CYCLES.items()},
    "contrastive": lambda: on_pairs(contrastive()),
}


def get_config(preset: str = "minilm") -> ConfigDict:
    """The preset's options, all of them spelled out; `PRESET:N` has N cycles."""
    name, _, count = preset.partition(":")
    if not count:
        return chosen("trans_encoder", PRESETS, name)
    if name not in CYCLES or not count.isdecimal() or int(count) == 0:
        raise ValueError(f"preset {preset!r}: a number of cycles, at least 1, goes with {', '.join(CYCLES)}.")
    return CYCLES[name][1](int(count))
