"""Allowed ranges of numeric options, as annotations of their fields: `Annotated[float, Range(above=0)]`."""

import dataclasses
import math
from typing import Annotated

MAX_INT32 = 2**31 - 1
"""Steps and sizes are 32-bit integers on the devices."""
MAX_FLOAT32 = 3.4028235e38


@dataclasses.dataclass(frozen=True, kw_only=True)
class Range:
    """Finite numbers between bounds. The default upper bound is what 32 bits can hold."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def fault(self, number: float) -> str:
        """The end of an error message, such as `must be above 0`; empty if `number` is in range."""
        inside = (
            math.isfinite(number)
            and (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (self.below is None or number < self.below)
        )
        if not inside:
            return f"must be {self}"
        largest = MAX_INT32 if isinstance(number, int) else MAX_FLOAT32
        return f"must be at most {largest:,.0f}" if self.most is None and abs(number) > largest else ""

    def __str__(self) -> str:
        """The range in words, such as `at least 0 and below 1`."""
        bounds = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        words = [f"{word} {bound:,}" for word, bound in bounds.items() if bound is not None]
        return " and ".join(words) or "a finite number"


Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
Fraction = Annotated[float, Range(least=0, most=1)]
Rate = Annotated[float, Range(least=0, below=1)]
"""A probability or the decay rate of an average."""
Count = Annotated[int, Range(least=1)]
TwoOrThree = Annotated[tuple[str, ...], Range(least=2, most=3)]
"""The views of an anchor, its positive and, optionally, a hard negative."""
CountOrNone = Annotated[int, Range(least=0)]
"""A count, where 0 switches a feature off or defers to another option."""
