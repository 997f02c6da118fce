"""Builds the objective of a run and checks that it fits the rest of the options."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxdistill.config.options import Config
from jaxdistill.core import LABELS, InputError, Objective, Sizes, refuse
from jaxdistill.core.cluster.mesh import batch_devices
from jaxdistill.core.ops.nested import Wrapped
from jaxdistill.core.paths import public_name
from jaxdistill.data import views
from jaxdistill.data.options import Data
from jaxdistill.data.text import TEXT
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.model_text import sentence_roles
from jaxdistill.models.teacher import StoredVectors

QUEUE_SHARE = 0.25
"""Largest queue, as a fraction of the text's rows: a longer queue would hold the same sentences many times."""

log = logging.getLogger(__name__)


def objective_title(config: Config) -> str:
    """The objective's name, and its variant, such as `congen, control term alone`."""
    return ", ".join(filter(None, [public_name(config.kinds["objective"]), config.objective.variant]))


def make_objective(config: Config) -> Objective:
    """The objective, wrapped for nested widths; checks that it fits the other options."""
    objective, teacher, name = config.objective, config.teacher, config.kinds["objective"]
    columns = [view for view in dict.fromkeys(objective.teacher_views) if view in dict(config.data.columns)]
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
        (teacher.transforms and len(columns) > 1,
         f"teacher.whiten and teacher.components transform each column by itself, but objective {name} compares the teacher's vectors "
         f"of {', '.join(columns)} with each other; set both to 0."),
        (teacher.of_rows and not teacher.scores_pairs and len(columns) > 1,
         f"the teacher {teacher.kind} has one vector for each row, but the teacher of objective {name} reads {', '.join(columns)}; "
         "name a teacher model."),
    ])  # fmt: skip
    _check_columns(config, objective)
    if objective.teacher_views:
        teacher.check()
    config.student.check(teacher)
    return config.student.wrapped(objective)


def sized_to_text(objective: Objective, rows: int) -> Objective:
    """The objective with a queue of at most `QUEUE_SHARE` of the text's rows."""
    if isinstance(objective, Wrapped):
        return dataclasses.replace(objective, objective=sized_to_text(objective.objective, rows))
    size, most = objective.queue_size, max(1, int(QUEUE_SHARE * rows))
    if size <= most:
        return objective
    log.info(
        "objective.queue_size: %s instead of %s: at most a quarter of the text's %s rows",
        *map("{:,}".format, (most, size, rows)),
    )
    return dataclasses.replace(cast(Any, objective), queue_size=most)


def _check_columns(config: Config, objective: Objective) -> None:
    """Raises `InputError` for an unknown view, a view of a column that the text lacks, or a column that nothing reads."""
    columns, named = dict(config.data.columns) or {TEXT: TEXT}, config.kinds["objective"]
    names = [name for name in (*objective.student_views, *objective.teacher_views) if name != LABELS]
    read = {column for name in names for column in views.parse_view(name, list(columns)).columns}
    read |= {*objective.scored} if LABELS in objective.teacher_views else set()
    lacking, unread = sorted(read - {*columns}), [name for name in columns if name not in (TEXT, *read)]
    # Every column of a text in chunks is read, and a trimmed vocabulary may be for more languages than the views.
    unread = [] if config.data.chunk_tokens or getattr(config.student, "trim", "") else unread
    stored = objective.teacher_views if isinstance(config.teacher, StoredVectors) else ()
    changing = [name for name in stored if name not in columns]
    refuse([
        (lacking, f"the text has no column {lacking and lacking[0]!r}; it has {', '.join(columns)}. Set --config.data.columns."),
        (unread,
         f"data.columns names {' and '.join(unread)}, but objective {named} reads only {', '.join(sorted(read))}; leave out the rest, or "
         f"join it to the text: --config.data.columns={'+'.join(columns.get(name, name) for name in (TEXT, *unread))}"),
        (changing,
         f"the teacher {config.teacher.kind} needs a teacher view that is a column of the text ({', '.join(columns)}); "
         f"{changing and changing[0]!r} differs at every step: choose --config=FILE.py:PRESET:teacher=live."),
    ])  # fmt: skip


