"""Teachers: one kind per file, found by name, each an options class that loads its models and makes its targets."""

from jaxdistill.config.kinds import TEACHERS


def __getattr__(name: str) -> type:
    """`jaxdistill.teachers.Stored`: the options class, from the file of that name in lower case."""
    return TEACHERS.class_named(name)
