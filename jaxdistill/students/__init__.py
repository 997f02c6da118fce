"""Students: one kind per file, found by name, each an options class that makes the untrained model."""

from jaxdistill.config.kinds import STUDENTS


def __getattr__(name: str) -> type:
    """`jaxdistill.students.CrossEncoder`: the options class of that name, whose file is `cross_encoder`."""
    return STUDENTS.class_named(name)
