"""Builds a run from its config, and checks it: options, text, models, objective, steps, targets and evaluations."""

import dataclasses
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.config.options import Config
from jaxdistill.core import LABELS, MAX_INT32, InputError, Objective, RoleEmbed, Sizes, TrainState, plugins, refuse
from jaxdistill.core import platform as platform_of
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.core.cluster import processes
from jaxdistill.core.files import MARK, changed_files, foreign_errors, replacing
from jaxdistill.core.ops.dense import dtype_of
from jaxdistill.core.ops.nested import Nested
from jaxdistill.core.paths import public_name
from jaxdistill.data import views
from jaxdistill.data.batches import QUEUE_SEED, Batches, Viewed
from jaxdistill.data.chunks import bare
from jaxdistill.data.targets import Stored as StoredTargets
from jaxdistill.data.targets import joined
from jaxdistill.data.text import TEXT, content_digest, split_specs, used_roles
from jaxdistill.data.tokens import TokenStore
from jaxdistill.encoders.architecture import Pooling
from jaxdistill.evals import agreement
from jaxdistill.models import model_text
from jaxdistill.models.checkpoints import onnx
from jaxdistill.models.checkpoints.folder import check_exportable, save
from jaxdistill.models.checkpoints.model import SentenceModel, load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.models.student import Headed, StudentInputs
from jaxdistill.models.teacher import Labeller, ModelContext, TargetInputs, Teacher
from jaxdistill.models.teachers import Live, Stored
from jaxdistill.models.teachers.outside import OutsideVectors
from jaxdistill.objectives.weighted import Weighted, terms_of_sources
from jaxdistill.training import dev as devs
from jaxdistill.training import optim, step
from jaxdistill.training.sharding import frozen_shardings, sharded_embedder, sharding_rules
from jaxdistill.training.workdir.folder import INPUTS, LENGTH, STEPS, STUDENT, read_note, stage_export

UNTIMED = MAX_INT32
"""Number of steps of a run whose speed is still to be measured for `run.minutes`."""
log = logging.getLogger(__name__)


class Program(NamedTuple):
    """The training step of a run, its state, and how many steps it takes."""

    make_state: Callable[..., TrainState]
    """Makes the state before step 1 from the student's parameters, the queue's first vectors and a random key."""
    like: TrainState
    """Shapes and dtypes of the state."""
    shardings: TrainState
    teacher_shardings: Mapping[str, NamedSharding]
    """Of the live teacher's parameters; empty if the step runs no teacher."""
    train_step: step.TrainStep
    steps: int
    schedule: optax.Schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run that is ready to train."""

    config: Config
    workdir: Path
    mesh: Mesh
    compute_dtype: DTypeLike
    objective: Objective
    teachers: Mapping[str, SentenceModel]
    """Models whose vectors are the targets: `teacher`, or `teacher 1` and so on; empty with the user's own vectors."""
    labeller_digests: Sequence[str]
    """Digests of the models that score the text's pairs."""
    student: SentenceModel
    """The untrained student, with its head."""
    store: TokenStore
    """The training text."""
    batches: Batches
    seeds: Callable[[], np.ndarray | None]
    """Returns the teacher's vectors of the objective's `reserve_rows` sentences, `[k, e]`; None if it needs none."""
    dev: devs.Dev
    program: Program
    teacher_params: Mapping[str, Any]
    """The live teacher's parameters on the mesh, or shapes if its devices are absent; empty if the step has no teacher."""

    @property
    def teacher(self) -> SentenceModel | None:
        """The only teacher model; None without one, and with several."""
        return self.teachers.get("teacher")

    def first_state(self, seeds: np.ndarray | None) -> TrainState:
        """The state before step 1, on the mesh; `seeds` is the result of `self.seeds()`, or any array of its shape."""
        make = jax.jit(self.program.make_state, out_shardings=self.program.shardings)
        return make(self.student.params, seeds, jax.random.key(self.config.run.seed))

    def input_digests(self) -> dict[str, str]:
        """Digests of all inputs: text, models, targets, files of evaluations, and the user's code."""
        config = self.config
        files = {name: split_specs(getattr(config.evals, name)) for name in ("pairs", "agreement", "entities")}
        files["retrieval"] = [str(path) for dev_set in devs.retrieval_files(config.evals) for path in dev_set.paths]
        digests = {f"evals.{name}": content_digest(specs) for name, specs in files.items() if specs}
        if targets_file := getattr(config.teacher, "file", ""):
            digests["teacher.file"] = content_digest([targets_file])
        digests |= {f"{name}.model": model.digest() for name, model in self.teachers.items()}
        digests |= {f"labeller {number}": digest for number, digest in enumerate(self.labeller_digests, start=1)}
        if outside_digest := config.teacher.digest():  # of `OutsideVectors`, which is no model in `teachers`
            digests["teacher"] = outside_digest
        digests |= {"student.model": self.student.digest(), "data.text": self.store.content_digest}
        # The user's own kinds are named `FILE.py:CLASS`.
        kind_files = [kind.rpartition(":")[0] for kind in config.kinds.values() if plugins.is_outside(kind)]
        return digests | plugins.source_digests([*kind_files, *split_specs(config.run.plugins)])


