"""Checks a training before it starts: its options, its text and its models. A launcher's machines cost money, a chain's stages hours."""

import logging
import pathlib
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from jaxdistill.config import of_stage
from jaxdistill.config.options import Config
from jaxdistill.core import LABELS, MAX_INT32, InputError, Objective, plugins, refuse
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.core.files import buckets, foreign_errors, is_remote
from jaxdistill.data import views
from jaxdistill.data.text import TEXT, files_of, is_hub, split_specs
from jaxdistill.encoders.architecture import Pooling
from jaxdistill.models.checkpoints.model import SentenceModel, locate
from jaxdistill.models.model_text import sentence_roles
from jaxdistill.models.teacher import StoredVectors
from jaxdistill.training.dev import LAST
from jaxdistill.training.workdir.folder import STAGE_NAME, address_of

log = logging.getLogger(__name__)


def check_launch(stages: Sequence[Config], workdir: str, where: str) -> None:
    """Raises `InputError` for options, text and models with which the training would fail at its start; reads and loads none.

    Args:
      where: `here`, if the training will see this machine's files, or `elsewhere`, if it sees only buckets and hubs.
    """
    if is_remote(workdir):
        address_of(workdir)
    else:
        _refuse_local("--workdir", workdir, where)
    mesh = meshes.make_mesh(devices=jax.devices()[:1])  # the training's own devices are not known here
    for number, stage in enumerate(stages, start=1):
        with of_stage(number, stages):
            checked_setup(stage, mesh)
            check_inputs(stage, where)


def check_inputs(stage: Config, where: str = "here") -> None:
    """Raises `InputError` for a text or a model that does not exist; those on the hub are not looked for."""
    texts = {"data.text": stage.data.text, "data.exclude": stage.data.exclude, "evals.agreement": stage.evals.agreement}
    named = [(option, spec) for option, specs in texts.items() for spec in split_specs(specs)]
    named += [*(("teacher.model", name) for name in stage.teacher.models), ("student.model", stage.student.model)]
    for option, spec in named:
        is_model, is_packaged = option.endswith(".model"), spec.startswith("package:")
        is_local = spec.startswith((".", "/", "~")) or pathlib.Path(spec).exists()
        if is_model and (spec in ("", "teacher") or STAGE_NAME.fullmatch(spec)):
            continue
        if is_remote(spec):
            try:
                found = buckets.objects(spec)
            except InputError as error:
                log.warning("%s is not checked: %s", option, error)
                continue
            if not found:
                raise InputError(f"{option}: no object matches {spec}; check the address, and quote the glob.")
        elif is_packaged or not (is_hub(spec) or (is_model and not is_local)):
            if not is_packaged:
                _refuse_local(f"--config.{option}", spec, where)
            if is_model:
                locate(spec)
            else:
                files_of(option, [spec])


def _refuse_local(option: str, path: str, where: str) -> None:
    if where == "elsewhere":
        raise InputError(
            f"{option}={path} is on this machine, but the training runs on others; give the address of a bucket, such as "
            f"{option}=gs://BUCKET/{pathlib.Path(path).name}."
        )


