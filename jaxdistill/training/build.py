"""Builds a run from its config: models, text, targets, objective and step, each made once and checked before step 1."""

import dataclasses
import logging
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Integer

from jaxdistill.config.options import Config
from jaxdistill.core import MAX_INT32, InputError, Objective, Sizes, TrainState, platform
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.core.cluster import processes
from jaxdistill.core.ops.dense import dtype_of
from jaxdistill.core.ops.nested import Nested
from jaxdistill.core.paths import public_name
from jaxdistill.data.batches import QUEUE_SEED, Batches, Viewed
from jaxdistill.data.tokens import TokenStore
from jaxdistill.models.checkpoints import onnx
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.model_text import student_text
from jaxdistill.objectives.weighted import Weighted
from jaxdistill.training import dev as devs
from jaxdistill.training import optim, step
from jaxdistill.training.check import check_models, checked_setup, step_count
from jaxdistill.training.models import Targets, context_of, make_student, read_student, training_length
from jaxdistill.training.sharding import frozen_shardings, sharding_rules
from jaxdistill.training.workdir.folder import INPUTS, STEPS, read_note

SMALL = 100_000
"""Fewest rows of a text of which more than a tenth may be held out."""
QUEUE_SHARE = 0.25
"""Largest queue, as a fraction of the text's rows: a longer queue would hold the same sentences many times."""
UNTIMED = MAX_INT32
"""Number of steps of a run whose speed is still to be measured for `run.minutes`."""

log = logging.getLogger(__name__)


class Program(NamedTuple):
    """The training step of a run, its state, and how often it runs."""

    make_state: Callable[..., TrainState]
    """The state before step 1, from the student's parameters, the queue's first vectors and a random key."""
    like: TrainState
    """Shapes and dtypes of the state."""
    shardings: TrainState
    train_step: step.TrainStep
    steps: int
    schedule: optax.Schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run that is ready to train."""

    config: Config
    workdir: pathlib.Path
    mesh: Mesh
    compute_dtype: DTypeLike
    objective: Objective
    teachers: Sequence[SentenceModel]
    """Models whose vectors are the targets; empty with the user's own vectors."""
    labeller_digests: Sequence[str]
    """Digests of the models that label the text's pairs."""
    student: SentenceModel
    """The untrained student, with its head."""
    store: TokenStore
    """The training text."""
    batches: Batches
    seeds: Callable[[], np.ndarray | None]
    """Returns the teacher's vectors of the queue's first sentences, `[k, e]`; None if the objective needs none."""
    dev: devs.Dev
    program: Program
    teacher_params: Mapping[str, Any]
    """The live teacher's parameters on the mesh, or shapes if its devices are absent; empty if the step has no teacher."""

    @property
    def teacher(self) -> SentenceModel | None:
        """The only teacher; None with several."""
        return self.teachers[0] if len(self.teachers) == 1 else None

    @property
    def named_teachers(self) -> dict[str, SentenceModel]:
        """`teacher`, or `teacher 1`, `teacher 2` and so on."""
        if self.teacher:
            return {"teacher": self.teacher}
        return {f"teacher {number}": teacher for number, teacher in enumerate(self.teachers, start=1)}

    @property
    def exports_last(self) -> bool:
        """Whether the last checkpoint is exported regardless of its score."""
        return self.config.evals.best == devs.LAST

    def first_state(self, seeds: np.ndarray | None) -> TrainState:
        """The state before step 1, on the mesh."""
        make = jax.jit(self.program.make_state, out_shardings=self.program.shardings)
        return make(self.student.params, seeds, jax.random.key(self.config.run.seed))


def objective_title(config: Config) -> str:
    """The objective's name, and its variant, such as `congen, control term alone`."""
    return ", ".join(filter(None, [public_name(config.kinds["objective"]), config.objective.variant]))


