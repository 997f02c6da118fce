"""How does a config become a run? Models, text, targets, objective and step, each made once and checked before step 1."""

import dataclasses
import logging
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxdistill import cli, objectives
from jaxdistill import mesh as meshes
from jaxdistill.config import Config
from jaxdistill.core import LABELS, SECOND, InputError, Objective, Params, Sizes, Task, TrainState
from jaxdistill.data import batches, sources, targets, tokenize, views, wordpiece
from jaxdistill.encoders import surgery
from jaxdistill.encoders.architecture import Pooling
from jaxdistill.encoders.folder import check_exportable
from jaxdistill.encoders.model import SentenceModel, labels_of, load
from jaxdistill.evals import agreement, pairs, sts
from jaxdistill.evals import dev_metric as select
from jaxdistill.files import local
from jaxdistill.inference import Embedder
from jaxdistill.ops.dense import has_bfloat16_units
from jaxdistill.ranges import LARGEST_INT32
from jaxdistill.training import labels, optim, step
from jaxdistill.training.nested import Nested

log = logging.getLogger(__name__)

QUEUE_SEED = 16349
"""The code of ConGen draws the sentences of its first queue with this seed, whatever the run's own is."""
TOKENIZER_FOLDER = "tokenizer"
"""Where a workdir keeps a tokenizer that was trained for its student."""
HELD_OUT = 2000
"""Sentences kept out of training for the agreement with the teacher, where no file of them is given."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run that could begin."""

    config: Config
    workdir: pathlib.Path
    mesh: Mesh
    compute_dtype: DTypeLike
    teacher: SentenceModel | None
    """None with the user's own vectors."""
    student: SentenceModel
    """Untrained, with its head."""
    objective: Objective
    store: tokenize.TokenStore
    batches: batches.Batches
    steps: int
    schedule: optax.Schedule
    optimizer: optax.GradientTransformation
    teacher_params: Params
    """On the mesh; empty where the step has no teacher."""
    sizes: Sizes
    """What the objective is told of both encoders."""
    like: TrainState
    """Shapes of the state."""
    shardings: TrainState
    train_step: step.TrainStep
    seeds: Callable[[], np.ndarray | None]
    """Gives the teacher's embeddings of the queue's first sentences, `[k, e]`; None if it needs none."""
    tasks: Mapping[str, Task]
    """Metric to evaluation; all are measured."""
    best: str
    """The metric that picks the best checkpoint."""

    def first_state(self, seeds: np.ndarray | None) -> TrainState:
        """The state before step 1, on the mesh."""
        make = partial(
            step.make_state,
            objective=self.objective,
            optimizer=self.optimizer,
            sizes=self.sizes,
        )
        return jax.jit(make, out_shardings=self.shardings)(
            self.student.params, seeds, jax.random.key(self.config.run.seed)
        )


