"""What the papers and their released code say of every hyperparameter, one module for each paper.

A module has `TABLES`: config file to its presets, and preset to one `Stage` for each stage of its training. `tests/test_paper_tables.py` compares every
fact with the preset, and asks for a fact about every option of its objective, and of what is not as `BASE` or the package has it.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from jaxdistill import config as configs
from jaxdistill.core.plugins import KINDS


class Fact(NamedTuple):
    """The value that a preset must have."""

    value: Any
    source: str
    """Paper with its table or section, file of the released code, or `ours` where neither says anything."""
    differs: str = ""
    """For a deliberate difference: what the source has, and why this value stands here instead."""


class Stage(NamedTuple):
    """The facts of one stage of a training."""

    rows: int
    """Rows of the text that the source trains on; epochs become steps by it."""
    facts: Mapping[str, Fact]


def cited(source: str, **values: Any) -> dict[str, Fact]:
    """Facts of one source; `__` in a name stands for the dot: `optimizer__eps=1e-6`."""
    return {name.replace("__", "."): Fact(value, source) for name, value in values.items()}


def facts(table: str) -> dict[str, Fact]:
    """Facts of a table with rows `source | option=value, option=value | difference`; an indented line continues its row."""
    result = {}
    for row in re.sub(r"\n +", " ", table.strip()).split("\n"):
        source, options, *differs = re.split(r" \|(?: |$)", row)
        for option in re.split(r", (?=[a-z]+\.)", options):
            name, _, value = option.partition("=")
            try:
                plain = ast.literal_eval(value)
            except (SyntaxError, ValueError):  # a text without quotes
                plain = value
            result[name] = Fact(plain, source, *differs)
    return result


BASE = facts("""
ours: the checkpoint as it is | student.kind=cut, student.layers=, student.width=0, student.embedding=0, student.dropout=-1.0,
  student.drophead=0.0
ours: not read without a compact embedding | student.embedding_init=svd
ours: not read without a head | student.head=none, student.head_init=uniform, student.keep_head=True
ours: the teacher's own, in every step | teacher.pooling=, teacher.max_length=0, teacher.kind=live, teacher.dropout=False
ours: no code stops early, evaluates before it trains, or leaves repeated sentences out | evals.patience=0,
  evals.patience_epochs=0.0, evals.untrained=False, data.dedupe=False
ours: epochs are given | run.steps=-1
ours: one learning rate, AdamW with PyTorch's defaults | optimizer.b1=0.9, optimizer.b2=0.999, optimizer.bias_correction=True,
  optimizer.eps_before_correction=False, optimizer.decay=matrices
""")
"""Of a preset whose table says nothing else."""
WHOLE = facts("ours: no sentence of an evaluation is longer | student.max_length=512")


def presets(
    name: str, row: Callable[[str], list[Stage]], arguments: Iterable[str], default: str
) -> dict[str, list[Stage]]:
    """The stages of `name` and of `name:ARGUMENT` for each argument."""
    return {name: row(default)} | {f"{name}:{argument}": row(argument) for argument in arguments}


def observed(raw: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """All options of one stage by their dotted names, and what follows from them on a text of `rows` rows."""
    config = configs.parse_config(raw)
    views = config.objective.student_views
    optimizer, run, batch_size = config.optimizer, config.run, config.data.batch_size
    steps = run.steps if run.steps > 0 else round(run.epochs * (rows // batch_size))
    warmup = optimizer.warmup_steps or math.ceil(round(optimizer.warmup_fraction * steps, 6))
    derived = {
        "derived.sequences_per_step": batch_size * len(views),
        "derived.steps": steps,
        "derived.warmup_steps": warmup,
    }
    return absent_options() | configs.flat(config) | derived


def absent_options() -> dict[str, Any]:
    """The options that the kinds of student and teacher do not have, as they are where they are switched off."""
    off = {"student.width": 0, "student.depth": 0}
    for section in ("student", "teacher"):
        kinds = KINDS[section]
        for kind in kinds.classes:
            off = {f"{section}.{name}": value for name, value in kinds.default_options(kind).items()} | off
    return {name: json.loads(json.dumps(value)) for name, value in off.items()}
