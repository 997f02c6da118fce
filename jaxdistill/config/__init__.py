"""Defines all options of a run as frozen dataclasses with defaults, and parses plain data into them.

A config file states what differs from the defaults. An unknown key is an error that suggests the closest known one.
"""

import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from jaxdistill.cli import did_you_mean
from jaxdistill.config.ranges import Count, CountOrNone, Fraction, NotNegative, Positive, Range, Rate
from jaxdistill.config.values import Columns, Sharding, typed
from jaxdistill.core import InputError, Precision, Split


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """The training text and its batches."""

    text: str = ""
    """Sources, separated by commas: paths or globs (local, `s3://` or `gs://`), `hf:NAME[:CONFIG]:SPLIT:COLUMN`,
    `tfds:NAME:SPLIT:COLUMN`, `package:NAME/PATH`, or `data:PATH`, a file or glob in the folder that JAXDISTILL_DATA
    names. `files:` before a file, glob or folder makes each file one text."""
    exclude: str = ""
    """Sources, as for `text`, whose sentences or pairs (in either order) are not trained on; case is ignored."""
    weights: tuple[Positive, ...] = ()
    """Relative sampling weight of each source; empty: all sentences are sampled equally often."""
    columns: Columns = ()
    """For tables: pairs of a view and the file's column, such as `(("text", "en"), ("translation", "de"))`. A single
    word, such as `body`, names the column of the sentences. `sentence1|premise` reads the first of these columns that
    the file has. Empty: files have one column."""
    roles: str = ""
    """Which sentences are queries and which are documents; teacher and student each prepend their own prompt for the
    role. Values: `query` or `document` for the whole text, one role per source (`query,document`) or per column
    (`text=query,second=document`). `none`: no role. Sentences without a role get `prompt`."""
    chunk_tokens: CountOrNone = 0
    """Above 0: splits texts of any length at sentence ends into chunks of at most this many student tokens, including
    special tokens and the prompt. Each column of `columns` then counts as a separate text with its own role, and a
    source may lack any column but `text`. 0: each row is one sentence."""
    chunk_least: CountOrNone = 0
    """Above 0: draws each chunk's target length from this many tokens up to `chunk_tokens`, so that the student reads
    short and long texts. The same text always gives the same chunks. 0: chunks are as long as possible."""
    dedupe: bool = True
    """Keep only the first of duplicate rows. All columns are compared, pairs in either order; case is ignored."""
    max_length: CountOrNone = 0
    """Maximum tokens per sentence in training, including special tokens and the prompt; longer sentences are truncated,
    and a column of which more than 5 % are truncated is reported. 0: chosen from the text. It is then the 0.99 quantile
    of the lengths of up to 4,096 rows, rounded up to a multiple of 16, and at most 512, the tokens that the teacher
    reads and the student's positions; with `chunk_tokens`, it is that number."""
    batch_size: Count = 128
    """Sentences per step, over all devices."""
    max_line_bytes: Count = 16 << 20
    """Maximum bytes of a line or table cell. Protects against files without line ends, which would fill the memory."""
    max_unknown: Fraction = 0.05
    """Maximum share of unknown tokens, or characters in them, per column and tokenizer; a larger share is an error."""
    pack_groups: Count = 8
    """Number of groups of a batch, each packed independently. It is reduced to a divisor of `batch_size`, and then
    raised to a multiple of the devices that split the batch. Unless it is raised, results do not depend on the number
    of devices."""
    pack_shapes: Annotated[int, Range(least=2, most=4)] = 4
    """Maximum number of batch shapes, each compiled once. More shapes mean less padding."""
    cache_folder: str = ""
    """Folder that caches tokenised text and teacher targets; empty: $JAXDISTILL_CACHE or ~/.cache/jaxdistill."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teacher:
    """The frozen model whose embeddings are the targets."""

    model: str = ""
    """Folder, also at `s3://` or `gs://`, `package:NAME/PATH`, hub name, an earlier stage (`previous`, `stage2`), or
    `vectors:FILE.npy` with one row per sentence of the text. Empty if the objective needs no teacher; a later stage
    that needs one inherits the previous stage's, with its prompts. With `targets=store`: also several models, separated
    by commas, of any width and tokenizer. With `targets=labels`: one or several models, or your own scores, as
    `vectors:FILE.npy` of shape [rows, pairs] or as columns of the text, `columns:NAME,NAME`. With several models,
    `pooling`, `prompt`, `query_prompt` and `document_prompt` apply to all of them or list one value per model,
    separated by `|`: `--config.teacher.prompt="none|query: "`."""
    weights: tuple[Positive, ...] = ()
    """Relative weight of each of several teachers; empty: equal weights."""
    combine: Literal["concatenate", "each"] = "concatenate"
    """How several teachers are combined. `concatenate`: the target is one vector, the concatenation of the teachers'
    unit vectors; its cosines are the weighted mean of theirs. `each`: the student's vector has a segment per teacher
    (with `student.head=linear`, a head per teacher). The objective compares each segment with its teacher, and the loss
    is the weighted mean."""
    pooling: str = ""
    """Pooling of token states, such as `mean` or `cls`; empty: the checkpoint's. Required if it states none."""
    max_length: CountOrNone = 0
    """Maximum tokens per sentence; longer sentences are truncated. 0: the checkpoint's."""
    dims: CountOrNone = 0
    """Above 0: truncates the teacher's vectors to this width, and normalises them again if the teacher normalises. For
    teachers trained with nested widths (Matryoshka); a narrow student then needs no head."""
    normalize: bool = True
    """False: compare vectors as pooled. The teacher then lacks the Normalize module that checkpoints such as
    all-MiniLM-L6-v2 end with, and so do the student and its export."""
    prompt: str = ""
    """Name of a prompt of the checkpoint, or a text, prepended to every sentence without a role; `none`: no prompt;
    empty: the checkpoint's default prompt, or that of an earlier stage's student. In a text, `\\n` is a line break."""
    query_prompt: str = ""
    """Name of a prompt of the checkpoint, or a text, prepended to queries (see `data.roles`); `none`: no prompt; empty:
    the checkpoint's prompt `query`, if it has one."""
    document_prompt: str = ""
    """The same for documents; empty: the checkpoint's prompt `document`, `passage` or `corpus`, if it has one."""
    targets: Literal["live", "store", "labels"] = "live"
    """`live`: the teacher runs inside the training step. `store`: its embeddings are computed once and cached on disk.
    `labels`: caches the mean score that one or several models give to each pair of the columns `text` and `second`, or
    to a query and each of its candidates (`listwise`)."""
    whiten: Fraction = 0.0
    """Above 0: centres stored targets and divides each principal component by its standard deviation to this power; 1
    is full whitening. For teachers whose vectors lie in a narrow cone, such as GTE and E5."""
    components: CountOrNone = 0
    """Above 0: keeps this many leading principal components of centred targets, for narrow students without a head."""
    dropout: bool = False
    """Run the live teacher with its own dropout, as DistilCSE's code does for CKD."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Student:
    """The model to train."""

    model: str = ""
    """Folder, also at `s3://` or `gs://`, `package:NAME/PATH` or hub name. `teacher`: starts from the teacher's
    weights. `previous` or `stage2`, in a later stage: the best student of an earlier stage."""
    layers: str = ""
    """Layers to keep: empty for all, `last:3`, `first:3`, `even:3`, a list such as `1,3,5`, or `greedy:3`. `greedy`
    drops one layer at a time, the one whose removal changes the model's vectors of up to 512 sentences of `data.text`
    least. It then swaps kept and dropped layers while that helps."""
    width: CountOrNone = 0
    """Above 0: a fresh, randomly initialised encoder of this width with `depth` layers and the family and tokenizer of
    `model`."""
    depth: CountOrNone = 0
    """Number of layers of a fresh encoder."""
    heads: CountOrNone = 0
    """Attention heads per layer: of a fresh encoder (0: one per 64 of `width`), or left after pruning the model (0:
    all). Pruned heads keep their size, which only families that state a head size of their own allow."""
    intermediate: CountOrNone = 0
    """Width of the feed-forward networks: of a fresh encoder (0: four times `width`), or left after pruning the model
    (0: the model's own)."""
    prune_by: Literal["magnitude", "activation"] = "activation"
    """Criterion for pruning heads and feed-forward units: the norm of their output weights, or the size of their
    contribution to the hidden states on up to 1,024 sentences of `data.text`."""
    vocabulary: str = ""
    """Empty: the tokenizer of `model`. `trim:TEXT`: that tokenizer, reduced to the tokens of a text (sources as in
    `data.text`, all of `data.columns`), their single characters and special tokens. It tokenises this text as before,
    and other text into more tokens. A number such as `16000`: the fresh encoder is a BERT with a new WordPiece
    tokenizer of this many entries, trained on the columns of `data.text` that the student reads. It lower-cases text
    and keeps accents. For text without spaces (Thai), it splits long runs of characters and isolates rare
    characters."""
    static: CountOrNone = 0
    """Above 0: a static encoder instead, a table of token vectors of this width without layers; a sentence's vector is
    the mean of its tokens' vectors. The table starts from the leading principal components of `model`'s vectors of
    single tokens, scaled down for tokens that are frequent in `data.text`. The export does not truncate long text."""
    embedding: CountOrNone = 0
    """Above 0: width of the embedding tables, projected to the width of the layers (SimTDE); exported as ELECTRA."""
    embedding_init: Literal["svd", "random"] = "svd"
    """Initial compact tables: `svd`, a truncated singular value decomposition of the model's, or `random` (SimTDE)."""
    max_length: CountOrNone = 0
    """Maximum tokens per sentence that the student reads after training, in evaluations and as exported, up to its
    number of positions. 0: as many as in training; a static student reads all."""
    pooling: str = ""
    """Pooling of token states, such as `mean` or `cls`; empty: the checkpoint's, or the teacher's if `model` is
    `teacher`. Required if the checkpoint states none."""
    prompt: str = ""
    """Name of a prompt of the checkpoint, or a text, prepended to every sentence without a role, in training and
    evaluation; empty: the checkpoint's default prompt. The export lists it among its prompts."""
    query_prompt: str = ""
    """Prompt of queries, as for the teacher. The export stores it as its prompt `query`."""
    document_prompt: str = ""
    """Prompt of documents, as for the teacher. The export stores it as its prompt `document`."""
    export_prompt: bool = False
    """Make `prompt` the export's default prompt, which sentence-transformers prepends to all sentences, queries and
    documents alike. False: keep the checkpoint's default."""
    dims: tuple[Count, ...] = ()
    """Nested widths to train besides the full width, in rising order, such as (64, 128, 256) (Matryoshka)."""
    dims_targets: Literal["truncated", "projected"] = "projected"
    """Target of a nested width. `truncated`: the teacher's vectors cut to that width. `projected`: the teacher's full
    vectors, reached through one matrix per width that is not exported."""
    head: Literal["none", "tanh", "linear", "pair"] = "none"
    """`none`, or a dense layer to the teacher's width: `tanh` (ConGen) or `linear`. `pair`: a cross-encoder's head,
    which scores a sentence pair with one number; a model that is a cross-encoder keeps its trained head."""
    head_init: Literal["uniform", "normal", "identity", "fitted"] = "uniform"
    """Initial values of the head. `uniform`: PyTorch's default (ConGen). `normal`: standard deviation 0.02 (SimCSE).
    `identity`: for a student that starts aligned with the teacher. `fitted`: a linear head, fitted by least squares
    from the student's to the teacher's vectors on up to 4,096 sentences of the text, for a student of another model."""
    head_of: CountOrNone = 0
    """Above 0, with several teachers: evaluate and export only that teacher's part of the head, for instance 2 for the
    second, so that the student searches that teacher's index. 0: the whole head."""
    keep_head: bool = True
    """Evaluate and export the student with its head, as ConGen does; False: without it."""
    dropout: Annotated[float, Range(below=1)] = -1.0
    """Rate of all dropout layers in training; negative: the checkpoint's rates (0.1 for BERT)."""
    drophead: Rate = 0.0
    """Probability of dropping a whole attention head in training, per sentence and layer (DropHead)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW with a warm-up and a learning-rate schedule."""

    learning_rate: Positive = 5e-4
    """Peak learning rate, at the end of the warm-up."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Schedule after the warm-up: `linear` or `cosine` decay to 0, or `constant`."""
    warmup_fraction: Fraction = 0.1
    """Share of all steps over which the learning rate rises linearly from 0."""
    warmup_steps: CountOrNone = 0
    """Above 0: the number of warm-up steps, instead of `warmup_fraction`."""
    weight_decay: NotNegative = 0.01
    """Decoupled weight decay; multiplied by the learning rate."""
    decay: Literal["matrices", "all"] = "matrices"
    """Parameters that decay. `matrices`: all but biases, norms and learned temperatures (BERT, ConGen). `all`: every
    parameter, as in PyTorch's AdamW."""
    b1: Rate = 0.9
    """Adam's decay rate of the mean gradient."""
    b2: Rate = 0.999
    """Adam's decay rate of the mean squared gradient."""
    eps: Positive = 1e-6
    """Adam's epsilon, added to the root of the mean squared gradient. NOTE: gradients smaller than this hardly move
    their parameters."""
    bias_correction: bool = True
    """Adam's bias correction. False: none, as in BERT's and ConGen's code."""
    eps_before_correction: bool = False
    """True: adds epsilon before the bias correction, as in transformers' `AdamW` (SimCSE, DistilCSE, Trans-Encoder).
    False: after it, as in PyTorch."""
    clip_norm: NotNegative = 1.0
    """Maximum global gradient norm; 0: no clipping."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evals:
    """Evaluation during training, and the choice of the best checkpoint."""

    every: Count = 512
    """Steps between evaluations. Each evaluation saves a checkpoint; the last step is always evaluated."""
    best: str = ""
    """Metric that selects the best checkpoint. Empty: the first available of pairs/spearman (pairs/auc if all scores
    are 0 or 1), retrieval-dev/ndcg@10, entities/recall@1, sts-b-dev/spearman and agreement/spearman. With a data folder,
    qnli-dev/auc and mrpc-dev/auc are also available. `last`: the last checkpoint is exported, whatever its score."""
    pairs: str = ""
    """Your own graded pairs: a .tsv or .csv file with the columns score, sentence1 and sentence2; empty: none."""
    retrieval: str = ""
    """Your own retrieval sets in BEIR's format: folders or hub names, separated by commas. Their mean nDCG@10 is
    measured. Empty: none."""
    retrieval_split: Literal["", Split] = ""
    """Split of their judgements that chooses the checkpoint, read from `qrels/SPLIT.tsv`; empty: `dev`. A lone
    `qrels.tsv` counts as `test`. The test score of a checkpoint that was chosen on test is too high. The metric's name
    has the split: `retrieval-dev/ndcg@10`."""
    entities: str = ""
    """Your own entities: files with the columns query, entity and label, one per language, separated by commas. Their
    mean recall@1 is measured. Empty: none."""
    agreement: str = ""
    """Text on which agreement with the teacher is measured; lines 1 and 2 form a pair, lines 3 and 4 the next. Empty:
    sentences are held out of training for it if no other metric chooses the checkpoint."""
    patience: CountOrNone = 0
    """Stop after this many evaluations without improvement; 0: never."""
    patience_epochs: NotNegative = 0.0
    """Stop after this many epochs without improvement; 0: never. ConGen's code uses 7, DistilCSE's 3."""
    untrained: bool = True
    """Whether the student before step 1 may be the best checkpoint. False, as in the code of Trans-Encoder and SimCSE:
    a trained checkpoint is exported even if training improved nothing."""
    average: tuple[CountOrNone, ...] = ()
    """Steps such as (0,600) whose checkpoints are kept and averaged: the mean of their parameters is evaluated and
    exported instead of the best checkpoint. Empty: the best checkpoint."""
    collapse: Literal["warn", "stop", "off"] = "warn"
    """What to do if the student's vectors collapse. Each evaluation measures their `vectors/spread` and `vectors/rank`
    (metrics.jsonl). If either falls below a quarter of its highest value in the run, `warn` logs a line, and `stop`
    ends the run with an error that names the last checkpoint. `off` measures nothing."""
    sts: bool = True
    """Score the seven STS sets after training if JAXDISTILL_DATA names a data folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Length, seed, precision, devices and checkpoints of a run."""

    steps: CountOrNone = 0
    """Number of updates; 0: determined by `epochs`."""
    epochs: NotNegative = 1.0
    """Passes over the text, used if `steps` is 0."""
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
    inside each group, so that only gradients cross between groups. 0: as the devices report; one group on CPUs."""
    sharding: Sharding = ()
    """How parameters, optimizer state and a live teacher are split over devices. `zero`: the student's large matrices
    and their optimizer state, over the devices of a slice that split the batch. `fsdp`: the teacher's too. `tensor`:
    attention heads, feed-forward networks and word embeddings, over `model_axis`. Or rules: (regular expression on a
    parameter's path, its axes such as `("model", "")`). The rest is replicated."""
    log_every: Count = 50
    """Steps between logged metrics; at most a third of the run's."""
    save_every: CountOrNone = 0
    """Steps between additional checkpoints, besides those of the evaluations; 0: none."""
    profile: str = ""
    """`10:20`: the first process traces steps 10 to 20 into `profile/` in the workdir, for xprof; empty: no trace.
    `--profile=10:20` is the short form."""
    export_to: str = ""
    """Forms for other runtimes that the export gets too, separated by commas: onnx, openvino, litert, stablehlo
    (docs/deployment.md)."""
    wandb: bool = False
    """Also log to Weights & Biases, with the account configured for it."""
    parts: str = ""
    """Your own Python modules or files, separated by commas, with views, readers or encoder families
    (docs/extending.md)."""
    paper: str = ""
    """Row of a paper (docs/methods.md), such as `congen:tinybert-l4`, whose scores are shown beside the run's; empty: none.
    Presets that repeat a row name it, and the options in which the run differs from them are shown too."""
    keep: Annotated[int, Range(least=2)] = 2
    """Number of latest checkpoints to keep besides the best one; at least 2, so that a damaged one has a predecessor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """All options of a run. `objective` holds `name` and that objective's options."""

    data: Data = Data()
    teacher: Teacher = Teacher()
    student: Student = Student()
    objective: Mapping[str, Any]
    optimizer: Optimizer = Optimizer()
    evals: Evals = Evals()
    run: RunOptions = RunOptions()
    then: "Config | None" = None
    """Options of the next stage, if any; its student and teacher may name earlier stages."""


def defaults() -> dict[str, dict[str, Any]]:
    """Default options of every section as plain data; the objective's section is empty."""
    return {
        field.name: {} if field.name == "objective" else dataclasses.asdict(cast(Any, field.default))
        for field in dataclasses.fields(Config)
        if field.name != "then"
    }


def parse_config(raw: Mapping[str, Any]) -> Config:
    """Parses a nested mapping, with defaults for missing options; raises `InputError` for unknown or mistyped
    options."""
    if not isinstance(raw, Mapping):
        raise InputError(f"a config is a {type(raw).__name__}; it must hold sections of options by their names.")
    sections = {field.name: field for field in dataclasses.fields(Config) if field.name != "then"}
    then = raw.get("then")
    given = {name: value for name, value in raw.items() if name != "then"}
    _refuse_unknown(given, sections, prefix="")
    for name, value in given.items():
        if not isinstance(value, Mapping):
            raise InputError(f"config section {name} is a {type(value).__name__}; it must hold options by their names.")
    built: dict[str, Any] = {
        name: dict(value) if name == "objective" else options_from(cast(type, sections[name].type), value, prefix=name)
        for name, value in given.items()
    }
    if "name" not in built.get("objective", {}):
        raise InputError("objective.name is missing.")
    return Config(**built, then=parse_config(then) if then else None)


def options_from(kind: type, raw: Mapping[str, Any], *, prefix: str) -> Any:
    """Parses `raw` into the options dataclass `kind`; missing fields have their defaults."""
    types_ = typing.get_type_hints(kind, include_extras=True)
    types_ = {field.name: types_[field.name] for field in dataclasses.fields(kind)}
    _refuse_unknown(raw, types_, prefix=prefix)
    return kind(**{name: typed(value, types_[name], f"{prefix}.{name}") for name, value in raw.items()})


def _refuse_unknown(raw: Mapping[str, Any], known: Mapping[str, Any], *, prefix: str) -> None:
    dot = f"{prefix}." if prefix else ""
    for key in raw:
        if key not in known:
            raise InputError(
                f"config key {dot}{key} is unknown.{did_you_mean(key, list(known))} Known: {', '.join(known)}."
            )


def flat(config: Config) -> dict[str, Any]:
    """Flat dict such as `{"data.text": ..., "objective.alpha": ...}`, with values as JSON round-trips them."""
    nested = json.loads(json.dumps(dataclasses.asdict(dataclasses.replace(config, then=None))))
    own = {f"{section}.{key}": value for section, options in nested.items() for key, value in (options or {}).items()}
    return own | ({f"then.{key}": value for key, value in flat(config.then).items()} if config.then else {})


def config_digest(config: Config) -> str:
    """Short digest of the whole config."""
    return hashlib.sha256(json.dumps(flat(config), sort_keys=True).encode()).hexdigest()[:12]
