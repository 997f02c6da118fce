"""Types of options: allowed ranges as annotations of fields, `Annotated[float, Range(above=0)]`, and tuples with short forms."""

import dataclasses
import math
from typing import Annotated, Literal

MAX_INT32 = 2**31 - 1
"""Steps and sizes are 32-bit integers on the devices."""
MAX_FLOAT32 = 3.4028235e38

Columns = tuple[tuple[str, str], ...]
ShardingWord = Literal["zero", "fsdp", "tensor"]
ShardingRules = tuple[tuple[str, tuple[str, ...]], ...]
Sharding = ShardingWord | ShardingRules


@dataclasses.dataclass(frozen=True, kw_only=True)
class Range:
    """Finite numbers between bounds. The default upper bound is what 32 bits can hold."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def __contains__(self, number: float) -> bool:
        largest = MAX_INT32 if isinstance(number, int) else MAX_FLOAT32
        return (
            math.isfinite(number)
            and (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (abs(number) <= largest if self.most is None else number <= self.most)
            and (self.below is None or number < self.below)
        )

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