def checked_setup(config: Config, absent: Mesh | None = None) -> tuple[Mesh, int, Objective]:
    """Devices (or the mesh of absent ones), groups of a batch and objective; raises `InputError` for options that are wrong for any
    models and text."""
    plugins.use(config.run.plugins)
    profiled_steps(config.run.profile)
    if config.student.pooling:
        Pooling.parse(config.student.pooling)
    specs, weights, evals = split_specs(config.data.text), config.data.weights, config.evals
    mesh = absent or meshes.make_mesh(model_axis=config.run.model_axis, slices=config.run.slices)
    groups = meshes.pack_groups(config.data.pack_groups, mesh, config.data.batch_size)
    objective = make_objective(config)
    accumulate, per_device = config.run.accumulate, groups // meshes.batch_devices(mesh)
    choices = [evals.best == LAST, bool(evals.average), bool(evals.patience or evals.patience_epochs)]
    refuse([
        (not specs, "no text is given; set --config.data.text to at least one file, glob or data set."),
        (weights and len(weights) != len(specs),
         f"weights {list(weights)} for {len(specs)} source{'s' * (len(specs) != 1)}; set --config.data.weights to one positive number "
         "per source, or leave it empty."),
        (accumulate > 1 and objective.couples_examples and objective.reads,
         f"run.accumulate={accumulate}: {config.kinds['objective']} compares the examples of a batch by more than their vectors, so its "
         "gradient cannot be cached; use --config.run.remat=True for less memory."),
        (per_device % accumulate,
         f"run.accumulate={accumulate} does not divide the {per_device} groups of a device; raise data.pack_groups."),
        (sum(choices) > 1,
         f"evals.best={evals.best}, evals.average={evals.average} and evals.patience choose the checkpoint in different ways; give only "
         "one of best=last, average and patience (or patience_epochs), and lower run.steps to end earlier."),
    ])  # fmt: skip
    if config.run.steps or not (config.run.epochs or config.run.minutes):  # otherwise text or speed determine the steps
        step_count(config, steps_per_epoch=0)
    return mesh, groups, objective


def profiled_steps(option: str) -> tuple[int, int]:
    """First and last step of `run.profile`, (0, 0) for none; raises `InputError` for anything but `FIRST:LAST`."""
    with foreign_errors(f"run.profile={option!r} is not a range of steps such as 10:20"):
        first, last = map(int, (option or "0:0").split(":"))
    return first, last


def step_count(config: Config, steps_per_epoch: int, timed: int = 0) -> int:
    """Updates of the run; `timed` is the number that takes `run.minutes`, or that is still to be measured. Raises `InputError` if
    there are none, or if evals.average names a step beyond them."""
    run, last = config.run, max(config.evals.average, default=0)
    steps = run.steps or timed or int(round(run.epochs * steps_per_epoch))
    refuse([
        (not 1 <= steps <= MAX_INT32,
         f"run.steps={run.steps} and run.epochs={run.epochs} give {steps:.0f} steps; set one of them to give 1 to {MAX_INT32:,} steps."),
        (last > steps, f"evals.average={config.evals.average}: step {last} is beyond the run's {steps} steps."),
    ])  # fmt: skip
    return steps


