"""Builds a run from its config: models, text, targets, objective and step, each made once and checked before step 1."""

import pathlib
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from jaxdistill import exports
from jaxdistill.checkpoints.licences import check_licence
from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.cluster import mesh as meshes
from jaxdistill.config import Config
from jaxdistill.config.ranges import LARGEST_INT32
from jaxdistill.core import InputError, Objective, platform
from jaxdistill.data import batches, sources
from jaxdistill.encoders.architecture import Pooling
from jaxdistill.evals import dev_metric
from jaxdistill.files import parts
from jaxdistill.ops.dense import dtype_of
from jaxdistill.reading import student_text
from jaxdistill.students.parts.student import widths_of
from jaxdistill.teachers.parts.prompts import check_roles
from jaxdistill.training import step
from jaxdistill.training.hooks.profile import profiled_steps
from jaxdistill.training.run import NO_DEV, Layout, Models, Program, Run, Text
from jaxdistill.training.setup import optim
from jaxdistill.training.setup.dev import held_out_rows, make_dev, read_own_sets
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
from jaxdistill.training.setup.student import fitted_student, load_labellers, load_teachers, make_student
from jaxdistill.training.setup.targets import Targets


def build(config: Config, workdir: pathlib.Path, *, progress: bool, absent: Mesh | None = None) -> Run:
    """A run that is ready to train; raises `InputError` for anything that cannot work.

    Args:
      absent: mesh of absent devices for which to compile the step; no model then runs, and the run cannot train.
    """
    mesh, groups, objective = checked_setup(config, absent)
    dtype = dtype_of(config.run.precision)
    labellers, teachers = load_labellers(config, workdir), load_teachers(config, workdir)
    objective = config.teacher.wrapped(objective, widths_of(teachers))
    teacher = teachers[0] if len(teachers) == 1 else None
    student = make_student(config, teachers, workdir, computed=absent is None)
    length = training_length(config, student, teachers, workdir)
    student = config.student.with_length(student, length)
    exports.check(sources.split_specs(config.run.export_to), student)
    check_roles(config.data, [*labellers, *teachers, student])
    own_dev = read_own_sets(config)  # before labels and targets are computed, which takes long
    store = student_text(config, objective, student, length, progress=progress)
    objective = sized_to_text(objective, store.rows)
    check_form(objective, student)
    check_views_differ(objective, config.student.in_training(student), store.columns)
    targets = Targets(
        config, objective, teachers=teachers, labellers=labellers, store=store, compute_dtype=dtype, progress=progress,
        computed=absent is None,
    )  # fmt: skip
    check_width(objective, targets, student)
    if objective.reads and teacher is not None:
        check_same_tokens(objective, student, teacher, store)
    own = meshes.own_groups(mesh, groups) if absent is None else np.arange(groups)
    reserved = objective.reserve_rows + held_out_rows(config.evals, store.rows)
    data = make_batches(config, objective, targets, mesh, groups=batches.Groups(groups, own), reserve_rows=reserved)
    student = fitted_student(config, student, targets, data.trained) if absent is None else student
    drawn = np.random.RandomState(batches.QUEUE_SEED).permutation(data.reserved)
    dev = make_dev(config, targets, own_dev, drawn[objective.reserve_rows :]) if absent is None else NO_DEV
    steps = step_count(config, data.steps_per_epoch)
    live_teacher = teacher if targets.store is not None or objective.reads else None
    made = make_step(config, objective, student, teacher, mesh=mesh, live=live_teacher is not None, steps=steps)
    return Run(
        config=config,
        workdir=workdir,
        objective=objective,
        models=Models(
            teachers=teachers, labeller_digests=[labeller.digest() for labeller in labellers], student=student
        ),
        text=Text(
            store=store,
            batches=data,
            seeds=lambda: targets.rows(drawn[: objective.reserve_rows]) if objective.reserve_rows else None,
        ),
        dev=dev,
        layout=made.layout,
        program=Program(
            mesh=mesh,
            compute_dtype=dtype,
            train_step=made.train_step,
            teacher_params=placed_teacher(live_teacher, mesh, made.teacher_shardings, dtype, absent=absent is not None),
            steps=steps,
            schedule=optim.make_schedule(config.optimizer, steps),
        ),
    )


