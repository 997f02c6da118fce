"""Builds a run from its config: models, text, targets, objective and step, each made once and checked before step 1."""

import dataclasses
import pathlib
import re
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Integer

from jaxdistill.config.options import Config
from jaxdistill.core import MAX_INT32, InputError, Objective, platform, plugins
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.core.cluster import processes
from jaxdistill.core.ops.dense import dtype_of
from jaxdistill.data import batches
from jaxdistill.data.text import check_weights, split_specs
from jaxdistill.encoders.architecture import Pooling
from jaxdistill.models.checkpoints import onnx
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.model_text import student_text
from jaxdistill.training import optim, step
from jaxdistill.training.dev import check_dev, dev_agreement, held_out_rows, make_dev, read_dev_sets
from jaxdistill.training.lengths import training_length
from jaxdistill.training.models import Targets, load_labellers, load_teachers, make_student, read_student
from jaxdistill.training.objective import check_accumulation, check_models, make_objective, sized_to_text, sizes_of
from jaxdistill.training.run import LAST, NO_DEV, Layout, Models, Program, Run, Text
from jaxdistill.training.sharding import frozen_shardings, sharding_rules
from jaxdistill.training.workdir.folder import INPUTS, STEPS, read_note

SMALL = 100_000
"""Fewest rows of a text of which more than a tenth may be held out."""
UNTIMED = MAX_INT32
"""Number of steps of a run whose speed is still to be measured for `run.minutes`."""


def build(config: Config, workdir: pathlib.Path, *, progress: bool, absent: Mesh | None = None) -> Run:
    """A run that is ready to train; raises `InputError` for anything that cannot work.

    Args:
      absent: mesh of absent devices for which to compile the step; no model then runs, and the run cannot train.
    """
    mesh, groups, objective = checked_setup(config, absent)
    dtype, computed, teaching = dtype_of(config.run.precision), absent is None, config.teacher
    written = read_student(config, workdir) if computed else None
    labellers, teachers = load_labellers(config, workdir), load_teachers(config, workdir)
    student = written or make_student(config, teachers, workdir, draft=True)
    if config.run.export_to:
        onnx.check(student)
    check_models(config, objective, student, teachers)
    dev_sets = read_dev_sets(config, named=computed)
    length = training_length(config, student, teachers, workdir)
    student = config.student.with_length(student, length)
    store = student_text(config.data, objective, student, length, of_rows=config.teacher.of_rows, progress=progress)
    objective = sized_to_text(objective, store.rows)
    held_out = held_out_rows(config.evals, store.rows)
    on_cpus = platform(mesh) == "cpu"
    batches_with = partial(
        batches.Batches,
        batches.Viewed(store, objective.student_views),
        batch_size=config.data.batch_size,
        seed=config.run.seed,
        weights=config.data.weights,
        groups=batches.Groups(groups, meshes.local_groups(mesh, groups) if computed else np.arange(groups)),
        reserve_rows=reserved_rows(store.rows, objective.reserve_rows, held_out),
        shaping=batches.Shaping(most=config.data.pack_shapes or (4 if on_cpus else 3), divided=on_cpus),
    )
    # The steps that an earlier start measured for `run.minutes`.
    noted = read_note(workdir / INPUTS).get(STEPS, UNTIMED) if config.run.minutes else 0
    steps = step_count(config, batches_with().steps_per_epoch, timed=int(processes.gathered(noted)[0]))
    if computed:
        check_dev(config, dev_sets, teachers, objective, held_out=held_out)
    teacher = teachers[0] if len(teachers) == 1 else None
    live_teacher = teacher if objective.teacher_views and teaching.is_live else None
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
        student = targets.fitted(config, student, data.trained)
    seeds, held_out = drawn_rows(data, objective.reserve_rows, held_out)
    dev, frozen = NO_DEV, {}
    if computed:
        agreement = dev_agreement(config, targets, dev_sets, held_out)
        dev = make_dev(config, dev_sets, agreement, similarity=student.definition.similarity)
    if live_teacher:
        params = live_teacher.frozen_params(mesh)
        shardings = frozen_shardings(live_teacher, mesh, config.run.sharding)
        frozen = meshes.place_frozen(params, shardings, dtype) if computed else meshes.frozen_shapes(params, dtype)
    labels = [labeller.digest() for labeller in labellers]
    return Run(
        config=config,
        workdir=workdir,
        objective=objective,
        models=Models(teachers=teachers, labeller_digests=labels, student=student),
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
    plugins.use(config.run.plugins)
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


def profiled_steps(option: str) -> tuple[int, int]:
    """First and last step of `run.profile`, (0, 0) for none; raises `InputError` for anything but `FIRST:LAST`."""
    match = re.fullmatch(r"([1-9]\d*):(\d+)", option or "1:0")
    if not match:
        raise InputError(
            f"run.profile={option!r} is not a range of steps; give the first and the last one, such as 10:20."
        )
    return int(match[1]), int(match[2])


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
