"""Reads the opcodes of a pickle before it is unpickled, and refuses what no state dict needs.

The unpickler is written in C: a memo index of 2**31 makes it allocate 16 GB, a tuple nested a million times overflows the
stack when it is hashed, and 40 tuples that each hold the one before twice take hours. None of these can be caught.
"""

import io
import pickletools
import warnings
from typing import Any

from jaxdistill.core import InputError

PICKLE_BYTES = 2 << 20
"""Maximum bytes of a pickle; a model of 400 tensors has 60 kB."""
MOST_ITEMS = 500
"""Maximum values in a tuple, counting inner tuples at every occurrence; a tensor's has about 20."""
PUSHES_ONE = frozenset(
    "EMPTY_DICT EMPTY_LIST EMPTY_TUPLE GLOBAL BININT BININT1 BININT2 LONG1 BINFLOAT NONE NEWTRUE NEWFALSE"
    " BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8".split()
)
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
POPS = {"POP": 1, "APPEND": 1, "BUILD": 1, "SETITEM": 2}
POPS_TO_MARK = frozenset({"POP_MARK", "APPENDS", "SETITEMS"})
PUTS, GETS = frozenset({"BINPUT", "LONG_BINPUT"}), frozenset({"BINGET", "LONG_BINGET"})
IGNORED = frozenset({"PROTO", "FRAME", "STOP"})


def pickle_length(content: bytes) -> int:
    """Bytes of the pickle that `content` begins with.

    Raises:
      InputError: an opcode that `torch.save` never writes, or an implausibly large memo index or tuple.
      ValueError, IndexError, KeyError: the pickle is incomplete.
    """
    file, machine = io.BytesIO(content[:PICKLE_BYTES]), _Machine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes in strings, whose opcodes are refused
        for opcode, argument, _ in pickletools.genops(file):
            machine.run(opcode.name, argument)
    return file.tell()


class _Machine:
    """The unpickler's stack, with the number of items of each value in place of the value."""

    def __init__(self):
        self.stack: list[int] = []
        self.marks: list[int] = []
        self.memo: dict[int, int] = {}
        self.steps = 0

    def run(self, name: str, argument: Any) -> None:
        self.steps += 1
        if name in PUSHES_ONE:
            self.stack.append(1)
        elif name in TUPLES:
            self._tuple(self._popped(TUPLES[name]))
        elif name == "TUPLE":
            self._tuple(self._to_mark())
        elif name in POPS:
            self._popped(POPS[name])
        elif name in POPS_TO_MARK:
            self._to_mark()
        elif name == "MARK":
            self.marks.append(len(self.stack))
        elif name in PUTS or name == "MEMOIZE":
            self._remember(argument if name in PUTS else len(self.memo))
        elif name in GETS:
            self.stack.append(self.memo[argument])
        elif name == "BINPERSID":
            self.stack.append(self._popped(1)[0])
        elif name in ("REDUCE", "STACK_GLOBAL"):
            self.stack.append(max(self._popped(2)))
        elif name in ("LIST", "DICT"):
            self._to_mark()
            self.stack.append(1)
        elif name not in IGNORED:
            raise InputError(f"the file's pickle has the opcode {name}, which torch.save does not write: refused.")

    def _popped(self, count: int) -> list[int]:
        if len(self.stack) - (self.marks[-1] if self.marks else 0) < count:
            raise IndexError("the pickle takes more from its stack than it has")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def _to_mark(self) -> list[int]:
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def _tuple(self, items: list[int]) -> None:
        total = 1 + sum(items)
        if total > MOST_ITEMS:
            raise InputError(f"the file's pickle has a tuple of more than {MOST_ITEMS} values, no tensor's: refused.")
        self.stack.append(total)

    def _remember(self, index: int) -> None:
        if index > self.steps:
            raise InputError(f"the file's pickle has the memo index {index:,} after {self.steps:,} opcodes: refused.")
        self.memo[index] = self.stack[-1]
