"""Builds the untrained student: a checkpoint, the teacher or an earlier stage, cut or fresh, with its head."""

import dataclasses
import logging
import pathlib
from collections.abc import Sequence

import jax
import tokenizers

from jaxdistill.config import Config, Student
from jaxdistill.core import InputError, Params
from jaxdistill.data import targets
from jaxdistill.encoders import pruning, surgery
from jaxdistill.encoders.architecture import Pooling
from jaxdistill.encoders.folder import check_exportable
from jaxdistill.encoders.model import NO_PROMPT, SentenceModel, labels_of, load_model
from jaxdistill.training import layer_choice, vocabulary
from jaxdistill.training.fitted import check_fits, fitted_head
from jaxdistill.training.prompts import refuse_role_prompts, with_role_prompts
from jaxdistill.training.static import static_student
from jaxdistill.training.text import activation_moments
from jaxdistill.training.workdir import stage_export

NOT_STATIC = (
    "layers",
    "width",
    "depth",
    "heads",
    "intermediate",
    "embedding",
    "prompt",
    "query_prompt",
    "document_prompt",
)
"""Options that do not go with `student.static`."""

log = logging.getLogger(__name__)


def make_student(
    config: Config, teachers: Sequence[SentenceModel], workdir: pathlib.Path, *, computed: bool = True
) -> SentenceModel:
    """The untrained student; raises `InputError` for options that exclude each other or cannot be exported.

    Args:
      teachers: those whose vectors are the targets; `student.model=teacher` is the first one.
      computed: False: only the shapes matter, so no model reads the text; chosen layers that the workdir does not note, pruned
        units, a fitted head and a table are placeholders of the right shape.
    """
    teacher = teachers[0] if teachers else None
    spec = config.student
    refuse_contradictions(spec, has_teacher=teacher is not None)
    check_fits(config, teacher)
    if not computed:
        spec = dataclasses.replace(spec, prune_by="magnitude", head_init="uniform")
    source = stage_export(spec.model, workdir)
    has_pair_head = spec.head == "pair" and source != "teacher" and labels_of(source) == 1
    pooling = "" if has_pair_head else spec.pooling
    if source == "teacher" and teacher is not None:
        model = surgery.with_pooling(teacher, pooling) if pooling else teacher
    else:
        model = load_model(source, pooling=pooling)
    model = model if config.teacher.normalize else model.as_pooled()
    if spec.prompt:
        model = model.with_prompt(spec.prompt)
    if spec.head != "pair":
        model = with_role_prompts(config, model, "student")
    of_body, of_head, of_tables = jax.random.split(jax.random.key(config.run.seed ^ 0x57D), 3)
    wanted = vocabulary.asked(spec.vocabulary)
    if wanted.specs:
        model = vocabulary.trimmed(config, model, workdir)
    if spec.layers:
        model = layer_choice.cut(config, model, workdir, computed=computed)
    if source == "teacher" and not spec.width:
        model = model.with_params(model.params)  # float32, which the teacher's file need not have
    if spec.static:
        model = static_student(config, model, computed=computed)
    elif spec.width:
        tokenizer = vocabulary.new_tokenizer(config, workdir) if wanted.entries else None
        model = surgery.fresh(
            model, of_body, width=spec.width, depth=spec.depth, heads=spec.heads, intermediate=spec.intermediate,
            tokenizer_folder=tokenizer,
        )  # fmt: skip
    elif spec.heads or spec.intermediate:
        seen = activation_moments(config, model) if spec.prune_by == "activation" else None
        model = pruning.pruned(model, heads=spec.heads, intermediate=spec.intermediate, moments=seen)
    if spec.embedding:
        model = surgery.compact(model, spec.embedding, key=of_tables, init=spec.embedding_init)
    if spec.head == "pair":
        model = with_pair_head(spec, model, of_head)
    elif spec.head != "none":
        width = head_width(config, model, widths_of(teachers))
        activation = "tanh" if spec.head == "tanh" else "identity"
        fitted = fitted_head(config, model, teachers) if spec.head_init == "fitted" else None
        model = surgery.add_head(model, width, key=of_head, activation=activation, init=spec.head_init, fitted=fitted)
    check_exportable(as_evaluated(spec, model, widths_of(teachers)).definition)
    return model