def objective_title(config: Config) -> str:
    """The objective's name, and its variant, such as `congen, control term alone`."""
    return ", ".join(filter(None, [public_name(config.kinds["objective"]), config.objective.variant]))


def build(config: Config, workdir: Path, *, progress: bool, absent: Mesh | None = None) -> Run:
    """Builds a run that is ready to train; raises `InputError` if an option, the text or a model cannot be used. With `absent`, a
    mesh of devices that this machine lacks, the step can only be compiled, and no targets are computed.
    What takes longest comes last, so that errors appear early: options, models, dev sets, the text, the step, and then targets."""
    can_run = absent is None
    mesh, groups, objective = checked_setup(config, absent)
    compute_dtype = dtype_of(config.run.precision)
    # The models. A resumed run reads its untrained student from the workdir.
    context = context_of(config, workdir)
    labellers = config.teacher.labellers(context)
    teachers = config.teacher.load(context)
    written_student = read_student(config, workdir) if can_run else None
    student = written_student or make_student(config, teachers, workdir)
    if config.run.export_to:
        onnx.check(student)
    check_models(config, objective, student, teachers)
    # The dev sets, except for agreement with the teacher, which needs targets.
    tasks = devs.dev_tasks(config, similarity=student.definition.similarity) if can_run else {}
    agreement_pairs = devs.agreement_pairs(config) if can_run else ()
    # The text, in the student's tokens.
    length = training_length(config, student, teachers, workdir)
    student = config.student.with_length(student, length)
    store = model_text.student_text(
        config.data, objective, student, length, of_rows=config.teacher.of_rows, progress=progress
    )
    objective = sized_to_text(objective, store.rows)
    # Rows to keep out of training, for the first queue and for evaluation: of a text below 100,000 rows, at most a tenth.
    dev_count = devs.held_out_rows(config.evals, store.rows)
    most_reserved = max(dev_count, store.rows // 10) if store.rows < 100_000 else store.rows
    # The rows of batches, and so the number of steps in an epoch, are known before the targets.
    # Dividing rows pays on CPUs alone. Compilers for GPUs and TPUs are slow, so these get fewer shapes.
    on_cpus = platform_of(mesh) == "cpu"
    make_batches = partial(
        Batches, Viewed(store, objective.student_views), batch_size=config.data.batch_size, seed=config.run.seed,
        weights=config.data.weights, sources=terms_of_sources(config.objective, config.data.objectives),
        with_keys=objective.compares_texts, groups=groups, local=meshes.local_groups(mesh, groups) if can_run else None,
        reserve_rows=min(objective.reserve_rows + dev_count, most_reserved),
        max_shapes=config.data.pack_shapes or (4 if on_cpus else 3), divided=on_cpus,
    )  # fmt: skip
    batches_without_targets = make_batches()
    queue_rows, dev_rows = queue_and_dev_rows(batches_without_targets, objective.reserve_rows, dev_count)
    steps_in_minutes = noted(workdir, STEPS, UNTIMED) if config.run.minutes else 0
    steps = step_count(config, batches_without_targets.steps_per_epoch, steps_in_minutes)
    # How many sentences measure agreement with the teacher: the user's, or the dev rows if these are at least 4.
    compared = 0
    if teachers or objective.teacher_views:
        compared = len({*chain(*agreement_pairs)}) or (dev_count if dev_count >= 4 else 0)
    if can_run:  # for the error of a wrong `evals.best`, before targets are computed; the metric is chosen below
        devs.chosen_metric(devs.measured_metrics(config, tasks, compared), config.evals.best)
    # The step.
    named_teachers = {f"teacher {number}": teacher for number, teacher in enumerate(teachers, start=1)}
    if len(teachers) == 1:
        named_teachers = {"teacher": teachers[0]}
    teacher = named_teachers.get("teacher")
    program = make_step(config, objective, student, teacher, mesh, steps)
    # The targets, and what needs them: batches, a student whose head is fitted to them, and agreement with the teacher.
    targets = Targets(config, objective, store, teachers, labellers, progress=progress, absent=not can_run)
    batches = make_batches(targets.teacher_tokens or targets.arrays)
    if can_run and written_student is None:
        student = targets.fitted(config, student, batches.trained)
    best = ""
    if can_run:
        metrics = [*tasks]
        if compared:
            task = devs.dev_agreement(config, targets, agreement_pairs, dev_rows)
            tasks[agreement.METRIC] = task
            # Not as above: repeated sentences (`data.dedupe=False`) count once here, so they may be too few for a recall.
            metrics += task.metrics
        best = devs.chosen_metric(metrics, config.evals.best)
    teacher_params: Mapping[str, Any] = {}
    if teacher and program.teacher_shardings:
        frozen = teacher.frozen_params(mesh)
        teacher_params = meshes.frozen_shapes(frozen, compute_dtype)
        if can_run:
            teacher_params = meshes.place_frozen(frozen, program.teacher_shardings, compute_dtype)
    return Run(
        config=config, workdir=workdir, mesh=mesh, compute_dtype=compute_dtype, objective=objective, student=student, store=store,
        teachers=named_teachers, labeller_digests=[labeller.digest() for labeller in labellers], teacher_params=teacher_params,
        seeds=lambda: targets.at(queue_rows) if len(queue_rows) else None, batches=batches, dev=devs.Dev(tasks, best), program=program,
    )  # fmt: skip


def queue_and_dev_rows(batches: Batches, queue_count: int, dev_count: int) -> tuple[np.ndarray, np.ndarray]:
    """Divides the rows that are reserved into `queue_count` for the first queue and `dev_count` for evaluation, in a random order that
    all runs on a text share. If too few are reserved, the queue also takes rows that are trained on, several times if need be."""
    reserved = np.random.RandomState(QUEUE_SEED).permutation(batches.reserved)
    trained = np.random.RandomState(QUEUE_SEED).permutation(batches.trained)
    queue_rows, dev_rows = np.split(reserved, [len(reserved) - dev_count])
    return np.concatenate([queue_rows, np.resize(trained, queue_count - len(queue_rows))]), dev_rows


def noted(workdir: Path, name: str, default: int) -> int:
    """A number that an earlier start of the run has noted in the workdir, or else `default`; as the first process reads it."""
    return int(processes.gathered(read_note(workdir / INPUTS).get(name, default))[0])


def make_step(
    config: Config, objective: Objective, student: SentenceModel, teacher: SentenceModel | None, mesh: Mesh, steps: int
) -> Program:
    """The jitted training step for these models, its state, and a learning-rate schedule that ends at step `steps`. Models may have
    mere shapes as parameters. `teacher` is None without a teacher model, and with several."""
    optimizer = optim.make_optimizer(config.optimizer, steps)
    average = optim.make_average(config.optimizer)
    compute_dtype = dtype_of(config.run.precision)
    architecture = student.definition.architecture
    teacher_architecture = teacher.definition.architecture if teacher else None
    sizes = Sizes(
        batch_size=config.data.batch_size, width=student.definition.embedding_width,
        hidden=architecture.hidden_size, layers=architecture.layers,
        teacher_hidden=teacher_architecture.hidden_size if teacher_architecture else 0,
        teacher_layers=teacher_architecture.layers if teacher_architecture else 0,
        precision=jnp.dtype(compute_dtype),
    )  # fmt: skip
    # The state, as shapes alone: `Run.first_state` makes it on the devices later, which a plan for absent devices never does.
    make_state = partial(step.make_state, objective=objective, optimizer=optimizer, sizes=sizes, averages=bool(average))
    seeds = np.zeros((objective.reserve_rows, sizes.width), np.float32) if objective.reserve_rows else None
    key = jax.eval_shape(lambda: jax.random.key(config.run.seed))
    like = jax.eval_shape(make_state, student.params, seeds, key)
    paths = [path for params in like.params.values() for path in params]
    for pattern, _ in config.optimizer.rates:
        if not any(re.search(pattern, path) for path in paths):
            raise InputError(f"optimizer.rates: {pattern!r} matches no parameter, such as {min(student.params)}.")
    # Which devices hold which part of the state and of a live teacher.
    rules = sharding_rules(config.run.sharding, like.params, architecture, mesh)
    if rules is config.run.sharding:  # the user's own, where a pattern that matches nothing is a mistake
        meshes.check_rules(rules, like.params, mesh)
    shardings = meshes.shardings(like, mesh, rules)
    live_teacher = teacher if objective.teacher_views and isinstance(config.teacher, Live) else None
    teacher_shardings = frozen_shardings(live_teacher, mesh, config.run.sharding) if live_teacher else {}
    forward = step.Forward(
        config.student.in_training(student).definition, live_teacher.definition if live_teacher else None, objective,
        student_shardings=shardings.params["student"], teacher_shardings=teacher_shardings, compute_dtype=compute_dtype,
        remat=config.run.remat, teacher_dropout=isinstance(config.teacher, Live) and config.teacher.dropout,
    )  # fmt: skip
    train_step = step.make_train_step(
        forward, optimizer=optimizer, mesh=mesh, shardings=shardings, accumulate=config.run.accumulate, average=average
    )
    schedule = optim.make_schedule(config.optimizer, steps)
    return Program(make_state, like, shardings, teacher_shardings, train_step, steps, schedule)


def checked_setup(config: Config, mesh: Mesh | None = None) -> tuple[Mesh, int, Objective]:
    """Mesh, number of groups of a batch, and objective. Raises `InputError` for options that are wrong whatever the models and the
    text are. `mesh` replaces this machine's devices."""
    plugins.use(config.run.plugins)
    # The next three raise for a wrong option; their results are not needed here.
    profiled_steps(config.run.profile)
    terms_of_sources(config.objective, config.data.objectives)
    if config.student.pooling:
        Pooling.parse(config.student.pooling)
    data, evals, accumulate = config.data, config.evals, config.run.accumulate
    mesh = mesh or meshes.make_mesh(model_axis=config.run.model_axis, slices=config.run.slices)
    groups = meshes.pack_groups(data.pack_groups, mesh, data.batch_size)
    objective = make_objective(config)
    count = len(split_specs(data.text))
    sources = f"{count} source{'' if count == 1 else 's'}"
    groups_per_device = groups // meshes.batch_devices(mesh)
    choices = [evals.best == devs.LAST, bool(evals.average), bool(evals.patience or evals.patience_epochs)]
    refuse([
        (not count, "no text is given; set --config.data.text to at least one file, glob or data set."),
        (data.weights and len(data.weights) != count,
         f"weights {list(data.weights)} for {sources}; set --config.data.weights to one positive number per source, or leave it empty."),
        (data.objectives and len(data.objectives) != count,
         f"data.objectives={data.objectives} for {sources}; name the objectives of each source, or '' for all of them."),
        (accumulate > 1 and objective.couples_examples and objective.reads,
         f"run.accumulate={accumulate}: the objective's gradient cannot be cached; use --config.run.remat=True for less memory."),
        (groups_per_device % accumulate,
         f"run.accumulate={accumulate} does not divide the {groups_per_device} groups of a device; raise data.pack_groups."),
        (choices.count(True) > 1,
         "evals.best=last, evals.average and evals.patience choose the checkpoint in different ways; give only one of them."),
    ])  # fmt: skip
    # Only the text tells the steps of `run.epochs`, and only the speed those of `run.minutes`; `run.steps` is checked now.
    if config.run.steps > 0 or not (config.run.epochs or config.run.minutes):
        step_count(config, steps_per_epoch=0)
    return mesh, groups, objective


def profiled_steps(option: str) -> tuple[int, int]:
    """First and last step of `run.profile`, both 0 if it is empty; raises `InputError` for anything but `FIRST:LAST`."""
    with foreign_errors(f"run.profile={option!r} is not a range of steps such as 10:20"):
        first, last = map(int, (option or "0:0").split(":"))
        if option and not 1 <= first <= last:
            raise ValueError("the first step is at least 1, and the last one not before it")
    return first, last


def step_count(config: Config, steps_per_epoch: int, steps_in_minutes: int = 0) -> int:
    """The number of steps: `run.steps` if set, else `steps_in_minutes` if not 0, else those of `run.epochs`. `steps_in_minutes` is
    `UNTIMED` if the speed is not measured yet. Raises `InputError` for 0 steps, or if `evals.average` names a later step."""
    run = config.run
    averaged = config.evals.average
    steps = run.steps if run.steps > 0 else steps_in_minutes or round(run.epochs * steps_per_epoch)
    if not 1 <= steps <= MAX_INT32:
        raise InputError(f"run.steps={run.steps} and run.epochs={run.epochs} give {steps} steps, not 1 to {MAX_INT32}.")
    if max(averaged, default=0) > steps:
        raise InputError(f"evals.average={averaged}: step {max(averaged)} is beyond the run's {steps} steps.")
    return steps


def make_objective(config: Config) -> Objective:
    """The objective, in a `Nested` wrapper for nested widths; raises `InputError` if it does not fit the other options."""
    objective, teacher, student = config.objective, config.teacher, config.student
    name = config.kinds["objective"]
    columns = dict(config.data.columns) or {TEXT: TEXT}
    # The objective reads the columns of its views, and the columns whose pairs a teacher scores.
    text_views = [view for view in (*objective.student_views, *objective.teacher_views) if view != LABELS]
    read = {column for view in text_views for column in views.parse_view(view, list(columns)).columns}
    if LABELS in objective.teacher_views:
        read |= {*objective.scored}
    missing = sorted(read - {*columns})
    unread = [column for column in columns if column not in (TEXT, *read)]
    if config.data.chunk_tokens or config.student.trim:
        unread = []  # chunks are made of all columns, and a vocabulary may be trimmed to more languages than the views read
    teacher_columns = [view for view in dict.fromkeys(objective.teacher_views) if view in columns]
    random_views = [view for view in objective.teacher_views if view not in columns]
    has_stored_vectors = isinstance(teacher, OutsideVectors | Stored)
    learns_labels = tuple(objective.teacher_views) == (LABELS,)
    refuse([
        (teacher.scores_pairs != learns_labels,
         f"the teacher {teacher.kind} does not go with objective {name}: only trans_encoder, cosent and listwise learn scores of pairs; "
         f"choose --config=FILE.py:PRESET:teacher={'stored' if teacher.scores_pairs else 'labels'}."),
        (objective.teacher_views and not teacher.target_sources,
         f"objective {name} needs a teacher; set --config.teacher.{teacher.source_option}."),
        (objective.reads and not isinstance(teacher, Live),
         f"objective {name} needs targets of single tokens or layers; choose --config=FILE.py:PRESET:teacher=live, one model."),
        (teacher.transforms and len(teacher_columns) > 1,
         f"teacher.whiten and teacher.components transform each column by itself, but objective {name} compares columns; set both to 0."),
        (teacher.of_rows and not teacher.scores_pairs and len(teacher_columns) > 1,
         f"{teacher.kind} has one vector for each row, but objective {name} reads {', '.join(teacher_columns)}; name a teacher model."),
        (missing,
         f"the text has no column {' and no column '.join(map(repr, missing))}; it has {', '.join(columns)}. Set --config.data.columns."),
        (unread,
         f"data.columns names {' and '.join(unread)}, but objective {name} reads only {', '.join(sorted(read))}; leave out the rest, or "
         f"join it to the text: --config.data.columns={'+'.join(columns.get(column, column) for column in (TEXT, *unread))}"),
        (has_stored_vectors and random_views,
         f"targets are stored, but these views differ at every step: {', '.join(random_views)}; choose --config=FILE.py:PRESET:teacher=live."),
    ])  # fmt: skip
    if objective.teacher_views:
        teacher.check()
    student.check(teacher)
    if isinstance(student, Headed) and student.dims:  # nested widths
        return Nested(objective=objective, dims=tuple(sorted({*student.dims})), targets=student.dims_targets)
    return objective


def sized_to_text(objective: Objective, rows: int) -> Objective:
    """The objective with a queue of at most a quarter of the text's rows; a longer one would hold the same sentences many times."""
    if isinstance(objective, Nested):
        return dataclasses.replace(objective, objective=sized_to_text(objective.objective, rows))
    if isinstance(objective, Weighted):
        terms = [dataclasses.replace(term, objective=sized_to_text(term.objective, rows)) for term in objective.terms]
        return dataclasses.replace(objective, terms=tuple(terms))
    size = objective.queue_size
    limit = max(1, rows // 4)
    if size <= limit:
        return objective
    log.info(f"objective.queue_size: {limit:,} instead of {size:,}: at most a quarter of the text's {rows:,} rows")
    return dataclasses.replace(cast(Any, objective), queue_size=limit)


def context_of(config: Config, workdir: Path) -> ModelContext:
    """What making a run's models depends on: data and run options, views, and the exports of earlier stages."""
    return ModelContext(
        data=config.data, student_views=config.objective.student_views, seed=config.run.seed,
        precision=config.run.precision, located=lambda name: stage_export(name, workdir),
    )  # fmt: skip


def make_student(config: Config, teachers: Sequence[SentenceModel], workdir: Path) -> SentenceModel:
    """The untrained student, whose definition states the similarity by which training compares vectors. `teachers` are the models whose
    vectors are the targets. Raises `InputError` if it cannot be made or exported, or if no model has a prompt for the text's roles."""
    student = config.student.make(StudentInputs(context_of(config, workdir), config.teacher, teachers))
    roles = used_roles(model_text.sentence_roles(config.data))
    has_role_prompts = any(model.role_prompts[role] != model.prompt for role in roles for model in (student, *teachers))
    # The prompts of a teacher that scores pairs, or of one outside of JAX, are unknown here, because it is not among `teachers`.
    knows_all_prompts = not (config.teacher.scores_pairs or isinstance(config.teacher, OutsideVectors))
    if roles and knows_all_prompts and not has_role_prompts:
        raise InputError(
            f"data.roles={config.data.roles} has no effect: no model has its own prompt for the role {' or '.join(roles)}; leave it empty, or "
            f"set --config.teacher.{roles[0]}_prompt or --config.student.{roles[0]}_prompt."
        )
    similarity = config.objective.similarity or (teachers[0] if teachers else student).definition.similarity
    # A dot product needs the lengths of a teacher's own vectors, which joined or transformed vectors lose.
    if len(teachers) > 1 or config.teacher.transforms:
        similarity = "cosine"
    by_dot = [model.source for model in (*teachers, student) if model.definition.similarity == "dot"]
    if by_dot and similarity == "cosine":
        log.warning(f"{by_dot[0]}: its checkpoint compares by dot product, but this training and its export by cosine")
    student = dataclasses.replace(student, definition=dataclasses.replace(student.definition, similarity=similarity))
    check_exportable(config.student.evaluated(student).definition)  # the head may be dropped after training
    return student


def write_student(student: SentenceModel, workdir: Path) -> None:
    """Writes the untrained student to the workdir, where resumed runs and `export` read it, unless it is there already."""
    if (workdir / STUDENT).is_dir():
        return
    # For `read_student`, what the saved model itself does not tell.
    origin = {"source": student.source, "default_prompt": student.checkpoint_prompt}
    origin |= {"card": [student.base_models, student.languages]}
    with replacing(workdir / STUDENT, origin) as folder:
        save(student, folder, keeps_form=True)  # checkpoints hold parameters of this form


def read_student(config: Config, workdir: Path) -> SentenceModel | None:
    """The untrained student in the workdir; None before the run has written it."""
    folder = workdir / STUDENT
    if not all(processes.gathered(folder.is_dir())):  # if one process has no copy, all make the student anew
        return None
    if changed := changed_files(folder):
        raise InputError(
            f"{folder / changed[0]} is not as the run has written it; remove {folder}, and the same command makes it again."
        )
    model = load_model(str(folder), plugins=config.run.plugins)
    origin = read_note(folder / MARK)
    base_models, languages = map(tuple, origin["card"])
    model = dataclasses.replace(model, source=origin["source"], checkpoint_prompt=origin["default_prompt"])
    return dataclasses.replace(model, base_models=base_models, languages=languages)


def training_length(config: Config, student: SentenceModel, teachers: Sequence[SentenceModel], workdir: Path) -> int:
    """Maximum tokens per sentence: `data.max_length` or `data.chunk_tokens`, else what an earlier start of the run has chosen, else
    the least multiple of 16 that truncates at most 1 % of sampled rows, up to 512 and to what a teacher reads. Never more than a model
    that reads the student's tokens can read."""
    readers = [student, *(teachers if config.objective.reads else ())]
    longest = min(model.definition.architecture.longest for model in readers)
    if length := config.data.max_length or config.data.chunk_tokens or noted(workdir, LENGTH, 0):
        return min(length, longest)
    lengths = sampled_lengths(config, student)
    quantile = int(np.quantile(lengths, 0.99, method="higher")) if lengths else 1
    fitting = math.ceil(quantile / 16) * 16
    # Attention's work grows with the square of the length. Targets tell nothing of tokens that no teacher reads.
    limit = min(512, longest, max((teacher.max_length for teacher in teachers), default=512))
    length = min(fitting, limit)
    limited = f"; a choice is at most {limit} here" if fitting > limit else ""
    log.info(f"data.max_length: {length}, because 99 % of the rows have at most {fitting} tokens{limited}")
    return processes.gathered(length)[0]


def sampled_lengths(config: Config, student: SentenceModel) -> list[int]:
    """Numbers of student tokens in sampled rows of the text: in each row's longest sentence, or for a cross-encoder in its pair."""
    all_rows = model_text.prompted_rows(config.data, config.objective.student_views, student)
    rows = [row for row in model_text.evenly_sampled(all_rows, model_text.SAMPLE) if row]
    untruncated = dataclasses.replace(student, tokenizer=bare(student.tokenizer))
    if student.definition.reads_pairs:
        pairs = [(row[0], row[1]) for row in rows if len(row) == 2]  # the others lack a sentence: it is blank
        return [len(encoding) for encoding in untruncated.encodings(pairs)]
    lengths = map(len, untruncated.encodings([sentence for row in rows for sentence in row]))
    return [max(islice(lengths, len(row))) for row in rows]  # `lengths` goes on from row to row


def truncation_warnings(objective: Objective, student: SentenceModel, store: TokenStore) -> list[str]:
    """A warning for each column that the student reads if more than 5 % of its sentences are truncated."""
    longest = student.definition.architecture.longest
    remedy = f"set --config.data.max_length (at most {longest}) to read more of them"
    if longest <= store.max_length:
        remedy = f"the student reads no more; --config.data.chunk_tokens={longest} splits long texts instead"
    return [
        f"warning: data.max_length={store.max_length} truncates {share:.0%} of the sentences of column {column}; {remedy}"
        for column in model_text.columns_of_views(store, objective.student_views)
        if (share := store.truncated(column)) > 0.05
    ]


def check_models(
    config: Config, objective: Objective, student: SentenceModel, teachers: Sequence[SentenceModel]
) -> None:
    """Raises `InputError` if the objective, or `evals.agreement`, cannot work with this student and these teachers."""
    student_views, teacher_views = objective.student_views, objective.teacher_views
    # A column that is a view twice gives different vectors only by dropout; all other views change its sentences at random.
    column_views = [view for view in student_views if view in (dict(config.data.columns) or (TEXT,))]
    reads_twice = len(set(column_views)) < len(column_views)
    trained = config.student.in_training(student).definition.architecture
    has_dropout = not trained.is_static and any((trained.hidden_dropout, trained.attention_dropout, trained.drophead))
    width = student.definition.embedding_width
    widths = [teacher.definition.embedding_width for teacher in teachers]
    target_width = config.teacher.width(widths) if teacher_views else 0
    roles = {role for source in model_text.sentence_roles(config.data) for role in source.values()}
    reads_same_tokens = all(
        student.tokenizer.get_vocab() == teacher.tokenizer.get_vocab()
        and all(student.role_prompts[role] == teacher.role_prompts[role] for role in roles)
        for teacher in teachers
    )
    refuse([
        (config.evals.agreement and not teachers,
         "evals.agreement needs a teacher model; your own vectors only cover the training text."),
        (any(view in views.PAIRS for view in student_views) != student.definition.reads_pairs,
         f"the objective reads {', '.join(student_views)}: views of pairs need --config=FILE.py:PRESET:student=cross_encoder, others a "
         "sentence encoder, which student.pooling makes of a cross-encoder."),
        (not teacher_views and reads_twice and not has_dropout,
         f"objective.views={tuple(student_views)} reads a sentence twice, and without dropout both vectors are "
         "equal, so the loss has no positives; set --config.student.dropout=0.1, or make one view delete_words."),
        (target_width not in (0, width) and not objective.any_width,
         f"the student's vectors have {width} numbers, the teacher's {target_width}; set student.head to tanh or linear."),
        (objective.reads and tuple(student_views) != tuple(teacher_views),
         f"to compare token by token, both must read the same views, not {student_views} and {teacher_views}."),
        (objective.reads and not reads_same_tokens,
         "to compare token by token, student and teacher must share tokenizer and prompts; cut the student from the teacher."),
    ])  # fmt: skip


class Targets:
    """What the student learns from: the teacher's vectors of each sentence, or scores of pairs.

    Stored targets are in `arrays`. A live teacher computes them in the training step, from its own tokens or from the student's.
    With `absent`, the step is only compiled, and zeros that take no memory stand in for what a model would compute.
    """

    def __init__(
        self,
        config: Config,
        objective: Objective,
        store: TokenStore,
        teachers: Sequence[SentenceModel],
        labellers: Sequence[Labeller],
        *,
        progress: bool,
        absent: bool = False,
    ):
        teacher, teacher_views = config.teacher, objective.teacher_views
        dtype = dtype_of(config.run.precision)
        # On this process's devices only: each process makes its part of stored targets without waiting for others.
        embedders = [sharded_embedder(model, config.run, compute_dtype=dtype) for model in teachers]
        embed = joint_embed(embedders, teacher)
        self.embed: RoleEmbed | None = processes.over_processes(embed) if embed else None
        """Computes the targets of any sentences, divided among the processes; None without a teacher model."""
        self.store = store
        self.objective = objective
        self.column = teacher_views[0] if teacher_views and teacher_views[0] in store.columns else TEXT
        """The column of the text in the teacher's first view."""
        self.width = teacher.width([embedder.width for embedder in embedders]) if teacher_views else 0
        """Width of the targets; 0 without a teacher or with labels."""
        self.teacher_tokens: Viewed | None = None
        """What a live teacher reads, unless it reads the student's tokens."""
        self.arrays: tuple[StoredTargets, ...] = ()
        """Stored targets, one array per teacher view; empty for a live teacher or without a teacher."""
        if not teacher_views or objective.reads:  # there is no teacher, or it reads the student's tokens
            return
        if isinstance(teacher, Live):
            options = {"length": teachers[0].max_length, "chunking": store.chunking, "progress": progress}
            teacher_store = model_text.tokenised_text(config.data, teachers[0], teacher_views, **options)
            self.teacher_tokens = Viewed(teacher_store, teacher_views)
        elif absent and (teacher.models or isinstance(teacher, OutsideVectors)):
            pairs_of_row = len(objective.scored) - 1  # of the first of these columns with each other one
            width = pairs_of_row if teacher.scores_pairs else self.width
            self.arrays = (np.broadcast_to(np.float32(0), (store.rows, width)),) * len(teacher_views)
        else:
            inputs = TargetInputs(store, config.data, objective, embedders, labellers, dtype, progress)
            self.arrays = teacher.stored(inputs)

    def at(self, rows: Integer[np.ndarray, " n"]) -> Float[np.ndarray, "n e"]:
        """The targets of some rows of the text, for the teacher's first view."""
        if self.arrays:
            return np.asarray(self.arrays[0][rows], np.float32)
        assert self.embed is not None  # a live teacher is a model
        log.info("teacher embeddings of %s sentences", f"{len(rows):,}")
        sentences, roles = self.sentences(self.column, rows)
        return self.embed(sentences, role=roles)

    def sentences(self, column: str, rows: Integer[np.ndarray, " n"]) -> tuple[list[str], Sequence[str]]:
        """The sentences of some rows of a column, and their roles."""
        return [self.store.text(column, row) for row in rows], self.store.roles(column, rows)

    def fitted(self, config: Config, student: SentenceModel, trained: Integer[np.ndarray, " n"]) -> SentenceModel:
        """The untrained student; if its options ask for it, with a head or table fitted by least squares to the targets of at most
        4,096 of the rows `trained`, about ten times the width of a usual vector."""

        def examples(model: SentenceModel) -> tuple[Float[np.ndarray, "m d"], Float[np.ndarray, "m e"]]:
            """Vectors of a `model`, the student without its head, for evenly spaced rows, and the targets of these rows."""
            rows = trained[np.unique(np.linspace(0, len(trained) - 1, 4096, dtype=np.int64))]
            # Without normalisation, because the lengths of targets count.
            embedder = Embedder(model.as_pooled(), compute_dtype=dtype_of(config.run.precision))
            sentences, roles = self.sentences(self.column, rows)
            return embedder.encode(sentences, role=roles), self.at(rows)

        return config.student.fitted(student, examples) if self.width else student


def joint_embed(embedders: Sequence[Embedder], teacher: Teacher) -> RoleEmbed | None:
    """A function that computes the `joined` vectors of several teachers, or the vectors of a single one; None without teachers."""
    if len(embedders) < 2:
        return embedders[0].encode if embedders else None

    def embed(sentences: Sequence[str], *, role: str | Sequence[str] = "") -> Float[np.ndarray, "n e"]:
        assert isinstance(teacher, Stored)  # no other kind takes several models
        return joined([embedder.encode(sentences, role=role) for embedder in embedders], teacher.shares())

    return embed
