"""The options of several teachers: which of them hold for which teacher, and what several teachers exclude."""

import dataclasses

from jaxdistill.config import Config, Teacher
from jaxdistill.core import InputError
from jaxdistill.data.sources import split_specs
from jaxdistill.training.labels import COLUMNS

OF_EACH = ("pooling", "prompt", "query_prompt", "document_prompt")
"""Options that may have a part for each teacher."""
SEPARATOR = "|"


def names_models(spec: Teacher) -> bool:
    """Whether `teacher.model` names models, and not vectors or scores of the rows of a text."""
    return not spec.model.startswith(("vectors:", COLUMNS))


def each_teacher(spec: Teacher) -> list[Teacher]:
    """The options of every teacher that `teacher.model` names; raises `InputError` for parts that are not one for each."""
    names = split_specs(spec.model)
    if len(names) < 2:
        return [spec]
    parts = {option: _parts(spec, option, len(names)) for option in OF_EACH}
    return [
        dataclasses.replace(spec, model=name, **{option: parts[option][index] for option in OF_EACH})
        for index, name in enumerate(names)
    ]


def _parts(spec: Teacher, option: str, count: int) -> list[str]:
    found = getattr(spec, option).split(SEPARATOR)
    if len(found) not in (1, count):
        raise InputError(
            f"teacher.{option}={getattr(spec, option)!r} has {len(found)} parts, separated by {SEPARATOR}; "
            f"teacher.model names {count} teachers: give one part, which holds for all, or {count}."
        )
    return found * (count // len(found))


def shares_of(spec: Teacher) -> tuple[float, ...]:
    """The weight of each teacher; their sum is 1. Raises `InputError` for weights that are not one for each."""
    count = len(split_specs(spec.model))
    weights = spec.weights or (1.0,) * count
    if len(weights) != count:
        raise InputError(
            f"teacher.weights={spec.weights} are {len(weights)} weights; teacher.model names {count} teachers: give one for each."
        )
    return tuple(weight / sum(weights) for weight in weights)


def vector_teachers(spec: Teacher) -> int:
    """Number of teachers whose vectors are the targets."""
    return 0 if spec.targets == "labels" else len(split_specs(spec.model))


def check_several(config: Config) -> None:
    """Raises `InputError` for options that do not go with the number of teachers."""
    spec, count = config.teacher, vector_teachers(config.teacher)
    if config.student.head_of and not 2 <= count >= config.student.head_of:
        raise InputError(
            f"student.head_of={config.student.head_of} is the number of one of several teachers, and teacher.model names "
            f"{count}; leave it 0."
        )
    if config.student.head_of and (config.student.head == "none" or not config.student.keep_head):
        raise InputError(
            f"student.head_of={config.student.head_of} exports a part of the head, and the export has none; set "
            "--config.student.head=linear and --config.student.keep_head=True."
        )
    if spec.weights and count < 2:
        raise InputError("teacher.weights are for the vectors of several teachers; leave it empty.")
    if count < 2:
        return
    shares_of(spec)
    if spec.targets != "store":
        raise InputError(f"teacher.model names {count} teachers, which are stored; set --config.teacher.targets=store.")
    if "vectors:" in spec.model:
        raise InputError("teacher.model: vectors:FILE.npy cannot be one of several teachers; name models alone.")
    if not spec.normalize and spec.combine == "concatenate":
        raise InputError(
            f"teacher.normalize=False: {count} teachers' vectors are joined at unit length; set --config.teacher.normalize=True."
        )
    if (spec.whiten or spec.components) and (spec.combine == "each" or config.student.head_of):
        raise InputError(
            "teacher.whiten and teacher.components mix the numbers of several teachers; set --config.teacher.combine=concatenate and "
            "--config.student.head_of=0."
        )
    if config.student.dims and (spec.combine == "each" or config.student.dims_targets == "truncated"):
        raise InputError(
            "student.dims: the first numbers of several teachers' vectors are the first teacher's; set "
            "--config.teacher.combine=concatenate and --config.student.dims_targets=projected."
        )
