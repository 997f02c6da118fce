"""Reads what a compiled program costs a device from its text (XLA's HLO): memory traffic and collectives, loops included.

XLA's own `cost_analysis` counts the body of a loop once, and traffic to the memory on the chip as if it were HBM's.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxdistill.training.arithmetic import part_of

BITS = {"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "bf16": 16, "f16": 16, "f64": 64, "s64": 64, "u64": 64}
"""Of an element; 32 where a type is not listed."""
FREE = (
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "partition-id",
    "while",
    "conditional",
    "call",
)
"""Operations that move nothing themselves."""
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all", "ragged-all-to-all")
SLICES = {"dynamic-slice", "slice", "gather", "slice-start"}
"""Operations that read as much of their first operand as they return."""
CALLED = re.compile(r"(?:calls|to_apply|body|branch_computations)=\{?(%[^,}\s]+(?:, %[^,}\s]+)*)")


class Collective(NamedTuple):
    """All collectives of a kind in one step of one device."""

    count: int = 0
    size_bytes: int = 0
    """Of their results."""
    sent_bytes: float = 0.0
    """Least that a device sends, on a ring of the devices that take part."""


class Traffic(NamedTuple):
    """What a program moves, for one device."""

    memory_bytes: Mapping[str, int]
    """Read from and written to the device's memory, by part of the training step; under the empty text what has none."""
    collectives: Mapping[str, Collective]
    cycles: int
    """Sum of the compiler's own estimates of all operations, on a TPU."""

    @property
    def total_bytes(self) -> int:
        """Of all parts."""
        return sum(self.memory_bytes.values())

    @property
    def sent_bytes(self) -> float:
        """To other devices."""
        return sum(found.sent_bytes for found in self.collectives.values())


class Memory(NamedTuple):
    """Bytes on a device."""

    arguments: int
    outputs: int
    """Results that are not written in place of an argument."""
    temporaries: int

    @property
    def peak(self) -> int:
        return sum(self)


class Operation(NamedTuple):
    """One line of a program's text."""

    name: str
    shape: str
    code: str
    given: str
    """What stands in its parentheses: operands, or the value of a constant."""
    text: str
    """What follows them."""

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%[^\s,)]+", self.given)


Computations = Mapping[str, Mapping[str, Operation]]


def memory_of(compiled: Any) -> Memory:
    """The compiler's figures of a compiled program."""
    found = compiled.memory_analysis()
    new = found.output_size_in_bytes - found.alias_size_in_bytes
    return Memory(found.argument_size_in_bytes, new, found.temp_size_in_bytes)


def traffic_of(text: str) -> Traffic:
    """Reads the text of a compiled program."""
    computations, entry = parsed(text)
    collectives: dict[str, Collective] = {}
    sizes: dict[str, int] = {}
    overlapped: set[tuple[str, ...]] = set()
    cycles = 0
    for computation, times, fused in _runs(computations, entry, 1, False):
        values = computations[computation]
        for operation in values.values():
            kind = operation.code.removesuffix("-start")
            if kind in COLLECTIVES and not (fused and _same(operation) in overlapped):
                overlapped |= {_same(operation)} if fused else set()
                collectives[kind] = _plus(collectives.get(kind, Collective()), operation, values, times)
                if fused and operation.name in _in_flight(values):
                    part = _part(operation)
                    sizes[part] = sizes.get(part, 0) + times * _memory_bytes(operation, values, computations)
            if not fused:
                part = _part(operation)
                cycles += times * sum(map(int, re.findall(r'"estimated_cycles":"(\d+)"', operation.text)))
                sizes[part] = sizes.get(part, 0) + times * _memory_bytes(operation, values, computations)
    return Traffic(sizes, collectives, cycles)


def _part(operation: Operation) -> str:
    """The part of the training step to which an operation belongs."""
    return part_of("".join(re.findall(r'op_name="([^"]*)"', operation.text)))


def parsed(text: str) -> tuple[Computations, str]:
    """(computations by name, with their operations by name; the name of the entry)."""
    computations: dict[str, dict[str, Operation]] = defaultdict(dict)
    entry = name = ""
    for line in text.splitlines():
        if header := re.match(r"(ENTRY )?(%\S+) \(.*\{$", line):
            name = header[2]
            entry = name if header[1] else entry
        elif match := re.match(r"\s+(?:ROOT )?(%\S+) = ", line):
            operation = _operation(match[1], line[match.end() :])
            computations[name][operation.name] = operation
    return computations, entry


def _operation(name: str, rest: str) -> Operation:
    shape = rest[: _closing(rest) + 1] if rest.startswith("(") else rest.partition(" ")[0]
    code, _, rest = rest[len(shape) + 1 :].partition("(")
    end = _closing(f"({rest}") - 1
    return Operation(name, shape, code, rest[:end], rest[end + 1 :])


def _closing(text: str) -> int:
    """Place of the parenthesis that closes the first one."""
    depth = 0
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(text)


def _runs(computations: Computations, name: str, times: int, fused: bool) -> Iterator[tuple[str, int, bool]]:
    """(computation, how often it runs, whether inside a fusion) of a computation and all that it calls."""
    yield name, times, fused
    for operation in computations[name].values():
        repeats = _iterations(operation, computations) if operation.code == "while" else 1
        inside = fused or operation.code not in ("while", "conditional", "call")
        for called in (one for names in CALLED.findall(operation.text) for one in names.split(", ")):
            yield from _runs(computations, called, times * repeats, inside)


