"""Trans-Encoder (Liu et al., ICLR 2022): a bi- and a cross-encoder label sentence pairs for each other, in turn.

    python -m jaxdistill.main --config=configs/trans_encoder.py:PRESET --workdir=runs/NAME --config.text=PAIRS.tsv

Odd stages train a cross-encoder on the bi-encoder's labels, even stages a bi-encoder on the cross-encoder's; a cycle is
two stages. PAIRS.tsv has the columns sentence1 and sentence2, or premise and hypothesis; more files can follow after a
comma. `--config.text` and others are for every stage, `--config.stage2.data.text` for one.
`minilm` chooses the best checkpoint of a stage by --config.pairs, your own graded pairs; else by STS-B dev if
JAXDISTILL_DATA is set; else by agreement with the labels of held-out pairs. The best encoders of all stages are
DIR/best-bi and DIR/best-cross. Many presets take the number of cycles (1 to 5), as in sts:2.

minilm      all-MiniLM-L6-v2 is the first bi-encoder, and the start of every stage; three cycles
reranker    the first half of a cycle on queries and passages (columns title and text, or text and positive), for
            `mine --cross_encoder` and search. all-MiniLM-L6-v2 labels the pairs and starts the cross-encoder. To start from a plain
            BERT, set --config.student.pooling=pooler
quickstart  the default: on text that comes with the project, offline, in a minute or two
tiny        a smoke test from text to both exports in about a minute; says nothing about quality

The same on a task's pairs from JAXDISTILL_DATA, without their labels; a labelled dev set chooses the checkpoint:
sts         all pairs of STS12-16, STS-B and SICK-R, including the tests, as in the paper; chosen on STS-B dev
clean       pairs of NLI instead, without those in any test or dev file; STS-B dev
sick        all pairs of SICK-R; its trial set
qnli        the official dev set; AUC of its first 1,000 pairs. Five cycles, as for mrpc and qqp
mrpc        train and test; AUC of the first 408 pairs of train
qqp         62,861 duplicates and qqp-negatives.tsv, which docs/guide/data.md draws, in QQP's ratio of 37 to 63; as many
            steps as the paper's 21,000 pairs take; STS-B dev

The paper's rows. PRESET:MODEL starts from another checkpoint, as in paper:roberta-large; --help lists them:
paper       from SimCSE, Mirror-BERT, Contrastive Tension or DeCLUTR on STS pairs (Tables 1 and 4). Each cross-encoder
            starts from the plain model (refreshing); clipped labels; three cycles
paper-sick paper-qqp paper-qnli paper-mrpc
            on a task's pairs, as above; QQP's 21,000 pairs and QNLI's first 10,000 of train come from the hub (Tables 5,
            7 and 11)
code        `paper` without clipping labels below 0
sequential  each stage starts from the one before, poolers included (section 5.2, Table 13)
mutual      mutual:base is SimCSE-BERT-base and SimCSE-RoBERTa-base, mutual:large the large ones. The mean of both
            models' scores is the label; best-bi-1 is BERT's, best-bi-2 RoBERTa's (Table 1)
mutual-qqp mutual-qnli mutual-mrpc
            on a task's pairs (Table 11)
alternating one cycle of BERT, one of RoBERTa (footnote 5, the sequential ensemble, which the paper finds worse)
losses      other losses than BCE for cross- and MSE for bi-encoders, as in losses:mse-bce (Table 8), or the regression
            loss of appendix A.2: losses:bce-log_cosh
bi-to-bi    standard self-distillation: three bi-encoders, each on the labels of the one before; bi-to-bi-qnli (Table 14)
contrastive every pair is a positive pair for SimCSE's loss; contrastive-qqp, contrastive-qnli, contrastive-mrpc (Table 9)
simcse-first mirror-first
            SimCSE or Mirror-BERT first makes BERT-base a bi-encoder on the pairs' first sentences, then as `paper`. On
            other text: --config.text=PAIRS.tsv --config.stage1.data.text=FILE.txt
            --config.stage1.data.columns='()'

A data folder has only STS's scored pairs: 23,602 distinct ones, where the paper has 37,081. The others belong to STS15
and STS16; a file of them in its sts folder, such as sts15.unscored.tsv.gz, is also read. docs/results.md has runs from
two starts, on pairs of STS and of NLI; the paper's models are not measured.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

from ml_collections import ConfigDict

from jaxdistill.config.shipped._cycles import (
    COLUMNS,
    FIRST,
    MINILM,
    MODELS,
    PAIRS_OF_MODELS,
    bi_to_bi,
    cycles,
    every,
    stage,
)
from jaxdistill.config.shipped._presets import STS_B_DEV, TEACHER, Stages, chosen, quickstart, set_kind, tiny
from jaxdistill.config.shipped.simcse import mirror, papers, simcse

STS_PAIRS = "data:sts/sts1*.tsv.gz,data:sts/stsb.*.tsv.gz,data:sts/sick.*.tsv.gz"
SICK_PAIRS = "data:sts/sick.*.tsv.gz"
QQP_PAIRS = "hf:nyu-mll/glue:qqp:train[:10000]:question1,hf:nyu-mll/glue:qqp:validation[:11000]:question1"
QQP_STAND_IN = "raw:data:pairs/qqp.duplicates.tsv.gz,raw:qqp-negatives.tsv"
QQP_RATIO = (37.0, 63.0)
"""Duplicates and other pairs, as in a random sample of QQP (`pairs/qqp.sample.tsv.gz` of a data folder)."""
QNLI_DEV_PAIRS = "data:pairs/qnli.dev.tsv.gz"
QNLI_PAIRS = f"hf:nyu-mll/glue:qnli:train[:10000]:question,{QNLI_DEV_PAIRS}"
MRPC_PAIRS = "data:transfer/mrpc.*.tsv.gz"
TESTS = (
    "data:sts/*.tsv.gz,data:nli/s*.tsv.gz,data:transfer/mrpc.*.tsv.gz,data:pairs/qnli.dev.tsv.gz,"
    "data:pairs/qqp.sample.tsv.gz"
)
"""All test and dev pairs of a data folder (and training ones that lie beside them)."""
QQP_SIZE = 21_000
"""The paper's number of pairs; the stand-in has more, and as many steps are made."""
BERT_OF_STAGE_1 = MODELS["bert-base"] | dict(bi="stage1", pooling="")


