"""All options of a run, as frozen dataclasses with defaults."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Literal

from jaxdistill.core import Count, CountOrNone, Fraction, NotNegative, Objective, Positive, Precision, Range, Rate
from jaxdistill.core.plugins import KINDS
from jaxdistill.data.options import Data
from jaxdistill.models.student import Student
from jaxdistill.models.students import Cut
from jaxdistill.models.teacher import Teacher
from jaxdistill.models.teachers import Live
from jaxdistill.objectives.weighted import Weighted

ShardingWord = Literal["zero", "fsdp", "tensor"]
ShardingRules = tuple[tuple[str, tuple[str, ...]], ...]
Sharding = ShardingWord | ShardingRules
WITHOUT_EFFECT = (
    "run.log_every", "run.save_every", "run.keep", "run.remat", "run.model_axis", "run.sharding", "run.slices", "run.profile",
    "run.restore_step", "run.export_to", "run.paper", "data.cache_folder", "data.max_unknown",
)  # fmt: skip
"""Options that do not change the student, except for rounding."""
EXTENSIONS = (
    *WITHOUT_EFFECT, "run.steps", "run.epochs", "evals.every", "evals.patience", "evals.patience_epochs", "evals.average",
    "evals.sts", "student.export_prompt",
)  # fmt: skip
"""Options that may change when a run is resumed: they do not affect the steps already trained."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The optimiser, with a warm-up and a learning-rate schedule."""

    name: str = "adamw"
    """`adamw`, which the options from `decay` to `eps_before_correction` describe; `schedule_free`, the same with averaged
    parameters instead of a decaying rate (use `schedule=constant`); or an optimiser of `optax` or `optax.contrib`, such as `lion`,
    `adafactor` or `muon`, with its own defaults for everything but learning rate and weight decay."""
    learning_rate: Positive = 5e-4
    """Peak learning rate, at the end of the warm-up."""
    schedule: Literal["linear", "cosine", "constant", "wsd"] = "linear"
    """After the warm-up: `linear` or `cosine` decay to 0, `constant`, or `wsd`, which is constant and then decays linearly."""
    decay_fraction: Fraction = 0.1
    """Share of all steps, the last ones, over which `wsd` decays."""
    warmup_fraction: Fraction = 0.1
    """Share of all steps over which the learning rate rises linearly from 0."""
    warmup_steps: CountOrNone = 0
    """Above 0: the number of warm-up steps, instead of `warmup_fraction`."""
    weight_decay: NotNegative = 0.01
    """Decoupled weight decay; multiplied by the learning rate."""
    decay: Literal["matrices", "all"] = "matrices"
    """Parameters that decay. `matrices`: all but biases, norms and learned temperatures (BERT, ConGen). `all`: as PyTorch."""
    b1: Rate = 0.9
    """Adam's decay rate of the mean gradient."""
    b2: Rate = 0.999
    """Adam's decay rate of the mean squared gradient."""
    eps: Positive = 1e-6
    """Adam's epsilon, added to the root of the mean squared gradient. NOTE: smaller gradients hardly move parameters."""
    bias_correction: bool = True
    """Adam's bias correction. False: none, as in BERT's and ConGen's code."""
    eps_before_correction: bool = False
    """Adds epsilon before the bias correction, as transformers' `AdamW` does (SimCSE, DistilCSE, Trans-Encoder), not after."""
    clip_norm: NotNegative = 1.0
    """Maximum global gradient norm; 0: no clipping."""
    rates: tuple[tuple[str, NotNegative], ...] = ()
    """Factors of the learning rate, by regular expressions on the paths of parameters; the first match counts, 0 freezes:
    `--config.optimizer.rates="(('embeddings', 0.0), ('layers/0/', 0.5))"`."""
    ema: Rate = 0.0
    """Above 0: decay rate of the moving average of the student's parameters, which is evaluated and exported in their place."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evals:
    """Evaluation during training, and the choice of the best checkpoint."""

    every: Count = 512
    """Steps between evaluations. Each evaluation saves a checkpoint; the last step is always evaluated."""
    best: str = ""
    """Metric that selects the best checkpoint. Empty: the first available of pairs/spearman (pairs/auc if all scores
    are 0 or 1), retrieval-dev/ndcg@10, entities/recall@1, sts-b-dev/spearman (if JAXDISTILL_DATA names a data folder) and
    agreement/spearman. Also available: agreement/recall@1 and agreement/recall@10. If named, sts-b-dev/spearman is read from
    the data folder or the hub, and qnli-dev/auc and mrpc-dev/auc from the data folder. `last`: exports the last checkpoint
    regardless of its score; it needs no dev set."""
    pairs: str = ""
    """Your own graded pairs: a .tsv or .csv file with the columns score, sentence1 and sentence2; empty: none."""
    retrieval: str = ""
    """Your own retrieval sets in BEIR's format: folders or hub names, separated by commas. Measures their mean nDCG@10."""
    retrieval_split: Literal["", "train", "dev", "test"] = ""
    """Split of their judgements (`qrels/SPLIT.tsv`) that chooses the checkpoint; empty: `dev`. A lone `qrels.tsv` is `test`; a
    checkpoint chosen on test has too high a test score. The metric's name includes the split: `retrieval-dev/ndcg@10`."""
    entities: str = ""
    """Your own entities: a file per language, separated by commas, with columns query, entity, label. Measures mean recall@1."""
    agreement: str = ""
    """Text on which agreement with the teacher is measured; lines 1 and 2 form a pair, lines 3 and 4 the next. Empty:
    sentences are held out of training for this if no other metric chooses the checkpoint."""
    patience: CountOrNone = 0
    """Stop after this many evaluations without improvement; 0: never."""
    patience_epochs: NotNegative = 0.0
    """Stop after this many epochs without improvement; 0: never. ConGen's code uses 7, DistilCSE's 3."""
    untrained: bool = True
    """Whether the untrained student may be the best checkpoint; it may not in the code of Trans-Encoder and SimCSE."""
    average: tuple[CountOrNone, ...] = ()
    """Steps such as (0,600): the mean of their checkpoints is evaluated and exported instead of the best checkpoint."""
    sts: bool = True
    """Score the seven STS sets after training if JAXDISTILL_DATA names a data folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Length, seed, precision, devices and checkpoints of a run."""

    steps: Annotated[int, Range(least=-1)] = -1
    """Number of updates; -1: as `epochs` says; 0: exports the untrained student. `minutes`, if set, replaces it."""
    minutes: NotNegative = 0.0
    """Above 0: as many updates as take this long, without evaluations, at the speed measured before step 1. Their
    number is printed, and stored in the workdir for resumed runs."""
    epochs: NotNegative = 1.0
    """Passes over the text, used if `steps` is -1 and `minutes` is 0."""
    seed: Annotated[int, Range(least=0, most=2**32 - 1)] = 0
    """Seed of all random choices, except which sentences are reserved for the first queue and for evaluation."""
    precision: Precision = "auto"
    """Precision of matrix products, also in evaluations during training. Sums, softmax, norms and losses stay float32.
    `auto`: bfloat16 where the hardware supports it."""
    accumulate: Count = 1
    """Gradient accumulation: number of parts into which a batch is split to save memory. If the loss compares examples,
    each part is computed twice and the loss still compares the whole batch (gradient cache)."""
    remat: bool = False
    """Recompute activations in the backward pass, which saves memory and costs about a third more computation."""
    model_axis: Count = 1
    """Devices over which `sharding=tensor` or rules split parameters. The mesh's other axes split the batch."""
    slices: CountOrNone = 0
    """Number of groups of devices with fast links, such as TPU slices or GPU hosts. `zero` and `fsdp` split parameters
    within each group, so that only gradients are sent between groups. 0: as the devices report; one group on CPUs."""
    sharding: Sharding = ()
    """How parameters, optimizer state and a live teacher are split over devices. `zero`: the student's large matrices,
    their optimizer state and average, over the devices of a slice that split the batch. `fsdp`: the teacher's too. `tensor`:
    attention heads, feed-forward networks and word embeddings, over `model_axis`. Or rules: (regular expression on a
    parameter's path, its axes such as `("model", "")`). The rest is replicated."""
    log_every: Count = 50
    """Steps between logged metrics; at most a third of the run's steps."""
    save_every: CountOrNone = 0
    """Steps between checkpoints besides those at evaluations; 0: none."""
    profile: str = ""
    """`10:20`: the first process traces steps 10 to 20 into `profile/` in the workdir, for xprof. Short form: `--profile`."""
    export_to: Literal["", "onnx"] = ""
    """`onnx`: add ONNX files to the export (docs/deployment.md); empty: none."""
    plugins: str = ""
    """Your own Python modules or files, separated by commas, with views or encoder families (docs/extending.md)."""
    paper: str = ""
    """Row of a paper (configs/papers/), such as `congen:tinybert-l4`, whose scores are shown beside the run's."""
    keep: Annotated[int, Range(least=2)] = 2
    """Number of latest checkpoints to keep besides the best one; at least 2, in case the latest is damaged."""
    restore_step: Annotated[int, Range(least=-1)] = -1
    """Checkpoint from which a resumed run continues; deletes later ones and their metrics. -1: the latest checkpoint."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """All options of a training, or of one stage of a chain."""

    data: Data = Data()
    teacher: Teacher = Live()
    student: Student = Cut()
    objective: Objective
    optimizer: Optimizer = Optimizer()
    evals: Evals = Evals()
    run: RunOptions = RunOptions()

    @property
    def kinds(self) -> Mapping[str, str]:
        """Maps each section that has kinds, and each term of a sum of objectives (`objectives.NAME`), to its kind."""
        terms = self.objective.terms if isinstance(self.objective, Weighted) else ()
        kinds_of_terms = {f"objectives.{term.name}": term.kind for term in terms}
        return {section: kinds.name_of(getattr(self, section)) for section, kinds in KINDS.items()} | kinds_of_terms


PLAIN: Mapping[str, type] = {"data": Data, "optimizer": Optimizer, "evals": Evals, "run": RunOptions}
"""Sections whose options do not depend on a kind."""
SECTIONS = ("data", "teacher", "student", "objective", "optimizer", "evals", "run")