def checked_setup(config: Config, absent: Mesh | None = None) -> tuple[Mesh, int, Objective]:
    """Devices, groups of a batch and objective; raises `InputError` for options that are wrong for any models and text.

    Args:
      absent: as in `build`.
    """
    parts.use(config.run.parts)
    profiled_steps(config.run.profile)
    check_licence(config.run.license, "run.license")
    if config.student.pooling:
        Pooling.parse(config.student.pooling)
    specs = sources.split_specs(config.data.text)
    if not specs:
        raise InputError("no text is given; set --config.data.text to at least one file, glob or data set.")
    sources.check_weights(config.data.weights, sources=len(specs))
    mesh = absent or meshes.make_mesh(model_axis=config.run.model_axis, slices=config.run.slices)
    if not isinstance(config.run.sharding, str):
        meshes.check_rules(config.run.sharding, mesh)
    groups = meshes.pack_groups(config.data.pack_groups, mesh, config.data.batch_size)
    objective = make_objective(config)
    check_accumulation(config, objective, groups, mesh)
    if config.run.steps or not config.run.epochs:  # otherwise the number of steps depends on the text
        step_count(config, steps_per_epoch=0)
    _refuse_patience(config)
    return mesh, groups, objective


def _refuse_patience(config: Config) -> None:
    evals = config.evals
    if sum(map(bool, (evals.best == dev_metric.LAST, evals.average, evals.patience or evals.patience_epochs))) > 1:
        raise InputError(
            f"evals.best={evals.best}, evals.average={evals.average} and evals.patience choose the checkpoint in different ways; give only "
            "one of best=last, average and patience (or patience_epochs), and lower run.steps to end earlier."
        )


class MadeStep(NamedTuple):
    """The training step of a run, with the layout of the state that it takes."""

    layout: Layout
    teacher_shardings: dict[str, NamedSharding]
    """Shardings of the live teacher's parameters; empty without one."""
    train_step: step.TrainStep


def make_step(
    config: Config,
    objective: Objective,
    student: SentenceModel,
    teacher: SentenceModel | None,
    mesh: Mesh,
    *,
    live: bool,
    steps: int,
) -> MadeStep:
    """The jitted training step for these models, whose parameters may be mere shapes; `live`: the step runs the teacher."""
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
        meshes.check_matches(rules, like.params, mesh)
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
    layout = Layout(optimizer=optimizer, sizes=sizes, like=like, shardings=shardings)
    return MadeStep(layout, of_teacher, train_step)


def placed_teacher(
    teacher: SentenceModel | None,
    mesh: Mesh,
    placed: Mapping[str, NamedSharding],
    dtype: DTypeLike,
    *,
    absent: bool,
) -> Mapping[str, jax.Array] | Mapping[str, jax.ShapeDtypeStruct]:
    """The live teacher's parameters on the mesh, or as shapes if its devices are absent; empty without one."""
    if teacher is None:
        return {}
    params = teacher.frozen_params(mesh)
    return meshes.frozen_shapes(params, dtype) if absent else meshes.place_frozen(params, placed, dtype)


def make_batches(
    config: Config,
    objective: Objective,
    targets: Targets,
    mesh: Mesh,
    *,
    groups: batches.Groups,
    reserve_rows: int,
) -> batches.Batches:
    """Batches of the text in the objective's views, with the teacher's tokens or stored targets."""
    live = None if targets.store is None else batches.Viewed(targets.store, objective.teacher_views)
    return batches.Batches(
        batches.Viewed(targets.text, objective.student_views),
        live or targets.arrays,
        batch_size=config.data.batch_size,
        seed=config.run.seed,
        weights=config.data.weights,
        groups=groups,
        reserve_rows=reserve_rows,
        shaping=batches.Shaping(most=config.data.pack_shapes, divided=platform(mesh) == "cpu"),
    )


def check_width(objective: Objective, targets: Targets, student: SentenceModel) -> None:
    """Raises `InputError` if student and teacher give vectors of different widths, which the objective cannot compare."""
    width = student.definition.embedding_width
    if targets.width not in (0, width) and not objective.any_width:
        raise InputError(
            f"the student's vectors have {width} numbers, the teacher's {targets.width}; "
            f"set student.head to tanh or linear, which maps to the teacher's width."
        )


def step_count(config: Config, steps_per_epoch: int) -> int:
    """Updates of the run; raises `InputError` if there are none, or if evals.average names a step beyond them."""
    run = config.run
    steps = run.steps or int(round(run.epochs * steps_per_epoch))
    if not 1 <= steps <= LARGEST_INT32:
        raise InputError(
            f"run.steps={run.steps} and run.epochs={run.epochs} give {steps:.0f} steps; set one of them to give 1 to "
            f"{LARGEST_INT32:,} steps."
        )
    if (last := max(config.evals.average, default=0)) > steps:
        raise InputError(f"evals.average={config.evals.average}: step {last} is beyond the run's {steps} steps.")
    return steps