def reranker() -> ConfigDict:
    """A cross-encoder that reads a query and a passage, in this order; agreement with its labels chooses the checkpoint."""
    config = stage("cross", MINILM, labellers=[TEACHER], labelled_by="bi")
    config.objective.both_orders = False
    config.data.columns = (("text", "title|text"), ("second", "positive|text"))
    config.data.batch_size = 32
    config.data.max_length = config.teacher.max_length = 192
    config.optimizer.learning_rate = 1e-4
    config.student.pooling = ""
    config.evals.best = "agreement/spearman"
    config.evals.every = 100
    return config


def contrastive(origin: Mapping[str, str | int], *, text: str = STS_PAIRS, best: str = STS_B_DEV) -> ConfigDict:
    """SimCSE's loss with the sentences of a pair as anchor and positive; STS without duplicates, other tasks as they are."""
    (config,) = on_pairs([papers(origin["bi"], batch_size=64, learning_rate=3e-5)], text, best=best)
    set_kind(config, "objective", **simcse(views=("text", "second")))
    config.data.columns = COLUMNS
    config.data.dedupe = text == STS_PAIRS
    config.student.pooling = origin["pooling"]
    config.student.head = "none"
    return config


def on_first_sentences(config: ConfigDict) -> ConfigDict:
    """A stage of single sentences that reads the first one of each pair."""
    config.data.columns = (FIRST,)
    config.data.dedupe = True
    return config


def on_pairs(
    stages: list[ConfigDict], text: str = STS_PAIRS, *, best: str = STS_B_DEV, exclude: str = ""
) -> list[ConfigDict]:
    """All stages on this text, with this dev metric."""

    def change(stage: ConfigDict) -> None:
        stage.data.update(text=text, exclude=exclude)
        stage.evals.best = best

    return every(stages, change)


def cycles_after(first: ConfigDict, *, count: int) -> list[ConfigDict]:
    """The paper's cycles, whose first bi-encoder is what this stage makes of a plain model."""
    return on_pairs(cycles(BERT_OF_STAGE_1, count=count, before=[on_first_sentences(first)]))