def refuse_contradictions(spec: Student, *, has_teacher: bool) -> None:
    """Raises `InputError` for options of the student that exclude each other."""
    if spec.model == "teacher" and not has_teacher:
        raise InputError("student.model='teacher' needs a teacher model; without one, name the student's checkpoint.")
    if spec.layers and (spec.width or spec.depth):
        raise InputError("student.layers cuts an encoder and student.width makes a fresh one; set only one of them.")
    for name in NOT_STATIC if spec.static else ():
        if getattr(spec, name):
            raise InputError(
                f"student.static={spec.static} makes a table without layers and prompts; leave student.{name} empty"
                f" (--config.student.{name}={0 if isinstance(getattr(spec, name), int) else ''}), or student.static at 0."
            )
    if spec.static and spec.head in ("tanh", "pair"):
        raise InputError(
            f"student.head={spec.head} does not go with student.static={spec.static}; set student.head to linear or none."
        )
    if bool(spec.width) != bool(spec.depth):
        raise InputError(f"student.width={spec.width} and student.depth={spec.depth}: a fresh student needs both.")
    if vocabulary.asked(spec.vocabulary).entries and not spec.width:
        raise InputError(
            f"student.vocabulary={spec.vocabulary} is for a fresh student, which has no words yet; set student.width and "
            "student.depth, or trim the model's vocabulary with student.vocabulary=trim:TEXT."
        )
    if spec.head == "pair" and not spec.keep_head:
        raise InputError("student.keep_head=False: without its head, student.head=pair is no cross-encoder.")
    if spec.head == "pair":
        if spec.prompt not in ("", NO_PROMPT):
            raise InputError(
                f"student.prompt={spec.prompt!r} is for a sentence encoder; student.head=pair makes a cross-encoder, which has "
                "none; leave it empty."
            )
        refuse_role_prompts(spec, "student", "is for a sentence encoder; student.head=pair makes a cross-encoder")


def with_length(spec: Student, student: SentenceModel, trained: int) -> SentenceModel:
    """The student with the maximum length that it has after training, as far as it has positions.

    Args:
      trained: maximum tokens per sentence in training.
    """
    architecture = student.definition.architecture
    length = min(spec.max_length or (student.max_length if architecture.is_static else trained), architecture.longest)
    if length == student.max_length:
        return student
    tokenizer = tokenizers.Tokenizer.from_str(student.tokenizer.to_str())  # the teacher keeps its own
    tokenizer.enable_truncation(length)
    return dataclasses.replace(student, tokenizer=tokenizer, max_length=length)


def with_pair_head(spec: Student, model: SentenceModel, key: jax.Array) -> SentenceModel:
    """The model as a cross-encoder, with its own trained head or a new one."""
    origin = "its own, trained" if model.definition.reads_pairs else "a new"
    log.info("student: a cross-encoder of %s with %s head for pairs, and no prompt", model.source, origin)
    model = surgery.cross_encoder(model, key=key)
    if spec.pooling and Pooling.parse(spec.pooling) != model.definition.pooling:
        raise InputError(
            f"student.pooling={spec.pooling!r} does not go with student.head=pair: a cross-encoder of the family "
            f"{model.definition.architecture.family} reads {model.definition.pooling}; write that."
        )
    return model


def head_width(config: Config, student: SentenceModel, widths: Sequence[int]) -> int:
    """Output width of a head: the targets', or without a teacher the student's own (SimCSE's MLP)."""
    if config.teacher.components:
        return config.teacher.components
    if config.teacher.model.startswith("vectors:") and config.teacher.targets != "labels":
        return targets.open_own_vectors(config.teacher.model).shape[1]
    return sum(widths) or student.definition.embedding_width


def widths_of(teachers: Sequence[SentenceModel]) -> tuple[int, ...]:
    """The width of each teacher's vectors."""
    return tuple(teacher.definition.embedding_width for teacher in teachers)


def as_evaluated(spec: Student, student: SentenceModel, widths: Sequence[int]) -> SentenceModel:
    """The student as it is evaluated: with its head, a part of it or none, and behind the prompt it is trained with.

    Args:
      widths: of the teachers' vectors.
    """
    if spec.head_of:
        return surgery.head_part(student, numbers_of(spec.head_of, widths))
    return student if spec.keep_head or spec.head == "none" else surgery.drop_head(student)


def evaluated_params(spec: Student, student: SentenceModel, params: Params, widths: Sequence[int]) -> Params:
    """Of the student's parameters in training, those with which it is evaluated; others may be among them."""
    if spec.head_of:
        return {**params, **surgery.cut_head(student.definition, params, numbers_of(spec.head_of, widths))}
    return params


def numbers_of(teacher: int, widths: Sequence[int]) -> slice:
    """Where a teacher's numbers lie among those of all teachers."""
    first = sum(widths[: teacher - 1])
    return slice(first, first + widths[teacher - 1])


def as_exported(spec: Student, student: SentenceModel) -> SentenceModel:
    """The evaluated student as it is exported: with the checkpoint's own default prompt, unless another is asked for."""
    return student if spec.export_prompt else dataclasses.replace(student, default_prompt=student.own_prompt)


def with_dropout(student: SentenceModel, rate: float, *, drophead: float = 0.0) -> SentenceModel:
    """The student with this rate of dropout everywhere (negative: its own), and this rate of dropped heads."""
    rates = dict(hidden_dropout=rate, attention_dropout=rate) if rate >= 0 else {}
    architecture = dataclasses.replace(student.definition.architecture, drophead=drophead, **rates)
    return dataclasses.replace(student, definition=dataclasses.replace(student.definition, architecture=architecture))