def check_accumulation(config: Config, objective: Objective, groups: int, mesh: Mesh) -> None:
    """Raises `InputError` if a batch's gradient cannot be computed from its parts, or parts are not whole groups."""
    parts, most = config.run.accumulate, groups // batch_devices(mesh)
    refuse([
        (parts > 1 and objective.couples_examples and objective.reads,
         f"run.accumulate={parts}: {config.kinds['objective']} compares the examples of a batch by more than their vectors, so its "
         "gradient cannot be cached; use --config.run.remat=True for less memory."),
        (most % parts, f"run.accumulate={parts} does not divide the {most} groups of a device; raise data.pack_groups."),
    ])  # fmt: skip


def check_models(
    config: Config, objective: Objective, student: SentenceModel, teachers: Sequence[SentenceModel]
) -> None:
    """Raises `InputError` if the objective cannot compare this student with these teachers."""
    reads_pairs = any(view in views.PAIRS for view in objective.student_views)
    if reads_pairs != student.definition.reads_pairs:
        form = "a cross-encoder, which reads pairs" if student.definition.reads_pairs else "a sentence encoder"
        raise InputError(
            f"the student is {form}, but the objective's views are {', '.join(objective.student_views)}; set "
            "--config=FILE.py:PRESET:student=cross_encoder for views of pairs, or student.pooling to make a sentence encoder of a cross-encoder."
        )
    # A column that is read twice gives two views only by dropout; all other views change the sentences.
    plain = [view for view in objective.student_views if view in (dict(config.data.columns) or (TEXT,))]
    a = config.student.in_training(student).definition.architecture
    drops = not a.is_static and (a.hidden_dropout or a.attention_dropout or a.drophead)
    if not objective.teacher_views and len(set(plain)) < len(plain) and not drops:
        raise InputError(
            f"objective.views={tuple(objective.student_views)} reads a sentence twice, and without dropout both vectors are "
            "equal, so the loss has no positives; set --config.student.dropout=0.1, or make one view delete_words."
        )
    width = student.definition.embedding_width
    target_width = (
        config.teacher.width([one.definition.embedding_width for one in teachers]) if objective.teacher_views else 0
    )
    if target_width not in (0, width) and not objective.any_width:  # 0: targets are no vectors
        raise InputError(
            f"the student's vectors have {width} numbers, the teacher's {target_width}; "
            f"set student.head to tanh or linear, which maps to the teacher's width."
        )
    if objective.reads and len(teachers) == 1:
        check_same_tokens(config.data, objective, student, teachers[0])


def check_same_tokens(data: Data, objective: Objective, student: SentenceModel, teacher: SentenceModel) -> None:
    """Raises `InputError` if an objective compares token by token and the teacher cannot read the student's tokens."""
    if tuple(objective.student_views) != tuple(objective.teacher_views):
        raise InputError(
            f"to compare token by token, both must read the same views, not {objective.student_views} and "
            f"{objective.teacher_views}."
        )
    roles = {role for source in sentence_roles(data) for role in source.values()}
    prompts_differ = any(student.role_prompts[role] != teacher.role_prompts[role] for role in roles)
    if student.tokenizer.get_vocab() != teacher.tokenizer.get_vocab() or prompts_differ:
        raise InputError(
            "to compare token by token, student and teacher must share tokenizer and prompts; cut the student from the "
            "teacher, or choose an objective of whole sentences."
        )
    longest = teacher.definition.architecture.longest
    length = min(data.max_length or data.chunk_tokens, student.definition.architecture.longest)
    if length > longest:
        raise InputError(f"data.max_length={length} is more than the teacher reads; at most {longest}.")


def sizes_of(student: SentenceModel, teacher: SentenceModel | None, *, batch_size: int, precision: DTypeLike) -> Sizes:
    """Widths and depths of both encoders, batch size and precision, from which an objective makes its state."""
    trained, other = student.definition.architecture, teacher.definition.architecture if teacher else None
    return Sizes(
        batch_size=batch_size,
        width=student.definition.embedding_width,
        hidden=trained.hidden_size,
        layers=trained.layers,
        teacher_hidden=other.hidden_size if other else 0,
        teacher_layers=other.layers if other else 0,
        precision=jnp.dtype(precision),
    )
