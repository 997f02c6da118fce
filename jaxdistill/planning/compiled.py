"""Reads XLA's analyses of a compiled program, and counts its collectives, which they leave out, from the program's text."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

BITS = {"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "bf16": 16, "f16": 16, "f64": 64, "s64": 64, "u64": 64}
"""Bits per element, by type; 32 for types that are not listed."""
COMPUTATION = re.compile(r"^(?:ENTRY )?(%\S+) \([^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
COLLECTIVE = re.compile(
    r"= (\(.+?\)|\S+) (all-gather|all-reduce|reduce-scatter|collective-permute|(?:ragged-)?all-to-all)(-start)?\("
)
CALLED = re.compile(r"(?:calls|body|branch_computations)=\{?(%[^,}\s]+(?:, %[^,}\s]+)*)")


class Collective(NamedTuple):
    """All collectives of one kind in a step of one device."""

    count: int = 0
    size_bytes: int = 0
    """Size of their results."""
    sent_bytes: float = 0.0
    """Minimum that a device sends if the participating devices form a ring."""


class Memory(NamedTuple):
    """Bytes on a device."""

    arguments: int
    outputs: int
    """Size of results that do not reuse an argument's memory."""
    temporaries: int

    @property
    def peak(self) -> int:
        return sum(self)


def memory_of(compiled: Any) -> Memory:
    """The compiler's memory figures for a compiled program."""
    analysis = compiled.memory_analysis()
    new = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return Memory(analysis.argument_size_in_bytes, new, analysis.temp_size_in_bytes)


def accessed_bytes(compiled: Any) -> float:
    """XLA's count of bytes that a program reads and writes; includes on-chip memory, and counts each loop once."""
    return (compiled.cost_analysis() or {}).get("bytes accessed", 0.0)


def estimated_cycles(text: str) -> int:
    """Sum of the TPU compiler's cycle estimates for all operations in a compiled program's text (HLO), repeated by loops."""
    return sum(
        times * int(cycles)
        for line, times, fused in _lines(text)
        if not fused
        for cycles in re.findall(r'"estimated_cycles":"(\d+)"', line)
    )


def collectives_of(text: str) -> dict[str, Collective]:
    """Counts the collectives in a compiled program's text by kind; one in a loop counts once per iteration."""
    collectives: dict[str, Collective] = {}
    overlapped: set[tuple[str, ...]] = set()
    for line, times, fused in _lines(text):
        if not (match := COLLECTIVE.search(line)):
            continue
        shape, kind, start = match.groups()
        # A collective that overlaps with fusions appears in each of them.
        same = (kind, shape, *re.findall(r"channel_id=\d+", line))
        if fused and same in overlapped:
            continue
        overlapped |= {same} if fused else set()
        devices, size = _devices(line), _size(shape)
        if start and kind in ("all-gather", "collective-permute"):  # returns its operands too
            size = size // 2 if kind == "collective-permute" else size * devices // (devices + 1)
        share = {"all-reduce": 2 * (devices - 1) / devices, "reduce-scatter": devices - 1, "collective-permute": 1}
        sent = size * share.get(kind, (devices - 1) / devices)
        count, sizes, total = collectives.get(kind, Collective())
        collectives[kind] = Collective(count + times, sizes + times * size, total + times * sent)
    return collectives


def _lines(text: str) -> Iterator[tuple[str, int, bool]]:
    """Yields (line, number of executions, whether inside a fusion) for every line that a program runs."""
    entry = re.findall(r"^ENTRY (%\S+)", text, re.MULTILINE)[0]
    return _runs(dict(COMPUTATION.findall(text)), entry, 1, False)


def _runs(computations: Mapping[str, str], name: str, times: int, fused: bool) -> Iterator[tuple[str, int, bool]]:
    """Yields the lines of a computation and of all computations that it calls."""
    for line in computations[name].splitlines():
        yield line, times, fused
        loop = re.search(r" while\(.*condition=(%[^,\s]+)", line)
        repeats = times * (_iterations(computations[loop[1]]) if loop else 1)
        inside = fused or not (loop or re.search(r" (conditional|call)\(", line))
        for called in (one for names in CALLED.findall(line) for one in names.split(", ")):
            yield from _runs(computations, called, repeats, inside)


def _iterations(condition: str) -> int:
    """Iterations of a loop that counts from 0 to a constant; 1 for any other condition."""
    stops = re.findall(r" constant\((\d+)\)", condition)
    return int(stops[0]) if len(stops) == 1 and "direction=LT" in condition else 1


def _devices(line: str) -> int:
    """Number of devices in each group of a collective."""
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return len(listed[1].split(","))
    if named := re.search(r"replica_groups=mesh\[([^]]*)\] \{([^}]*)\}", line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(part or sizes[axis]) for axis, part in re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", named[2]))
    numbered = re.search(r"replica_groups=\[\d+,(\d+)\]", line)
    return int(numbered[1]) if numbered else 2


def _size(shape: str) -> int:
    """Bytes of all arrays in a shape."""
    arrays = re.findall(r"(\w+)\[([\d,]*)\]", shape)
    return sum(math.prod(int(n) for n in sizes.split(",") if n) * BITS.get(kind, 32) // 8 for kind, sizes in arrays)