def build(config: Config, workdir: pathlib.Path, *, progress: bool, absent: Mesh | None = None) -> Run:
    """A run that is ready to train; raises `InputError` for anything that cannot work. With a mesh of `absent` devices, for which to
    compile the step, no model runs, and the run cannot train."""
    mesh, groups, objective = checked_setup(config, absent)
    dtype, computed, teaching = dtype_of(config.run.precision), absent is None, config.teacher
    context = context_of(config, workdir)
    labellers, teachers = teaching.labellers(context), teaching.load(context)
    written = read_student(config, workdir) if computed else None
    student = written or make_student(config, teachers, workdir, draft=True)
    if config.run.export_to:
        onnx.check(student)
    check_models(config, objective, student, teachers)
    tasks = devs.dev_tasks(config, named=computed, similarity=student.definition.similarity)
    agreeing = devs.agreement_pairs(config)
    length = training_length(config, student, teachers, workdir)
    student = config.student.with_length(student, length)
    store = student_text(config.data, objective, student, length, of_rows=teaching.of_rows, progress=progress)
    objective = sized_to_text(objective, store.rows)
    held_out = devs.held_out_rows(config.evals, store.rows)
    on_cpus = platform(mesh) == "cpu"
    batches_with = partial(
        Batches,
        Viewed(store, objective.student_views),
        batch_size=config.data.batch_size,
        seed=config.run.seed,
        weights=config.data.weights,
        groups=groups,
        local=meshes.local_groups(mesh, groups) if computed else None,
        reserve_rows=reserved_rows(store.rows, objective.reserve_rows, held_out),
        max_shapes=config.data.pack_shapes or (4 if on_cpus else 3),
        divided=on_cpus,
    )
    # The number that an earlier start measured for `run.minutes`.
    noted = read_note(workdir / INPUTS).get(STEPS, UNTIMED) if config.run.minutes else 0
    steps = step_count(config, batches_with().steps_per_epoch, timed=int(processes.gathered(noted)[0]))
    if computed:
        devs.check_dev(config, tasks, teachers, objective, count=sum(map(len, agreeing)) or held_out)
    teacher = teachers[0] if len(teachers) == 1 else None
    live_teacher = teacher if objective.teacher_views and teaching.is_live else None
    program_of = partial(make_step, config, objective, teacher=teacher, mesh=mesh, live=bool(live_teacher), steps=steps)
    program = program_of(student)
    # By now, all is checked that can be known before a model reads the text.
    if computed and written is None and config.student.computes:
        student = config.student.with_length(make_student(config, teachers, workdir), length)
        program = program_of(student)
    targets = Targets(
        config, objective, teachers=teachers, labellers=labellers, store=store, compute_dtype=dtype, progress=progress,
        absent=not computed,
    )  # fmt: skip
    live = None if targets.store is None else Viewed(targets.store, objective.teacher_views)
    data = batches_with(live or targets.arrays)
    if computed and written is None:
        student = targets.fitted(config, student, data.trained)
    seed_rows, dev_rows = drawn_rows(data, objective.reserve_rows, held_out)
    dev, frozen = devs.Dev(tasks={}, best=""), {}
    if computed:
        dev = devs.make_dev(config, tasks, devs.dev_agreement(config, targets, agreeing, dev_rows))
    if live_teacher:
        params = live_teacher.frozen_params(mesh)
        shardings = frozen_shardings(live_teacher, mesh, config.run.sharding)
        frozen = meshes.place_frozen(params, shardings, dtype) if computed else meshes.frozen_shapes(params, dtype)
    return Run(
        config=config,
        workdir=workdir,
        mesh=mesh,
        compute_dtype=dtype,
        objective=objective,
        teachers=teachers,
        labeller_digests=[labeller.digest() for labeller in labellers],
        student=student,
        store=store,
        batches=data,
        seeds=lambda: targets.rows(seed_rows) if len(seed_rows) else None,
        dev=dev,
        program=program,
        teacher_params=frozen,
    )


def sized_to_text(objective: Objective, rows: int) -> Objective:
    """The objective with a queue of at most `QUEUE_SHARE` of the text's rows."""
    if isinstance(objective, Nested):
        return dataclasses.replace(objective, objective=sized_to_text(objective.objective, rows))
    if isinstance(objective, Weighted):
        terms = [dataclasses.replace(term, objective=sized_to_text(term.objective, rows)) for term in objective.terms]
        return dataclasses.replace(objective, terms=tuple(terms))
    size, most = objective.queue_size, max(1, int(QUEUE_SHARE * rows))
    if size <= most:
        return objective
    log.info(f"objective.queue_size: {most:,} instead of {size:,}: at most a quarter of the text's {rows:,} rows")
    return dataclasses.replace(cast(Any, objective), queue_size=most)


