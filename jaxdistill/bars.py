"""Progress bars on standard error: continuous on a terminal, two lines a minute in a log."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from tqdm.auto import tqdm

Advance = Callable[[int], object]
"""Called with the number of units just finished."""


class Bar(tqdm):
    """A bar that looks at the time with every update. tqdm's skips updates and starts a thread for good that notices delays."""

    monitor_interval = 0

    def __init__(self, **options):
        super().__init__(miniters=1, **options)


def progress_bar(total: int | None, unit: str, *, shown: bool | str) -> Bar:
    """A bar that counts `unit`s.

    Args:
      total: total number of units; None if unknown.
      shown: whether to show the bar. A string is its title; a bar with a title appears only if the work takes a while, and
        disappears at the end.
    """
    seconds, options = seconds_between(), {}
    if total is not None:  # tqdm's own format switches to seconds per unit at slow rates
        options["bar_format"] = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"
    if isinstance(shown, str):
        options |= {"desc": shown, "leave": False, "delay": seconds}
    return Bar(total=total, unit=f" {unit}", disable=not shown, dynamic_ncols=True, mininterval=seconds, **options)


@contextlib.contextmanager
def counted(total: int, unit: str, *, shown: bool | str | Advance) -> Iterator[Advance]:
    """Yields the function to call with numbers of finished units: `shown` if it is one, otherwise the update of a bar."""
    if callable(shown):
        yield shown
        return
    with progress_bar(total, unit, shown=shown) as bar:
        yield bar.update


def seconds_between() -> float:
    """Least time between two updates of a bar, in seconds."""
    return 0.5 if sys.stderr.isatty() else 30.0


def duration(seconds: float) -> str:
    """A duration in words: `40 s`, `2.4 minutes`, `3.1 hours`."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"