def on_sick(stages: list[ConfigDict]) -> list[ConfigDict]:
    stages = on_pairs(stages, SICK_PAIRS, best="pairs/spearman")
    return every(stages, lambda stage: stage.evals.update(pairs="data:sts/sick.trial.tsv.gz"))


def binary(
    stages: list[ConfigDict], text: str, *, best: str = STS_B_DEV, both_orders: bool = True, dedupe: bool = False
) -> list[ConfigDict]:
    """QQP, QNLI and MRPC in Table 16: 3 epochs of a cross-encoder, 15 of a bi-encoder."""

    def change(stage: ConfigDict) -> None:
        crosses = stage.objective.form == "cross"
        if crosses and not both_orders:
            stage.objective.both_orders = False
            stage.data.batch_size = 32
        stage.data.dedupe = dedupe
        stage.run.epochs = 3.0 if crosses else 15.0

    return every(on_pairs(stages, text, best=best), change)


def qqp_stand_in(stages: list[ConfigDict]) -> list[ConfigDict]:
    """Duplicates and mined negatives in QQP's ratio, for as many steps as epochs of the paper's pairs take."""

    def change(stage: ConfigDict) -> None:
        stage.run.steps = int(stage.run.epochs) * math.ceil(QQP_SIZE / stage.data.batch_size)
        stage.data.weights = QQP_RATIO

    return every(binary(stages, QQP_STAND_IN, dedupe=True), change)


TASKS: Mapping[str, Callable[[list[ConfigDict]], list[ConfigDict]]] = {
    "sick": on_sick,
    "qqp": lambda config: binary(config, QQP_PAIRS),
    "qnli": lambda config: binary(config, QNLI_PAIRS, best="qnli-dev/auc", both_orders=False),
    "mrpc": lambda config: binary(config, MRPC_PAIRS, best="mrpc-dev/auc"),
}
"""The paper's tasks beside STS, and what makes its settings of those for STS."""
BINARY = {
    "qqp": dict(text=QQP_PAIRS),
    "qnli": dict(text=QNLI_PAIRS, best="qnli-dev/auc"),
    "mrpc": dict(text=MRPC_PAIRS, best="mrpc-dev/auc"),
}
CYCLES_OF_TASK = {"sick": 3, "qqp": 5, "qnli": 5, "mrpc": 5}


def small(size: Callable[[ConfigDict], ConfigDict]) -> list[ConfigDict]:
    """One cycle; the pairs are the embedded graded ones, without their scores."""

    def shrink(config: ConfigDict) -> None:
        size(config)
        config.data.text = config.evals.pairs = "package:jaxdistill/core/assets/graded_pairs.tsv"
        config.data.columns = COLUMNS
        config.evals.agreement, config.evals.best = "", "pairs/spearman"
        set_kind(config, "teacher", "labels")
        config.teacher.max_length = 0  # for encoders with fewer positions
        config.student.layers = "even:3" if config.student.model == TEACHER else ""
        config.student.dropout = 0.0

    return every(cycles(MINILM, count=1), shrink)


def of_minilm(change: Callable[[list[ConfigDict]], list[ConfigDict]], default: int) -> Callable[..., Stages]:
    """A preset of our own start; its argument is the number of cycles."""
    return lambda count=default: change(cycles(MINILM, count=int(count)))


def of_model(make: Callable[[Mapping[str, str | int]], Stages], default: str = "bert-base") -> Callable[..., Stages]:
    """A preset whose argument is one of `MODELS`."""
    return lambda name=default: make(MODELS[name])


def mutual(argument: str = "base", *, task: str = "") -> list[ConfigDict]:
    """Both models of a size; a number of cycles instead means the base ones."""
    count = int(argument) if argument.isdecimal() else CYCLES_OF_TASK.get(task, 3)
    config = cycles(*(MODELS[name] for name in PAIRS_OF_MODELS.get(argument, PAIRS_OF_MODELS["base"])), count=count)
    return TASKS[task](config) if task else on_pairs(config)


def paper(origin: Mapping[str, str | int], *, task: str) -> list[ConfigDict]:
    """A task's row of Tables 5, 7 and 11."""
    return TASKS[task](cycles(origin, count=CYCLES_OF_TASK[task]))