def make_objective(config: Config) -> Objective:
    """The objective, wrapped for nested widths; raises `InputError` if it does not fit the other options."""
    objective, teacher, name = config.objective, config.teacher, config.kinds["objective"]
    columns = dict(config.data.columns) or {TEXT: TEXT}
    named = [view for view in (*objective.student_views, *objective.teacher_views) if view != LABELS]
    read = {column for view in named for column in views.parse_view(view, list(columns)).columns}
    read |= {*objective.scored} if LABELS in objective.teacher_views else set()
    lacking, unread = sorted(read - {*columns}), [column for column in columns if column not in (TEXT, *read)]
    # Every column of a text in chunks is read, and a trimmed vocabulary may be for more languages than the views.
    unread = [] if config.data.chunk_tokens or getattr(config.student, "trim", "") else unread
    taught = [view for view in dict.fromkeys(objective.teacher_views) if view in columns]
    is_cached = teacher.is_outside or isinstance(teacher, StoredVectors)
    changing = [view for view in objective.teacher_views if is_cached and view not in columns]
    refuse([
        (teacher.scores_pairs != (tuple(objective.teacher_views) == (LABELS,)),
         f"the teacher {teacher.kind} does not go with objective {name}: scores of pairs (labels, scores, columns) are the targets of "
         "trans_encoder, cosent and listwise, and of no other: "
         f"choose --config=FILE.py:PRESET:teacher={'stored' if teacher.scores_pairs else 'labels'}."),
        (objective.teacher_views and not teacher.is_given,
         f"objective {name} needs a teacher; set --config.teacher.{teacher.given_by}."),
        (objective.reads and not teacher.is_live,
         f"objective {name} needs targets that include single tokens or layers; choose --config=FILE.py:PRESET:teacher=live and "
         "name one teacher model."),
        (teacher.transforms and len(taught) > 1,
         f"teacher.whiten and teacher.components transform each column by itself, but objective {name} compares the teacher's vectors "
         f"of {', '.join(taught)} with each other; set both to 0."),
        (teacher.of_rows and not teacher.scores_pairs and len(taught) > 1,
         f"the teacher {teacher.kind} has one vector for each row, but the teacher of objective {name} reads {', '.join(taught)}; "
         "name a teacher model."),
        (lacking, f"the text has no column {lacking and lacking[0]!r}; it has {', '.join(columns)}. Set --config.data.columns."),
        (unread,
         f"data.columns names {' and '.join(unread)}, but objective {name} reads only {', '.join(sorted(read))}; leave out the rest, or "
         f"join it to the text: --config.data.columns={'+'.join(columns.get(column, column) for column in (TEXT, *unread))}"),
        (changing,
         f"the teacher {teacher.kind} needs a teacher view that is a column of the text ({', '.join(columns)}); "
         f"{changing and changing[0]!r} differs at every step: choose --config=FILE.py:PRESET:teacher=live."),
    ])  # fmt: skip
    if objective.teacher_views:
        teacher.check()
    config.student.check(teacher)
    return config.student.wrapped(objective)


def check_models(
    config: Config, objective: Objective, student: SentenceModel, teachers: Sequence[SentenceModel]
) -> None:
    """Raises `InputError` if the objective cannot compare this student with these teachers."""
    student_views, teacher_views, definition = objective.student_views, objective.teacher_views, student.definition
    form = "a cross-encoder, which reads pairs" if definition.reads_pairs else "a sentence encoder"
    # A column that is read twice gives two views only by dropout; all other views change the sentences.
    plain = [view for view in student_views if view in (dict(config.data.columns) or (TEXT,))]
    a = config.student.in_training(student).definition.architecture
    drops = not a.is_static and (a.hidden_dropout or a.attention_dropout or a.drophead)
    width = definition.embedding_width
    target_width = config.teacher.width([one.definition.embedding_width for one in teachers]) if teacher_views else 0
    # Token by token, both read the student's tokens.
    roles = {role for source in sentence_roles(config.data) for role in source.values()}
    read_otherwise = objective.reads and any(
        student.tokenizer.get_vocab() != teacher.tokenizer.get_vocab()
        or any(student.role_prompts[role] != teacher.role_prompts[role] for role in roles)
        for teacher in teachers
    )
    refuse([
        (any(view in views.PAIRS for view in student_views) != definition.reads_pairs,
         f"the student is {form}, but the objective's views are {', '.join(student_views)}; set "
         "--config=FILE.py:PRESET:student=cross_encoder for views of pairs, or student.pooling to make a sentence encoder of a cross-encoder."),
        (not teacher_views and len({*plain}) < len(plain) and not drops,
         f"objective.views={tuple(student_views)} reads a sentence twice, and without dropout both vectors are "
         "equal, so the loss has no positives; set --config.student.dropout=0.1, or make one view delete_words."),
        (target_width not in (0, width) and not objective.any_width,  # 0: targets are no vectors
         f"the student's vectors have {width} numbers, the teacher's {target_width}; "
         "set student.head to tanh or linear, which maps to the teacher's width."),
        (objective.reads and tuple(student_views) != tuple(teacher_views),
         f"to compare token by token, both must read the same views, not {student_views} and {teacher_views}."),
        (read_otherwise,
         "to compare token by token, student and teacher must share tokenizer and prompts; cut the student from the "
         "teacher, or choose an objective of whole sentences."),
    ])  # fmt: skip
