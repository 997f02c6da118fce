"""Counts the floating-point operations of a traced program's matrix products."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr, Literal

PARTS = ("student", "teacher", "objective", "optimizer")
"""Scopes of the training step (`jax.named_scope`)."""
PASSES = {jax.lax.Precision.HIGHEST: 6, jax.lax.Precision.HIGH: 3}
"""Number of bfloat16 passes in which a TPU multiplies float32 numbers, by precision."""


class Products(NamedTuple):
    """Operations of matrix products; a multiplication and an addition count as two."""

    flops: float = 0.0
    bfloat16_flops: float = 0.0
    """The same in bfloat16 operations of a TPU, which multiplies float32 numbers in several passes."""

    def plus(self, other: "Products", times: float = 1) -> "Products":
        return Products(self.flops + times * other.flops, self.bfloat16_flops + times * other.bfloat16_flops)


def part_of(scopes: str) -> str:
    """The part of the training step in an operation's named scopes; empty if there is none."""
    match = re.search(rf"\b({'|'.join(PARTS)})\b", scopes)
    return match[1] if match else ""


def products_by_part(jaxpr: Jaxpr, part: str = "") -> dict[str, Products]:
    """Operations of each part of a program, summed over all devices; those in a loop count once per iteration.

    A `while` loop counts as one iteration unless it is a `fori_loop` with constant bounds.
    """
    total: dict[str, Products] = {}
    for equation in jaxpr.eqns:
        here = part or part_of(str(equation.source_info.name_stack))
        branches = [products_by_part(inner, here) for inner in _inside(equation.params)]
        if equation.primitive.name == "dot_general":
            branches = [{here: _product(equation)}]
        elif equation.primitive.name == "cond":
            branches = [max(branches, key=lambda branch: sum(products.flops for products in branch.values()))]
        for products in branches:
            _add(total, products, _repeats(equation))
    return total


def _add(total: dict[str, Products], more: Mapping[str, Products], times: float) -> None:
    for part, products in more.items():
        total[part] = total.get(part, Products()).plus(products, times)


def _inside(params: Mapping[str, Any]) -> list[Jaxpr]:
    """The jaxprs that an operation calls, such as the body of a loop."""
    values = [one for value in params.values() for one in (value if isinstance(value, tuple) else (value,))]
    # Before JAX 0.12, a jaxpr with and one without its constants are two classes.
    return [getattr(one, "jaxpr", one) for one in values if hasattr(one, "eqns")]


def _product(equation: Any) -> Products:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, right = (operand.aval for operand in equation.invars)
    flops = 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(left.shape[axis] for axis in contracted)
    precision = equation.params["precision"]
    passes = max(PASSES.get(one, 1) for one in (precision if isinstance(precision, tuple) else (precision,)))
    return Products(flops, flops * (passes if left.dtype.itemsize == right.dtype.itemsize == 4 else 1))


def _repeats(equation: Any) -> int:
    """How often the program that an operation calls runs, over all devices."""
    if equation.primitive.name == "scan":
        return equation.params["length"]
    if equation.primitive.name == "pallas_call":
        return math.prod(equation.params["grid_mapping"].grid)
    if equation.primitive.name == "shard_map":
        mesh = equation.params["mesh"]
        return math.prod(mesh.shape[axis] for axis in equation.params["newly_manual_axes"])
    return _iterations(equation) if equation.primitive.name == "while" else 1


def _iterations(loop: Any) -> int:
    """Iterations of a `fori_loop`, whose condition is `index < stop`; 1 if the program does not state its bounds."""
    condition = loop.params["cond_jaxpr"].jaxpr
    of_condition, of_body = loop.params["cond_nconsts"], loop.params["body_nconsts"]
    given = [*loop.invars[:of_condition], *loop.invars[of_condition + of_body :]]
    values = {id(name): one.val for name, one in zip(condition.invars, given, strict=True) if isinstance(one, Literal)}
    if [one.primitive.name for one in condition.eqns] != ["lt"]:
        return 1
    start, stop = (one.val if isinstance(one, Literal) else values.get(id(one)) for one in condition.eqns[0].invars)
    return 1 if start is None or stop is None else max(int(stop) - int(start), 0)