def reserved_rows(rows: int, seeds: int, held_out: int) -> int:
    """Rows of the text to reserve for the first queue and for evaluation: of a small text at most a tenth."""
    return seeds + held_out if rows >= SMALL else min(seeds + held_out, max(held_out, rows // 10))


def drawn_rows(
    data: Batches, seeds: int, held_out: int
) -> tuple[Integer[np.ndarray, " seeds"], Integer[np.ndarray, " held_out"]]:
    """The rows whose targets fill the first queue, and the held-out rows. Of a small text, the queue also takes rows that are
    trained on, because too few are reserved."""
    reserved, trained = (np.random.RandomState(QUEUE_SEED).permutation(rows) for rows in (data.reserved, data.trained))
    of_queue = len(reserved) - held_out
    return np.concatenate([reserved[:of_queue], np.resize(trained, seeds - of_queue)]), reserved[of_queue:]


def make_step(
    config: Config,
    objective: Objective,
    student: SentenceModel,
    teacher: SentenceModel | None,
    mesh: Mesh,
    *,
    live: bool,
    steps: int,
) -> Program:
    """The layout of the state and the jitted training step for these models, whose parameters may be mere shapes; `live`: the
    step runs the teacher."""
    optimizer, average = optim.make_optimizer(config.optimizer, steps), optim.make_average(config.optimizer)
    compute_dtype = dtype_of(config.run.precision)
    trained, other = student.definition.architecture, teacher.definition.architecture if teacher else None
    sizes = Sizes(
        batch_size=config.data.batch_size,
        width=student.definition.embedding_width,
        hidden=trained.hidden_size,
        layers=trained.layers,
        teacher_hidden=other.hidden_size if other else 0,
        teacher_layers=other.layers if other else 0,
        precision=jnp.dtype(compute_dtype),
    )
    make_state = partial(
        step.make_state, objective=objective, optimizer=optimizer, sizes=sizes, averages=average is not None
    )
    # Shapes alone: the state is made on its devices later, and a plan for absent devices has none.
    like = jax.eval_shape(
        make_state,
        student.params,
        np.zeros((objective.reserve_rows, sizes.width), np.float32) if objective.reserve_rows else None,
        jax.eval_shape(lambda: jax.random.key(config.run.seed)),
    )
    for pattern, _ in config.optimizer.rates:
        if not any(re.search(pattern, path) for paths in like.params.values() for path in paths):
            raise InputError(
                f"optimizer.rates: {pattern!r} matches the path of no parameter, such as {min(student.params)}."
            )
    rules = sharding_rules(config.run.sharding, like.params, trained, mesh)
    # The user's own rules, where a pattern that matches nothing is a slip; ours are for all families.
    if rules is config.run.sharding:
        meshes.check_rules(rules, like.params, mesh)
    shardings = meshes.shardings(like, mesh, rules)
    train_step = step.make_train_step(
        student=config.student.in_training(student).definition,
        teacher=teacher.definition if live and teacher else None,
        objective=objective,
        optimizer=optimizer,
        mesh=mesh,
        shardings=shardings,
        teacher_shardings=frozen_shardings(teacher, mesh, config.run.sharding) if live and teacher else {},
        compute_dtype=compute_dtype,
        remat=config.run.remat,
        teacher_dropout=config.teacher.dropout,
        accumulate=config.run.accumulate,
        average=average,
    )
    return Program(make_state, like, shardings, train_step, steps, optim.make_schedule(config.optimizer, steps))


def with_steps(run: Run, steps: int) -> Run:
    """The run with another number of steps, which its schedule ends with."""
    steps, live = step_count(run.config, 0, timed=steps), bool(run.teacher_params)
    program = make_step(run.config, run.objective, run.student, run.teacher, run.mesh, live=live, steps=steps)
    return dataclasses.replace(run, program=program)
