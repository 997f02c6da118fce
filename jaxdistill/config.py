"""All options of a run: frozen dataclasses with their defaults, and the way from plain data to them.

A config file states what differs from the defaults. An unknown or mistyped key is an error that names the likely one.
"""

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from jaxdistill.cli import did_you_mean
from jaxdistill.core import InputError
from jaxdistill.ranges import Count, CountOrNone, Fraction, NotNegative, Positive, Range, Rate

Columns = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Where the sentences come from."""

    text: str = ""
    """Sources, separated by commas: paths, globs, `hf:name:split:column`, `tfds:name:split:column`,
    `package:NAME/PATH`, or `data:PATH` for a file or glob in the folder that JAXDISTILL_DATA names."""
    exclude: str = ""
    """Sources, as for text: sentences that are in them, or pairs, either way round, are left out (case ignored)."""
    weights: tuple[Positive, ...] = ()
    """Relative sampling rate of each source; empty: every sentence equally often."""
    columns: Columns = ()
    """(view, column of the file) for tables, for instance `(("text", "en"), ("translation", "de"))`; one word, such as
    `body`, is the column of the sentences; empty: a file of one column.
    `sentence1|premise`: the first of these that the file has."""
    dedupe: bool = True
    """Keep only the first of repeated sentences, or pairs of them (case ignored)."""
    max_length: Count = 128
    """Longest tokenised sentence that the student sees in training, special tokens included."""
    batch_size: Count = 128
    """Sentences a step, over all devices."""
    max_line_bytes: Count = 16 << 20
    """Longest line, or cell of a table, that is read. A file without line ends is refused before it fills the memory."""
    max_unknown: Fraction = 0.05
    """Largest share of unknown tokens, or of the characters in them, in a column as any tokenizer of the run reads it."""
    pack_groups: Count = 8
    """The batch is packed in this many independent groups (more if there are more devices), whatever the number of
    devices: the same numbers on each. Devices of the `data` axis must divide it."""
    pack_shapes: Annotated[int, Range(least=2, most=4)] = 4
    """Shapes that packed batches may have, each compiled once: more of them, less padding."""
    cache_folder: str = ""
    """Where tokenised text and teacher targets are kept for reuse; empty: $JAXDISTILL_CACHE or ~/.cache/jaxdistill."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teacher:
    """The frozen model whose embeddings are the targets."""

    model: str = ""
    """Folder, `package:NAME/PATH`, hub name, a stage before this one (`previous`, `stage2`), or `vectors:FILE.npy` with one
    row for each sentence of the text; empty for an objective without a teacher. For labels: one or several models,
    separated by commas."""
    pooling: str = ""
    """Empty: as the checkpoint says. Needed for a checkpoint that does not say."""
    max_length: CountOrNone = 0
    """Longest tokenised sentence that the teacher reads; 0: as the checkpoint says."""
    dims: CountOrNone = 0
    """Above 0: the first numbers of the teacher's vectors alone, normalised again if it normalises, for a teacher trained
    with nested widths (Matryoshka); a narrow student then needs no head."""
    prompt: str = ""
    """Name of a prompt of the checkpoint, put before every sentence; empty: its default."""
    targets: Literal["live", "store", "labels"] = "live"
    """`live`: the teacher runs inside the training step. `store`: its embeddings are computed once and kept on disk.
    `labels`: likewise the mean of the scores that one or several models give to the pairs of the columns text and second."""
    dropout: bool = False
    """Run the live teacher with its own dropout, as DistilCSE's code does for CKD."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Student:
    """The model to train."""

    model: str = ""
    """Folder, `package:NAME/PATH` or hub name; `teacher`: cut from the teacher; `previous` or `stage2`: the best student of
    the stage before or of that stage, in the options of a stage that follows one."""
    layers: str = ""
    """Which layers to keep: empty for all, `last:3`, `first:3`, `even:3`, or a list `1,3,5`."""
    width: CountOrNone = 0
    """Above 0: a fresh, untrained encoder of this width with the family and tokenizer of `model`, and `depth` layers."""
    depth: CountOrNone = 0
    """Layers of a fresh encoder."""
    vocabulary: CountOrNone = 0
    """Above 0, for a fresh encoder: a BERT whose WordPiece tokenizer of so many entries is trained on `data.text`, in all
    columns that the student's views read; lower case, accents kept. In text without spaces (Thai), long runs of characters
    are split by the vocabulary, and rare characters stand alone. 0: the tokenizer of `model`."""
    embedding: CountOrNone = 0
    """Above 0: embedding tables of this width and a projection to the layers' (SimTDE), exported as ELECTRA."""
    embedding_init: Literal["svd", "random"] = "svd"
    """Compact tables from the truncated singular value decomposition of the model's (`svd`), or at `random` (SimTDE)."""
    pooling: str = "mean"
    """Empty: as the checkpoint says. Needed for a checkpoint that does not say."""
    prompt: str = ""
    """Name of a prompt of the checkpoint, or a text, put before every sentence in training; empty: the checkpoint's default.
    The export has it among its prompts."""
    export_prompt: bool = False
    """Make `prompt` the export's default too, which sentence-transformers puts before every sentence, queries and documents
    alike. False: the default stays the checkpoint's own."""
    dims: tuple[Count, ...] = ()
    """Nested widths of the vectors that are trained beside the whole one, such as (64, 128, 256) (Matryoshka)."""
    dims_targets: Literal["truncated", "projected"] = "projected"
    """What a nested width is compared with: `truncated`, the teacher's vectors cut to the same width, or `projected`, the
    whole ones, through a matrix for each width that is not exported."""
    head: Literal["none", "tanh", "linear", "pair"] = "none"
    """`none`, or a Dense layer to the teacher's width: `tanh` (ConGen), `linear`; `pair`: a cross-encoder's head, which gives
    one number for a pair of sentences; a model that is a cross-encoder keeps its own, trained one."""
    head_init: Literal["uniform", "normal", "identity"] = "uniform"
    """`uniform` (PyTorch's default, ConGen), `normal` (deviation 0.02, SimCSE) or `identity`, for a student that starts
    aligned with the teacher."""
    keep_head: bool = True
    """Evaluate and export with the head (as ConGen does) or without."""
    dropout: Annotated[float, Range(below=1)] = -1.0
    """Rate of all dropout layers while training; negative: as the checkpoint says (0.1 for BERT)."""
    drophead: Rate = 0.0
    """Probability of a whole head of attention to be dropped while training, for each sentence and layer (DropHead)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW with a warm-up and a schedule."""

    learning_rate: Positive = 5e-4
    """Largest rate, at the end of the warm-up."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """After the warm-up: `linear` or `cosine` to 0, or `constant`."""
    warmup_fraction: Fraction = 0.1
    """Share of all steps over which the rate rises linearly from 0."""
    warmup_steps: CountOrNone = 0
    """Above 0: so many steps instead of that share."""
    weight_decay: NotNegative = 0.01
    """Decoupled, times the learning rate."""
    decay: Literal["matrices", "all"] = "matrices"
    """What it acts on: `matrices` (not on biases, norms and learned temperatures, as BERT and ConGen have it) or `all`
    (PyTorch's AdamW)."""
    b1: Rate = 0.9
    """Decay of Adam's average of gradients."""
    b2: Rate = 0.999
    """Decay of Adam's average of squared gradients."""
    eps: Positive = 1e-6
    """Added to the root of that average. NOTE: gradients below it hardly move their parameters."""
    bias_correction: bool = True
    """False: Adam as BERT's and ConGen's code has it."""
    eps_before_correction: bool = False
    """True: eps is added before the bias correction, as in transformers' `AdamW` (SimCSE, DistilCSE, Trans-Encoder);
    False: after it, as in PyTorch's."""
    clip_norm: NotNegative = 1.0
    """Largest global gradient norm; 0: no clipping."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evals:
    """How the student is judged while it trains."""

    every: Count = 512
    """Steps between evaluations, each with a checkpoint; one more at the end."""
    best: str = ""
    """Metric that picks the best checkpoint; empty: the first there is of pairs/spearman (pairs/auc where all scores are 0
    or 1), sts-b-dev/spearman, agreement/spearman. Of a data folder also qnli-dev/auc and mrpc-dev/auc."""
    pairs: str = ""
    """The user's own graded pairs: a .tsv or .csv file with score, sentence1, sentence2; empty: none."""
    agreement: str = ""
    """Sentences for the agreement with the teacher, neighbouring lines are pairs; empty: sentences kept out of training."""
    patience: CountOrNone = 0
    """Stop after this many evaluations without a better score; 0: never."""
    patience_epochs: NotNegative = 0.0
    """Likewise after the evaluations of this many epochs; 0: never. ConGen's code has 7, DistilCSE's 3."""
    untrained: bool = True
    """The student before step 1 may be the best checkpoint. False, as in the code of Trans-Encoder and SimCSE: the best of
    what was trained is exported, even where training gained nothing."""
    sts: bool = True
    """Score the seven STS sets at the end if the data folder is there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How long, on what, with which seed."""

    steps: CountOrNone = 0
    """Updates; 0: as `epochs` says."""
    epochs: NotNegative = 1.0
    """Passes over the text, where `steps` is 0."""
    seed: Annotated[int, Range(least=0, most=2**32 - 1)] = 0
    """Of all random choices."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Matrix products in `float32` or `bfloat16` (sums, softmax, norms and losses stay float32); `auto`: bfloat16 where
    the device has units for it."""
    accumulate: Count = 1
    """Parts of a batch whose gradients are summed before the update, for less memory; refused where an example's loss
    depends on the others of the batch."""
    remat: bool = False
    """Recompute activations in the backward pass: less memory, about a third more work."""
    model_axis: Count = 1
    """Devices that share one copy of sharded parameters; the others split the batch."""
    sharding: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(regular expression on a parameter's path, its axes such as `("model", "")`); unmatched parameters are replicated."""
    log_every: Count = 50
    """Steps between lines of metrics."""
    save_every: CountOrNone = 0
    """Steps between checkpoints beside those of the evaluations; 0: none."""
    wandb: bool = False
    """Log to Weights & Biases too, with the account that is set up for it."""
    parts: str = ""
    """Python modules or files, separated by commas, with views, readers or encoder families of your own (docs/extending.md)."""
    keep: Annotated[int, Range(least=2)] = 2
    """Latest checkpoints to keep beside the best one; with two, a damaged one has a predecessor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """All options of a run. `objective` holds `name` and the options of that objective."""

    data: Data = Data()
    teacher: Teacher = Teacher()
    student: Student = Student()
    objective: Mapping[str, Any]
    optimizer: Optimizer = Optimizer()
    evals: Evals = Evals()
    run: RunOptions = RunOptions()
    then: "Config | None" = None
    """The stage that follows: all options of another training, whose student may be `previous`."""


EXTENSIONS = (
    "run.steps", "run.epochs", "run.log_every", "run.save_every", "run.keep", "run.remat", "run.model_axis", "run.sharding",
    "run.wandb",
    "evals.every", "evals.patience", "evals.patience_epochs", "evals.sts", "data.cache_folder", "data.max_line_bytes", "data.max_unknown",
    "student.keep_head", "student.export_prompt",
)  # fmt: skip
"""Options that may differ when a run is continued: they do not change what was trained so far."""


def defaults() -> dict[str, dict[str, Any]]:
    """Plain data of every section with its defaults; the objective's section is empty."""
    return {
        field.name: {} if field.name == "objective" else dataclasses.asdict(field.default)
        for field in dataclasses.fields(Config)
        if field.name != "then"
    }


def parse(raw: Mapping[str, Any]) -> Config:
    """The config of a plain nested mapping, completed with defaults; raises `InputError` for unknown or mistyped options."""
    if not isinstance(raw, Mapping):
        raise InputError(f"a config is a {type(raw).__name__}; it must hold sections of options by their names.")
    sections = {field.name: field for field in dataclasses.fields(Config) if field.name != "then"}
    then = raw.get("then")
    given = {name: value for name, value in raw.items() if name != "then"}
    _refuse_unknown(given, sections, prefix="")
    for name, value in given.items():
        if not isinstance(value, Mapping):
            raise InputError(f"config section {name} is a {type(value).__name__}; it must hold options by their names.")
    built = {
        name: dict(value) if name == "objective" else options_from(sections[name].type, value, prefix=name)
        for name, value in given.items()
    }
    if "name" not in built.get("objective", {}):
        raise InputError("objective.name is missing.")
    return Config(**built, then=parse(then) if then else None)


def options_from(kind: type, raw: Mapping[str, Any], *, prefix: str) -> Any:
    """An instance of the options dataclass `kind`; a field that is not given has its default."""
    types_ = typing.get_type_hints(kind, include_extras=True)
    types_ = {field.name: types_[field.name] for field in dataclasses.fields(kind)}
    _refuse_unknown(raw, types_, prefix=prefix)
    return kind(**{name: _typed(value, types_[name], f"{prefix}.{name}") for name, value in raw.items()})


def _refuse_unknown(raw: Mapping[str, Any], known: Mapping[str, Any], *, prefix: str) -> None:
    dot = f"{prefix}." if prefix else ""
    for key in raw:
        if key not in known:
            raise InputError(
                f"config key {dot}{key} is unknown.{did_you_mean(key, list(known))} Known: {', '.join(known)}."
            )


def _typed(value: Any, kind: Any, name: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is Annotated:
        plain, allowed = typing.get_args(kind)
        return _in_range(_typed(value, plain, name), allowed, name)
    if origin is Literal:
        if value not in typing.get_args(kind):
            raise InputError(f"{name}={value!r} is unknown; allowed: {', '.join(map(str, typing.get_args(kind)))}.")
        return value
    if kind == Columns and isinstance(value, str):
        return (("text", value),) if value else ()
    if origin is tuple:
        return _tuple(value, typing.get_args(kind), name)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _in_range(float(value), Range(), name)
    if isinstance(kind, types.UnionType) or not isinstance(kind, type):
        return value
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{name}={value!r} is a {type(value).__name__}; it must be a {kind.__name__}.")
    return value


def _in_range(number: float, allowed: Range, name: str) -> float:
    if fault := allowed.fault(number):
        raise InputError(f"{name}={number} {fault}.")
    return number


def _tuple(value: Any, kinds: tuple[Any, ...], name: str) -> tuple:
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{name}={value!r} is a {type(value).__name__}; it must be a tuple such as {_example(kinds)}.")
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise InputError(f"{name}={value!r} has {len(value)} parts; it must have {len(kinds)}.")
    return tuple(_typed(item, kind, f"{name}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True)))


def _example(kinds: tuple[Any, ...]) -> str:
    """A tuple of these types, as it is written on the command line."""
    parts = []
    for kind in (kind for kind in kinds if kind is not Ellipsis):
        plain = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
        inner = typing.get_args(plain)
        parts.append(_example(inner) if inner else {float: "1.0", int: "64"}.get(plain, '"name"'))
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"


def flat(config: Config) -> dict[str, Any]:
    """`{"data.text": ..., "objective.alpha": ...}`, values as JSON would give them back."""
    nested = json.loads(json.dumps(dataclasses.asdict(dataclasses.replace(config, then=None))))
    own = {f"{section}.{key}": value for section, options in nested.items() for key, value in (options or {}).items()}
    return own | ({f"then.{key}": value for key, value in flat(config.then).items()} if config.then else {})


def digest(config: Config) -> str:
    """A short name of the whole config."""
    return hashlib.sha256(json.dumps(flat(config), sort_keys=True).encode()).hexdigest()[:12]


def refuse_other_training(before: Mapping[str, Any], now: Mapping[str, Any], *, workdir: str) -> None:
    """Raises `InputError` with the differences if a workdir was made with options that train something else."""
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key) and key not in EXTENSIONS]
    if changed:
        shown = "; ".join(f"{key}: {before.get(key)!r} there, {now.get(key)!r} now" for key in changed)
        raise InputError(
            f"{workdir} was made with another config ({shown}). Use the same options or another --workdir."
        )
