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


def progress_bar(total: int | None, unit: str, *, shown: bool | str) -> Bar:
    """A bar that counts `unit`s up to `total`, if it is known.

    `shown` may be a title: such a bar appears only if the work takes a while, and disappears at the end.
    """
    seconds = seconds_between()
    titled = {"desc": shown, "leave": False, "delay": seconds} if isinstance(shown, str) else {}
    options = {"unit": f" {unit}", "disable": not shown, "dynamic_ncols": True, "mininterval": seconds, "miniters": 1}
    return Bar(total=total, **options, **titled)


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
