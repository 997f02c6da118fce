"""Builds a run from its config: models, text, targets, objective and step, each made once and checked before step 1."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Integer

from jaxdistill.checkpoints import onnx
from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.cluster import mesh as meshes
from jaxdistill.cluster import processes
from jaxdistill.config import Config
from jaxdistill.config.ranges import MAX_INT32
from jaxdistill.core import InputError, Objective, platform
from jaxdistill.data import batches
from jaxdistill.data.sources import check_weights, split_specs
from jaxdistill.data.text import TEXT
from jaxdistill.data.tokens import TokenStore
from jaxdistill.encoders.architecture import Pooling
from jaxdistill.files import parts
from jaxdistill.ops.dense import dtype_of
from jaxdistill.reading import student_text
from jaxdistill.students.parts.student import widths_of
from jaxdistill.teachers.parts.prompts import check_roles
from jaxdistill.training import step
from jaxdistill.training.profiling import profiled_steps
from jaxdistill.training.run import LAST, NO_DEV, Layout, Models, Program, Run, Text
from jaxdistill.training.setup import optim
from jaxdistill.training.setup.dev import DevSets, check_dev, dev_agreement, held_out_rows, make_dev, read_dev_sets
from jaxdistill.training.setup.lengths import training_length
from jaxdistill.training.setup.objective import (
    check_accumulation,
    check_form,
    check_same_tokens,
    check_views_differ,
    make_objective,
    sized_to_text,
    sizes_of,
)
from jaxdistill.training.setup.sharding import frozen_shardings, sharding_rules
from jaxdistill.training.setup.student import fitted_student, load_labellers, load_teachers, make_student, read_student
from jaxdistill.training.setup.targets import Targets
from jaxdistill.workdir.folder import INPUTS, STEPS, read_note

SMALL = 100_000
"""Fewest rows of a text of which more than a tenth may be held out."""
UNTIMED = MAX_INT32
"""Number of steps of a run whose speed is still to be measured for `run.minutes`."""

Prepared = tuple[Sequence[SentenceModel], Sequence[SentenceModel], SentenceModel, DevSets]


def prepared(
    config: Config,
    workdir: pathlib.Path,
    objective: Objective,
    student: SentenceModel | None = None,
    *,
    named: bool = True,
) -> Prepared:
    """Labellers, teachers, student and dev sets of a run; raises `InputError` if they do not go together.
    Needs no text.

    Args:
      objective: of `checked_setup`.
      student: as an earlier start of the run wrote it; None: a draft is made, see `ModelContext.draft`.
      named: read the dev sets that are not the user's own, too.
    """
    labellers, teachers = load_labellers(config, workdir), load_teachers(config, workdir)
    student = student or make_student(config, teachers, workdir, draft=True)
    if config.run.export_to:
        onnx.check(student)
    check_roles(config.data, [*labellers, *teachers, student])
    check_form(objective, student)
    check_views_differ(objective, config.student.in_training(student), list(dict(config.data.columns) or (TEXT,)))
    check_width(objective, config.teacher.width(widths_of(teachers)) if objective.teacher_views else 0, student)
    if objective.reads and len(teachers) == 1:
        check_same_tokens(config.data, objective, student, teachers[0])
    return labellers, teachers, student, read_dev_sets(config, named=named)


def build(config: Config, workdir: pathlib.Path, *, progress: bool, absent: Mesh | None = None) -> Run:
    """A run that is ready to train; raises `InputError` for anything that cannot work.

    Args:
      absent: mesh of absent devices for which to compile the step; no model then runs, and the run cannot train.
    """
    mesh, groups, objective = checked_setup(config, absent)
    dtype, computed = dtype_of(config.run.precision), absent is None
    written = read_student(config, workdir) if computed else None
    labellers, teachers, student, dev_sets = prepared(config, workdir, objective, written, named=computed)
    length = training_length(config, student, teachers, workdir)
    student = config.student.with_length(student, length)
    store = student_text(config, objective, student, length, progress=progress)
    objective = sized_to_text(objective, store.rows)
    held_out = held_out_rows(config.evals, store.rows)
    batches_with = batches_of(config, objective, store, mesh, groups=groups, held_out=held_out, computed=computed)
    steps = step_count(config, batches_with().steps_per_epoch, timed=timed_steps(config, workdir))
    if computed:
        check_dev(config, dev_sets, teachers, objective, held_out=held_out)
    teacher = teachers[0] if len(teachers) == 1 else None
    live_teacher = teacher if objective.teacher_views and config.teacher.is_live else None
    step_of = partial(make_step, config, objective, teacher=teacher, mesh=mesh, live=bool(live_teacher), steps=steps)
    layout, train_step = step_of(student)
    # By now, all is checked that can be known before a model reads the text.
    if computed and written is None and config.student.computes:
        student = config.student.with_length(make_student(config, teachers, workdir), length)
        layout, train_step = step_of(student)
    targets = Targets(
        config, objective, teachers=teachers, labellers=labellers, store=store, compute_dtype=dtype, progress=progress,
        absent=not computed,
    )  # fmt: skip
    live = None if targets.store is None else batches.Viewed(targets.store, objective.teacher_views)
    data = batches_with(live or targets.arrays)
    if computed and written is None:
        student = fitted_student(config, student, targets, data.trained)
    seeds, held_out = drawn_rows(data, objective.reserve_rows, held_out)
    dev = NO_DEV
    if computed:
        agreement = dev_agreement(config, targets, dev_sets, held_out)
        dev = make_dev(config, dev_sets, agreement, similarity=student.definition.similarity)
    frozen = frozen_teacher(config, live_teacher, mesh, dtype, computed=computed)
    return Run(
        config=config,
        workdir=workdir,
        objective=objective,
        models=Models(
            teachers=teachers, labeller_digests=[labeller.digest() for labeller in labellers], student=student
        ),
        text=Text(store=store, batches=data, seeds=lambda: targets.rows(seeds) if len(seeds) else None),
        dev=dev,
        layout=layout,
        program=Program(
            mesh=mesh,
            compute_dtype=dtype,
            train_step=train_step,
            teacher_params=frozen,
            steps=steps,
            schedule=optim.make_schedule(config.optimizer, steps),
        ),
    )


def batches_of(
    config: Config,
    objective: Objective,
    store: TokenStore,
    mesh: Mesh,
    *,
    groups: int,
    held_out: int,
    computed: bool,
) -> Callable[..., batches.Batches]:
    """Makes the run's batches from the teacher's tokens or its stored vectors, or from neither."""
    local = meshes.own_groups(mesh, groups) if computed else np.arange(groups)
    on_cpus = platform(mesh) == "cpu"
    return partial(
        batches.Batches,
        batches.Viewed(store, objective.student_views),
        batch_size=config.data.batch_size,
        seed=config.run.seed,
        weights=config.data.weights,
        groups=batches.Groups(groups, local),
        reserve_rows=reserved_rows(store.rows, objective.reserve_rows, held_out),
        shaping=batches.Shaping(most=config.data.pack_shapes or (4 if on_cpus else 3), divided=on_cpus),
    )


def timed_steps(config: Config, workdir: pathlib.Path) -> int:
    """The steps that an earlier start measured for `run.minutes`; `UNTIMED` before that, 0 without `run.minutes`."""
    if not config.run.minutes:
        return 0
    return int(processes.gathered(read_note(workdir / INPUTS).get(STEPS, UNTIMED))[0])


def frozen_teacher(
    config: Config, teacher: SentenceModel | None, mesh: Mesh, dtype: np.dtype, *, computed: bool
) -> Mapping[str, Any]:
    """The parameters of the teacher in the step, on its devices or as shapes; none if the step runs no teacher."""
    if teacher is None:
        return {}
    params = teacher.frozen_params(mesh)
    if not computed:
        return meshes.frozen_shapes(params, dtype)
    return meshes.place_frozen(params, frozen_shardings(teacher, mesh, config.run.sharding), dtype)


def reserved_rows(rows: int, seeds: int, held_out: int) -> int:
    """Rows of the text to reserve for the first queue and for evaluation: of a small text at most a tenth."""
    return seeds + held_out if rows >= SMALL else min(seeds + held_out, max(held_out, rows // 10))


def drawn_rows(
    data: batches.Batches, seeds: int, held_out: int
) -> tuple[Integer[np.ndarray, " seeds"], Integer[np.ndarray, " held_out"]]:
    """The rows whose targets fill the first queue, and the held-out rows. Of a small text, the queue also takes rows that are
    trained on, because too few are reserved."""
    reserved, trained = (
        np.random.RandomState(batches.QUEUE_SEED).permutation(rows) for rows in (data.reserved, data.trained)
    )
    own = len(reserved) - held_out
    return np.concatenate([reserved[:own], np.resize(trained, seeds - own)]), reserved[own:]


def checked_setup(config: Config, absent: Mesh | None = None) -> tuple[Mesh, int, Objective]:
    """Devices, groups of a batch and objective; raises `InputError` for options that are wrong for any models and text.

    Args:
      absent: as in `build`.
    """
    parts.use(config.run.parts)
    profiled_steps(config.run.profile)
    if config.student.pooling:
        Pooling.parse(config.student.pooling)
    specs = split_specs(config.data.text)
    if not specs:
        raise InputError("no text is given; set --config.data.text to at least one file, glob or data set.")
    check_weights(config.data.weights, sources=len(specs))
    mesh = absent or meshes.make_mesh(model_axis=config.run.model_axis, slices=config.run.slices)
    groups = meshes.pack_groups(config.data.pack_groups, mesh, config.data.batch_size)
    objective = make_objective(config)
    check_accumulation(config, objective, groups, mesh)
    if config.run.steps or not (config.run.epochs or config.run.minutes):  # otherwise text or speed determine the steps
        step_count(config, steps_per_epoch=0)
    evals = config.evals
    if sum(map(bool, (evals.best == LAST, evals.average, evals.patience or evals.patience_epochs))) > 1:
        raise InputError(
            f"evals.best={evals.best}, evals.average={evals.average} and evals.patience choose the checkpoint in different ways; give only "
            "one of best=last, average and patience (or patience_epochs), and lower run.steps to end earlier."
        )
    return mesh, groups, objective


def make_step(
    config: Config,
    objective: Objective,
    student: SentenceModel,
    teacher: SentenceModel | None,
    mesh: Mesh,
    *,
    live: bool,
    steps: int,
) -> tuple[Layout, step.TrainStep]:
    """The layout of the state and the jitted training step for these models, whose parameters may be mere shapes; `live`: the
    step runs the teacher."""
    optimizer = optim.make_optimizer(config.optimizer, steps)
    compute_dtype = dtype_of(config.run.precision)
    sizes = sizes_of(student, teacher, batch_size=config.data.batch_size, precision=compute_dtype)
    # Shapes alone: the state is made on its devices later, and a plan for absent devices has none.
    like = jax.eval_shape(
        partial(step.make_state, objective=objective, optimizer=optimizer, sizes=sizes),
        student.params,
        np.zeros((objective.reserve_rows, sizes.width), np.float32) if objective.reserve_rows else None,
        jax.eval_shape(lambda: jax.random.key(config.run.seed)),
    )
    rules = sharding_rules(config.run.sharding, like.params, student.definition.architecture, mesh)
    # The user's own rules, where a pattern that matches nothing is a slip; ours are for all families.
    if rules is config.run.sharding:
        meshes.check_rules(rules, like.params, mesh)
    shardings = meshes.shardings(like, mesh, rules)
    of_teacher = frozen_shardings(teacher, mesh, config.run.sharding) if live and teacher else {}
    train_step = step.make_train_step(
        student=config.student.in_training(student).definition,
        teacher=teacher.definition if live and teacher else None,
        objective=objective,
        optimizer=optimizer,
        mesh=mesh,
        shardings=shardings,
        teacher_shardings=of_teacher,
        compute_dtype=compute_dtype,
        remat=config.run.remat,
        teacher_dropout=config.teacher.dropout,
        accumulate=config.run.accumulate,
    )
    return Layout(optimizer=optimizer, sizes=sizes, like=like, shardings=shardings), train_step


def check_width(objective: Objective, teacher: int, student: SentenceModel) -> None:
    """Raises `InputError` if the student's vectors and the targets, of `teacher` numbers, have different widths, which the
    objective cannot compare. Without targets that are vectors, `teacher` is 0."""
    width = student.definition.embedding_width
    if teacher not in (0, width) and not objective.any_width:
        raise InputError(
            f"the student's vectors have {width} numbers, the teacher's {teacher}; "
            f"set student.head to tanh or linear, which maps to the teacher's width."
        )


def with_steps(run: Run, steps: int) -> Run:
    """The run with another number of steps."""
    program, models, config = run.program, run.models, run.config
    live = bool(program.teacher_params)
    layout, train_step = make_step(
        config, run.objective, models.student, teacher=models.teacher, mesh=program.mesh, live=live, steps=steps
    )
    schedule = optim.make_schedule(config.optimizer, step_count(config, 0, timed=steps))
    program = dataclasses.replace(program, train_step=train_step, steps=steps, schedule=schedule)
    return dataclasses.replace(run, layout=layout, program=program)


def step_count(config: Config, steps_per_epoch: int, timed: int = 0) -> int:
    """Updates of the run; raises `InputError` if there are none, or if evals.average names a step beyond them.

    Args:
      timed: the number that takes `run.minutes`, or `UNTIMED`.
    """
    run = config.run
    steps = run.steps or timed or int(round(run.epochs * steps_per_epoch))
    if not 1 <= steps <= MAX_INT32:
        raise InputError(
            f"run.steps={run.steps} and run.epochs={run.epochs} give {steps:.0f} steps; set one of them to give 1 to "
            f"{MAX_INT32:,} steps."
        )
    if (last := max(config.evals.average, default=0)) > steps:
        raise InputError(f"evals.average={config.evals.average}: step {last} is beyond the run's {steps} steps.")
    return steps