def sequential(origin: Mapping[str, str | int]) -> list[ConfigDict]:
    return on_pairs(cycles(origin, count=3, sequential=True))


def losses(combination: str = "bce-bce") -> list[ConfigDict]:
    """`paper` with other losses, of all cross- and of all bi-encoders."""
    loss_of_form = dict(zip(("cross", "bi"), combination.split("-"), strict=True))
    return every(
        on_pairs(cycles(MODELS["bert-base"], count=3)),
        lambda current: current.objective.update(loss=loss_of_form[current.objective.form]),
    )


def alternating(count: str | int = 2) -> list[ConfigDict]:
    return on_pairs(cycles(*(MODELS[name] for name in PAIRS_OF_MODELS["base"]), count=int(count), alternating=True))


def simcse_first(count: str | int = 3) -> list[ConfigDict]:
    return cycles_after(papers(MODELS["bert-base"]["plain"], batch_size=64, learning_rate=3e-5), count=int(count))


def mirror_first(count: str | int = 3) -> list[ConfigDict]:
    return cycles_after(mirror(MODELS["bert-base"]["plain"], pooling="mean"), count=int(count))


OURS = {
    "minilm": of_minilm(lambda config: config, 3),
    "sts": of_minilm(on_pairs, 3),
    "clean": of_minilm(partial(on_pairs, text="data:nli/train.tsv.gz", exclude=TESTS), 3),
    "sick": of_minilm(on_sick, 3),
    "qnli": of_minilm(
        lambda config: binary(config, QNLI_DEV_PAIRS, best="qnli-dev/auc", both_orders=False, dedupe=True), 5
    ),
    "mrpc": of_minilm(lambda config: binary(config, MRPC_PAIRS, best="mrpc-dev/auc", dedupe=True), 5),
    "qqp": of_minilm(qqp_stand_in, 5),
    "alternating": alternating,
    "simcse-first": simcse_first,
    "mirror-first": mirror_first,
}
"""Presets whose argument is a number of cycles."""
PRESETS = {
    "quickstart": partial(small, quickstart),
    "tiny": partial(small, tiny),
    "reranker": reranker,
    **OURS,
    "paper": of_model(lambda origin: on_pairs(cycles(origin, count=3))),
    **{f"paper-{task}": of_model(partial(paper, task=task)) for task in TASKS},
    "code": of_model(lambda origin: on_pairs(cycles(origin, count=3, negatives="raw"))),
    "sequential": of_model(sequential),
    "mutual": mutual,
    **{f"mutual-{task}": partial(mutual, task=task) for task in BINARY},
    "losses": losses,
    "bi-to-bi": of_model(lambda origin: on_pairs(bi_to_bi(origin, count=3))),
    "bi-to-bi-qnli": of_model(lambda origin: binary(bi_to_bi(origin, count=3), **BINARY["qnli"])),
    "contrastive": of_model(contrastive, "roberta-base"),
    **{f"contrastive-{task}": of_model(partial(contrastive, **data), "roberta-base") for task, data in BINARY.items()},
}
COUNTS = tuple(map(str, range(1, 6)))
CONTRASTIVE = ("roberta-base", "mirror-roberta-base-drophead")
SIMCSE = ("bert-base", "roberta-base", "bert-large", "roberta-large")
ARGUMENTS = {
    **dict.fromkeys(OURS, COUNTS),
    "paper": tuple(MODELS),
    **{f"paper-{task}": SIMCSE if task == "sick" else tuple(MODELS) for task in TASKS},
    "code": SIMCSE[:2],
    "sequential": SIMCSE[:2],
    "mutual": (*PAIRS_OF_MODELS, *COUNTS),
    **{f"mutual-{task}": tuple(PAIRS_OF_MODELS) for task in BINARY},
    "losses": ("bce-bce", "mse-mse", "mse-bce", "bce-log_cosh"),
    **dict.fromkeys(("bi-to-bi", "bi-to-bi-qnli"), SIMCSE[:2]),
    **dict.fromkeys(("contrastive", *(f"contrastive-{task}" for task in BINARY)), CONTRASTIVE),
}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("trans_encoder", PRESETS, preset, ARGUMENTS)
