"""Exit statuses of programs, and the signals that ask them to save and stop."""

import errno
import os
import signal
import threading
from typing import Any

from jaxdistill.core import InputError, InUseError, TemporaryError, error_line

BAD_INPUT = 2
INTERRUPTED = 130
AGAIN = 75
"""Exit status (EX_TEMPFAIL of sysexits.h) after which the same command continues: SIGTERM, SIGHUP, or the loss of another
process or of the network."""
IN_USE = 73
"""Exit status (EX_CANTCREAT of sysexits.h) if another process writes the same workdir; that process continues undisturbed."""
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
"""OS errors caused by the user's disk, reported as one line wherever they occur; other OS errors are bugs."""


class Interrupted(KeyboardInterrupt):
    """Ends a program with `status` after a signal, once it has saved."""

    def __init__(self, status: int, note: str = ""):
        super().__init__(note)
        self.status = status


class Interrupts:
    """Makes Ctrl-C, SIGTERM and SIGHUP set `status`, so that a loop can save and exit; a second signal exits at once.

    `notice` says on standard error, after the first signal, what the program still finishes.

    NOTE: a KeyboardInterrupt inside JAX can be lost in its garbage collector callback, or crash the process at exit.
    """

    def __init__(self, notice: str = ""):
        self._notice = notice

    def __enter__(self) -> "Interrupts":
        self.status = 0
        """Exit status after the signal; 0 before one."""
        self._before: dict[int, Any] = {}
        if is_main_thread():
            for number in (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")):
                if number is None or (number.name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN):
                    continue  # Windows, or nohup
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: Any) -> None:
        self.status = _status(number)
        if self._notice:
            os.write(2, f"\n{self._notice}\n".encode())  # below a progress bar
        for handled in self._before:
            signal.signal(handled, leave_at_once)

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def leave_at_once(number: int, frame: Any) -> None:
    """Signal handler that ends the process without cleanup; safe because all writes are atomic."""
    os.write(2, b"\ninterrupted\n")  # below a progress bar
    os._exit(_status(number))


def _status(number: int) -> int:
    """Exit status after a signal."""
    return INTERRUPTED if number == signal.SIGINT else AGAIN


def is_main_thread() -> bool:
    """Whether this thread may set signal handlers."""
    return threading.current_thread() is threading.main_thread()


def exit_status(error: BaseException) -> int:
    """Exit status after an `InputError` or a `KeyboardInterrupt`."""
    if isinstance(error, KeyboardInterrupt):
        return error.status if isinstance(error, Interrupted) else INTERRUPTED
    return AGAIN if isinstance(error, TemporaryError) else IN_USE if isinstance(error, InUseError) else BAD_INPUT


def error_of_input(error: BaseException) -> InputError | None:
    """The error as an `InputError`, if it is bad input, a fault of the user's disk, or devices that JAX cannot use; None for
    any other, which is a bug."""
    if isinstance(error, OSError) and error.errno in DISK_FAULTS:
        where = f"{error.filename}: " if error.filename else ""
        return InputError(f"{where}{error.strerror}; fix that and run the same command again.")
    if isinstance(error, RuntimeError) and str(error).startswith("Unable to initialize backend"):
        return InputError(f"{error_line(error):.300}; set JAX_PLATFORMS to a platform that is free, such as cpu.")
    return error if isinstance(error, InputError) else None