def build(config: Config, workdir: pathlib.Path, *, progress: bool) -> Run:
    """Everything that the training loop needs; raises `InputError` for whatever cannot work."""
    mesh = meshes.make_mesh(model_axis=config.run.model_axis)
    groups = meshes.pack_groups(config.data.pack_groups, mesh, config.data.batch_size)
    dtype = compute_dtype(config.run.precision)
    objective = make_objective(config)
    labellers = load_labellers(config, workdir)
    teacher = load_teacher(config, workdir)
    student = make_student(config, teacher, workdir)
    check_parts(config, objective, groups, mesh)
    graded = graded_pairs(config)  # before labels and the like are made
    store = tokenised(
        config,
        student,
        max_length=min(config.data.max_length, student.definition.architecture.longest),
        progress=progress,
    )
    check_form(objective, student)
    source = _Targets(config, objective, teacher, labellers, store, dtype, progress)
    if source.width not in (0, student.definition.embedding_width):
        raise InputError(
            f"the student's vectors have {student.definition.embedding_width} numbers, the teacher's {source.width}; "
            f"set student.head to tanh or linear, which maps to the teacher's width."
        )
    if objective.reads:
        check_same_tokens(objective, student, teacher, store)
    held_out = 0 if _needs_no_held_out(config) else min(HELD_OUT, store.rows // 20 * 2)
    data = batches.Batches(
        store,
        source.store,
        student_views=objective.student_views,
        teacher_views=() if objective.reads else objective.teacher_views,
        batch_size=config.data.batch_size,
        groups=groups,
        seed=config.run.seed,
        weights=config.data.weights,
        most_shapes=config.data.pack_shapes,
        reserve_rows=objective.reserve_rows + held_out,
        reserve_seed=QUEUE_SEED,
        targets=source.arrays,
    )
    drawn = np.random.RandomState(QUEUE_SEED).permutation(data.reserved)
    tasks = _tasks(config, source, graded, drawn[objective.reserve_rows :])
    steps = config.run.steps or int(round(config.run.epochs * data.steps_per_epoch))
    if not 1 <= steps <= LARGEST_INT32:
        raise InputError(
            f"run.steps={config.run.steps} and run.epochs={config.run.epochs} give {steps:.0f} steps; set one of them so "
            f"that there are 1 to {LARGEST_INT32:,}."
        )
    optimizer = optim.make_optimizer(config.optimizer, steps)
    sizes = sizes_of(student, teacher, batch_size=data.batch_size)
    like = jax.eval_shape(
        partial(step.make_state, objective=objective, optimizer=optimizer, sizes=sizes),
        student.params,
        np.zeros((objective.reserve_rows, sizes.width), np.float32) if objective.reserve_rows else None,
        jax.random.key(config.run.seed),
    )
    meshes.check_rules(config.run.sharding, like.params, mesh)
    shardings = meshes.shardings(like, mesh, config.run.sharding)
    live = source.store is not None or bool(objective.reads)
    teacher_shardings = meshes.shardings(teacher.params, mesh, config.run.sharding) if live else {}
    return Run(
        config=config,
        workdir=workdir,
        mesh=mesh,
        compute_dtype=dtype,
        teacher=teacher,
        student=student,
        objective=objective,
        store=store,
        batches=data,
        steps=steps,
        schedule=optim.make_schedule(config.optimizer, steps),
        optimizer=optimizer,
        teacher_params=meshes.place(teacher.params, teacher_shardings) if live else {},
        sizes=sizes,
        like=like,
        shardings=shardings,
        train_step=step.make_train_step(
            student=with_dropout(student, config.student.dropout, drophead=config.student.drophead).definition,
            teacher=teacher.definition if live else None,
            objective=objective,
            optimizer=optimizer,
            mesh=mesh,
            shardings=shardings,
            teacher_shardings=teacher_shardings,
            compute_dtype=dtype,
            remat=config.run.remat,
            teacher_dropout=config.teacher.dropout,
            accumulate=config.run.accumulate,
        ),
        seeds=lambda: source.rows(drawn[: objective.reserve_rows]) if objective.reserve_rows else None,
        tasks=tasks,
        best=select.choose(tasks, config.evals.best).metric,
    )


def make_objective(config: Config) -> Objective:
    """The objective with its options, over nested widths where asked."""
    options = {key: value for key, value in config.objective.items() if key != "name"}
    objective = objectives.make(config.objective["name"], options)
    if (config.teacher.targets == "labels") != (tuple(objective.teacher_views) == (LABELS,)):
        raise InputError(
            f"teacher.targets={config.teacher.targets!r} does not go with objective {config.objective['name']}: scores of "
            "pairs (labels) are the targets of trans_encoder, and of no other."
        )
    if config.student.dims and config.teacher.targets == "labels":
        raise InputError(
            "student.dims: a score of a pair has no nested widths; leave it empty with teacher.targets=labels."
        )
    if config.student.dims:
        objective = Nested(objective=objective, dims=config.student.dims, targets=config.student.dims_targets)
    if objective.teacher_views and not config.teacher.model:
        raise InputError(f"objective {config.objective['name']} needs a teacher; set teacher.model.")
    for option, wanted, why in (
        ("teacher.dropout", config.teacher.dropout, "differ at every step"),
        (f"objective {config.objective['name']}", bool(objective.reads), "include single tokens or layers"),
    ):
        if wanted and (config.teacher.targets != "live" or config.teacher.model.startswith("vectors:")):
            raise InputError(f"{option} needs targets that {why}; set teacher.targets=live and name a teacher model.")
    return objective


def check_parts(config: Config, objective: Objective, groups: int, mesh: Mesh) -> None:
    """Raises `InputError` if the gradient of a batch is not that of its parts, or the parts are not whole groups."""
    parts = config.run.accumulate
    if parts == 1:
        return
    if objective.couples_examples:
        raise InputError(
            f"run.accumulate={parts}: with {config.objective['name']}, an example's loss depends on the others of its batch, "
            "so gradients of parts do not add up; use run.remat for less memory."
        )
    most = groups // mesh.shape["data"]
    if parts < 1 or most % parts:
        raise InputError(
            f"run.accumulate={parts} does not divide the {most} groups of a device; raise data.pack_groups."
        )


def check_same_tokens(objective: Objective, student: SentenceModel, teacher: SentenceModel, store) -> None:
    """Raises `InputError` if the teacher cannot read the student's tokens, which its own tokens are compared with."""
    if tuple(objective.student_views) != tuple(objective.teacher_views):
        raise InputError(
            f"token by token, both must read the same views, not {objective.student_views} and "
            f"{objective.teacher_views}."
        )
    if student.tokenizer.get_vocab() != teacher.tokenizer.get_vocab() or student.prompt != teacher.prompt:
        raise InputError(
            "token by token, student and teacher must share tokenizer and prompt; cut the student from the "
            "teacher, or choose an objective of whole sentences."
        )
    longest = teacher.definition.architecture.longest
    if store.max_length > longest:
        raise InputError(f"data.max_length={store.max_length} is more than the teacher reads; at most {longest}.")


def sizes_of(student: SentenceModel, teacher: SentenceModel | None, *, batch_size: int) -> Sizes:
    """What an objective is told of both encoders."""
    mine, other = student.definition.architecture, teacher.definition.architecture if teacher else None
    return Sizes(
        batch_size=batch_size,
        width=student.definition.embedding_width,
        hidden=mine.hidden_size,
        layers=mine.layers,
        teacher_hidden=other.hidden_size if other else 0,
        teacher_layers=other.layers if other else 0,
    )


def compute_dtype(precision: str) -> DTypeLike:
    """The dtype of matrix products."""
    if precision == "auto":
        precision = "bfloat16" if has_bfloat16_units() else "float32"
    return jnp.dtype(precision)


def load_teacher(config: Config, workdir: pathlib.Path) -> SentenceModel | None:
    """The teacher's model; None if its vectors are given or there is none."""
    spec = config.teacher
    if not spec.model or spec.model.startswith("vectors:") or spec.targets == "labels":
        return None
    source = stage_export(spec.model, workdir)
    return load(source, pooling=spec.pooling, max_length=spec.max_length, prompt=spec.prompt)


def load_labellers(config: Config, workdir: pathlib.Path) -> list[SentenceModel]:
    """The models that score the pairs; empty where none does. A cross-encoder labels as one: no pooling makes it another."""
    if config.teacher.targets != "labels":
        return []
    spec = config.teacher
    names = [stage_export(name, workdir) for name in split_specs(spec.model)]
    for name in names:
        count = labels_of(name)
        if count > 1:
            raise InputError(
                f"teacher.model: {name} is a classifier with {count} labels, which does not say how alike two sentences are; "
                "name sentence encoders, or cross-encoders, which have one label."
            )
        if count and spec.pooling:
            raise InputError(
                f"teacher.pooling={spec.pooling!r} would make a sentence encoder of {name}, which is a cross-encoder; leave it "
                "empty (--config.teacher.pooling=) and it scores the pairs."
            )
    return [load(name, pooling=spec.pooling, max_length=spec.max_length, prompt=spec.prompt) for name in names]


def check_form(objective: Objective, student: SentenceModel) -> None:
    """Raises `InputError` if a cross-encoder would read single sentences, or a sentence encoder pairs."""
    pairs = any(view in views.PAIRS for view in objective.student_views)
    if pairs != student.definition.reads_pairs:
        are = "a cross-encoder, which reads pairs" if student.definition.reads_pairs else "a sentence encoder"
        raise InputError(
            f"the student is {are}, and the objective's views are {', '.join(objective.student_views)}; student.head=pair "
            "makes a cross-encoder for views of pairs, and student.pooling a sentence encoder of a cross-encoder."
        )


def make_student(config: Config, teacher: SentenceModel | None, workdir: pathlib.Path) -> SentenceModel:
    """The untrained student: a checkpoint, the teacher or the stage before, cut or made afresh, with its head."""
    spec = config.student
    if spec.model == "teacher" and teacher is None:
        raise InputError("student.model='teacher' needs a teacher model; without one, name the student's checkpoint.")
    source = stage_export(spec.model, workdir)
    has_pair_head = spec.head == "pair" and source != "teacher" and labels_of(source) == 1
    pooling = "" if has_pair_head else spec.pooling
    model = teacher if source == "teacher" else load(source, pooling=pooling, prompt=spec.prompt)
    if spec.layers and (spec.width or spec.depth):
        raise InputError("student.layers cuts an encoder and student.width makes a fresh one; set only one of them.")
    if bool(spec.width) != bool(spec.depth):
        raise InputError(f"student.width={spec.width} and student.depth={spec.depth}: a fresh student needs both.")
    if spec.vocabulary and not spec.width:
        raise InputError(
            f"student.vocabulary={spec.vocabulary} is for a fresh student, which has no words yet; set student.width and "
            "student.depth, or student.vocabulary=0."
        )
    of_body, of_head, of_tables = jax.random.split(jax.random.key(config.run.seed ^ 0x57D), 3)
    if spec.layers:
        model = surgery.from_layers(model, spec.layers)
    if spec.width:
        words = own_tokenizer(config, workdir) if spec.vocabulary else None
        model = surgery.fresh(model, of_body, width=spec.width, depth=spec.depth, tokenizer_folder=words)
    if spec.embedding:
        model = surgery.compact(model, spec.embedding, key=of_tables, init=spec.embedding_init)
    if spec.head == "pair":
        if not spec.keep_head:
            raise InputError("student.keep_head=False: without its head, student.head=pair is no cross-encoder.")
        origin = "its own, trained" if model.definition.reads_pairs else "a new"
        log.info("student: a cross-encoder of %s with %s head for pairs, and no prompt", model.source, origin)
        model = surgery.cross_encoder(model, key=of_head)
        if spec.pooling and Pooling.parse(spec.pooling) != model.definition.pooling:
            raise InputError(
                f"student.pooling={spec.pooling!r} does not go with student.head=pair: a cross-encoder of the family "
                f"{model.definition.architecture.family} reads {model.definition.pooling}; write that."
            )
    elif spec.head != "none":
        width = head_width(config, model, teacher)
        activation = "tanh" if spec.head == "tanh" else "identity"
        model = surgery.add_head(model, width, key=of_head, activation=activation, init=spec.head_init)
    check_exportable(kept(config, model).definition)
    return model


def own_tokenizer(config: Config, workdir: pathlib.Path) -> pathlib.Path:
    """The folder of the tokenizer that is trained on the text: the one that the run keeps, or that of the cache."""
    kept = workdir / TOKENIZER_FOLDER
    if kept.is_dir():
        return kept
    columns = dict(config.data.columns) or {sources.TEXT: sources.TEXT}
    read = {sources.TEXT, *make_objective(config).student_views}
    return wordpiece.trained(
        split_specs(config.data.text),
        entries=config.student.vocabulary,
        cache_folder=cache_folder(config) / "tokenizers",
        columns={name: column for name, column in columns.items() if name in read},
        line_bytes=config.data.max_line_bytes,
    )


def keep_tokenizer(run: Run) -> None:
    """Copies a tokenizer that was trained for the run into its workdir, for when text and cache are gone or changed."""
    kept = run.workdir / TOKENIZER_FOLDER
    if not run.config.student.vocabulary or kept.is_dir():
        return
    unfinished = kept.with_name(f".{kept.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(run.student.tokenizer_folder, unfinished)
    unfinished.rename(kept)


def stage_export(name: str, workdir: pathlib.Path) -> str:
    """`previous` or `stage3` as the export of that stage of the run, whose own stage is `workdir`; other names as they are."""
    named = re.fullmatch(r"previous|stage(\d+)", name)
    if not named:
        return name
    own = re.fullmatch(r"stage(\d+)", workdir.name)
    number = int(named[1] or (int(own[1]) - 1 if own else 0))
    folder = workdir.parent / f"stage{number}" / "export"
    if own is None or number >= int(own[1]) or not folder.is_dir():
        raise InputError(
            f"model {name!r} is the export of a stage before {workdir}, and there is none; it is for the options of a stage "
            "that follows one (--config.then.student.model)."
        )
    return str(folder)


def head_width(config: Config, student: SentenceModel, teacher: SentenceModel | None) -> int:
    """Numbers that a head gives: the teacher's, or without a teacher the student's own (SimCSE's MLP)."""
    if config.teacher.model.startswith("vectors:"):
        return targets.opened(config.teacher.model).shape[1]
    return (teacher or student).definition.embedding_width


def kept(config: Config, student: SentenceModel) -> SentenceModel:
    """The student as it is evaluated and exported: with or without its head."""
    return student if config.student.keep_head or config.student.head == "none" else surgery.drop_head(student)


def with_dropout(student: SentenceModel, rate: float, *, drophead: float = 0.0) -> SentenceModel:
    """The student with this rate of dropout everywhere (negative: its own), and this rate of dropped heads."""
    rates = dict(hidden_dropout=rate, attention_dropout=rate) if rate >= 0 else {}
    architecture = dataclasses.replace(student.definition.architecture, drophead=drophead, **rates)
    return dataclasses.replace(student, definition=dataclasses.replace(student.definition, architecture=architecture))


def tokenised(config: Config, model: SentenceModel, *, max_length: int, progress: bool) -> tokenize.TokenStore:
    """The text in the tokens of a model."""
    return tokenize.build(
        split_specs(config.data.text),
        tokenizer=model.tokenizer,
        max_length=max_length,
        cache_folder=cache_folder(config) / "tokens",
        columns=dict(config.data.columns) or ("text",),
        prompt=model.prompt,
        dedupe=config.data.dedupe,
        exclude=split_specs(config.data.exclude),
        weights=config.data.weights,
        line_bytes=config.data.max_line_bytes,
        progress=progress,
    )


def split_specs(text: str) -> list[str]:
    """Sources of a comma-separated list."""
    return [spec.strip() for spec in text.split(",") if spec.strip()]


def cache_folder(config: Config) -> pathlib.Path:
    """Where the run's tokens and targets are kept."""
    named = config.data.cache_folder
    return local(named, "data.cache_folder") if named else cli.cache_folder()


def data_folder() -> pathlib.Path | None:
    """The folder of evaluation sets that JAXDISTILL_DATA names, if it does; STS sets are in it."""
    folder = cli.data_folder()
    if folder is not None:
        sts.sts_folder(folder)
    return folder


class _Targets:
    """The teacher's embeddings: live, stored, or the user's own vectors."""

    def __init__(self, config, objective: Objective, teacher, labellers, store, dtype, progress: bool):
        self.text, self.teacher, self._views = store, teacher, tuple(objective.teacher_views)
        self.store, self.arrays = None, ()
        """Tokens for a live teacher, or one array of targets for each teacher view."""
        # On the devices of this process: of several that share a cache folder, one makes what is stored and the others wait.
        self.embedder = Embedder(teacher, compute_dtype=dtype) if teacher else None
        self.width = 0
        """Of the vectors that the objective is given; 0 for none."""
        if not self._views:
            return
        if labellers:
            folder = cache_folder(config) / "labels"
            made = labels.labels(labellers, store, folder, compute_dtype=dtype, progress=progress)
            self.arrays = (made,)
            return
        if teacher is not None:
            self.width = teacher.definition.embedding_width
        if objective.reads:
            return
        if teacher is None:
            array = targets.vectors(config.teacher.model, store.input_rows)
            self.arrays = (targets.Selected(array, store.input_row),) * len(self._views)
            self.width = array.shape[1]
        elif config.teacher.targets == "store":
            self.arrays = tuple(self._stored(config, view, dtype, progress) for view in self._views)
        else:
            self.store = tokenised(config, teacher, max_length=teacher.max_length, progress=progress)

    def _stored(self, config: Config, view: str, dtype, progress: bool):
        if view not in self.text.columns:
            raise InputError(
                f"teacher.targets='store' needs a teacher view that is a column of the text ({', '.join(self.text.columns)}); "
                f"{view!r} differs at every step: use teacher.targets='live'."
            )
        name = f"{self.teacher.digest()} {self.text.content_digest} {view} {jnp.dtype(dtype).name}"
        return targets.kept(
            cache_folder(config) / "targets",
            name,
            self.embedder.encode,
            self.text.texts(view),
            self.embedder.width,
            what="teacher targets",
            progress=progress,
        )

    def rows(self, rows: Sequence[int]) -> np.ndarray:
        """The teacher's embeddings of some rows of the text, for the first teacher view."""
        if self.arrays:
            return np.asarray(self.arrays[0][np.asarray(rows)], np.float32)
        view = self._views[0] if self._views and self._views[0] in self.text.columns else "text"
        log.info("teacher embeddings of %d reserved sentences", len(rows))
        return self.embedder.encode([self.text.text(view, row) for row in rows])

    def agreement_task(self, config: Config, held_out: Sequence[int]) -> Task | None:
        """Agreement over the pairs of a file, or over held-out sentences: each with its neighbour and with a random one."""
        if config.evals.agreement and self.embedder is None:
            raise InputError("evals.agreement needs a teacher model; vectors cover the training text alone.")
        if config.evals.agreement:
            limit = config.data.max_line_bytes
            sentences = [
                text for (text,) in sources.read(split_specs(config.evals.agreement), line_bytes=limit) if text.strip()
            ]
            return agreement.agreement_task(self.embedder.encode, *agreement.neighbouring_pairs(sentences))
        if len(held_out) < 4 or (self.embedder is None and not self.arrays):
            return None
        if self._views == (LABELS,):
            first, second = (
                tuple(self.text.text(column, row) for row in held_out) for column in (sources.TEXT, SECOND)
            )
            return agreement.AgreementTask(first=first, second=second, teacher=self.rows(held_out)[:, 0])
        vectors = dict(zip((self.text.text("text", row) for row in held_out), self.rows(held_out), strict=True))
        return agreement.held_out_task(vectors, seed=config.run.seed)


def _needs_no_held_out(config: Config) -> bool:
    judged_otherwise = config.evals.pairs or data_folder() is not None
    return bool(config.evals.agreement) or (judged_otherwise and config.evals.best != agreement.METRIC)


def graded_pairs(config: Config) -> pairs.GradedPairs | None:
    """The user's own pairs that choose the best checkpoint; raises `InputError` for what is wrong with them."""
    if not config.evals.pairs:
        return None
    found = sources.files(config.evals.pairs)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"evals.pairs={config.evals.pairs} is {len(found)} files ({names:.100}); name one of them.")
    return pairs.read_pairs(found[0])


def _tasks(
    config: Config, source: _Targets, graded: pairs.GradedPairs | None, held_out: Sequence[int]
) -> Mapping[str, Task]:
    return select.available_tasks(
        data_folder=data_folder(),
        graded=graded,
        agreement_task=source.agreement_task(config, held_out),
        best=config.evals.best,
    )