def _iterations(loop: Operation, computations: Computations) -> int:
    """Iterations of a loop from 0 up to a constant; 1 if its condition is another."""
    condition = computations[re.findall(r"condition=(%[^,\s]+)", loop.text)[0]]
    compared = [one for one in condition.values() if one.code == "compare" and "direction=LT" in one.text]
    stops = [condition[name] for one in compared for name in one.operands if condition[name].code == "constant"]
    return int(stops[0].given) if len(stops) == 1 else 1


def _plus(found: Collective, operation: Operation, values: Mapping[str, Operation], times: int) -> Collective:
    size = _size(operation.shape)
    if operation.code in ("all-gather-start", "collective-permute-start"):  # returns its operands too
        size -= sum(_size(values[name].shape) for name in operation.operands)
    devices = _group(operation.text)
    share = {"all-reduce": 2 * (devices - 1) / devices, "reduce-scatter": devices - 1, "collective-permute": 1}
    sent = size * share.get(operation.code.removesuffix("-start"), (devices - 1) / devices)
    return Collective(found.count + times, found.size_bytes + times * size, found.sent_bytes + times * sent)


def _same(operation: Operation) -> tuple[str, ...]:
    """What a collective that overlaps with products has in common in all the fusions in which it stands."""
    return operation.code, *re.findall(r"channel_id=\d+", operation.text), str(_sizes(operation.shape))


def _group(text: str) -> int:
    """Devices that take part in a collective together."""
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return len(listed[1].split(","))
    if named := re.search(r"replica_groups=mesh\[([^]]*)\] \{([^}]*)\}", text):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(part or sizes[axis]) for axis, part in re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", named[2]))
    numbered = re.search(r"replica_groups=\[\d+,(\d+)\]", text)
    return int(numbered[1]) if numbered else 2


def _memory_bytes(operation: Operation, values: Mapping[str, Operation], computations: Computations) -> int:
    """What an operation reads from the device's memory and writes to it; inside fusions, a collective that overlaps with one."""
    if operation.code in FREE:
        return 0
    given = [values[name] for name in operation.operands]
    if operation.code.endswith("-done"):
        return _size(operation.shape, memory=True)
    read = [_size(one.shape, memory=True) for one in given]
    written = 0 if operation.code.endswith("-start") else _size(operation.shape, memory=True)
    if operation.code in SLICES and read:
        read[0] = min(read[0], _sizes(operation.shape)[-2 if operation.code == "slice-start" else 0])
    elif operation.code == "dynamic-update-slice":
        return 2 * read[1]
    elif operation.code == "fusion":
        inside = computations[CALLED.findall(operation.text)[0]]
        in_flight = _in_flight(inside)
        read = [min(size, _read(inside, place, in_flight)) for place, size in enumerate(read)]
        written = min(written, _written(inside, in_flight))
    return sum(read) + written


def _in_flight(inside: Mapping[str, Operation]) -> set[str]:
    """The collectives of a fusion that overlap with it, and their operands.

    The fusions during which a collective is under way hand its buffers on, each to the next. They move once, not in each.
    """
    last = list(inside.values())[-1]
    found = {name for name, one in inside.items() if one.code in COLLECTIVES}
    if last.code not in ("tuple", "custom-call") or not found.intersection(last.operands):
        return set()
    for name, one in inside.items():
        users = {other.name for other in inside.values() if name in other.operands}
        if one.code == "parameter" and users <= found | {last.name}:
            found.add(name)
    return found


def _read(inside: Mapping[str, Operation], place: int, in_flight: set[str]) -> int:
    """Bytes that a fusion reads of one of its operands: what slices take of it, or all."""
    name = next(name for name, one in inside.items() if one.code == "parameter" and int(one.given) == place)
    if name in in_flight:
        return 0
    users = [one for one in inside.values() if name in one.operands]
    if all(one.code in SLICES and one.operands[0] == name for one in users):
        return sum(_size(one.shape) for one in users)
    if all(one.code == "dynamic-update-slice" and one.operands[0] == name for one in users):
        return 0
    return _size(inside[name].shape)


def _written(inside: Mapping[str, Operation], in_flight: set[str]) -> int:
    """Bytes that a fusion writes: what it updates in place, or its results."""
    last = list(inside.values())[-1]
    if in_flight:
        own = [inside[name] for name in last.operands if name not in in_flight] if last.code == "tuple" else []
        return sum(_size(one.shape, memory=True) for one in own)
    update = last.code == "dynamic-update-slice"
    return _size(inside[last.operands[1]].shape if update else last.shape)


def _size(shape: str, *, memory: bool = False) -> int:
    """Bytes of all arrays of a shape; of those in the device's main memory alone if `memory`."""
    return sum(_sizes(shape, memory=memory))


def _sizes(shape: str, *, memory: bool = False) -> list[int]:
    arrays = re.findall(r"(\w+)\[([\d,]*)\](\{[^}]*\})?", shape)
    return [
        math.prod(int(size) for size in sizes.split(",") if size) * BITS.get(kind, 32) // 8
        for kind, sizes, layout in arrays
        if not (memory and re.search(r"S\([1-9]", layout))
    ]
