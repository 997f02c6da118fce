"""What the command-line programs share: options from signatures, one-line errors, signals, closed pipes.

A program is one typed function. tyro makes its command line from the signature and the docstring, and Python calls it.
"""

import contextlib
import errno
import functools
import inspect
import io
import logging
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro

from jaxdistill import devices, memory
from jaxdistill.compile_cache import keep_compiled
from jaxdistill.core import InputError, InUseError, TemporaryError, did_you_mean
from jaxdistill.versions import version_text

BAD_INPUT = 2
INTERRUPTED = 130
AGAIN = 75
"""Exit status (EX_TEMPFAIL of sysexits.h) after which the same command continues: SIGTERM, SIGHUP, or the loss of another
process or of the network."""
IN_USE = 73
"""Exit status (EX_CANTCREAT of sysexits.h) if another process writes the same workdir; that process continues undisturbed."""
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
"""OS errors caused by the user's disk, reported as one line wherever they occur; other OS errors are bugs."""
STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that ask a program to stop. Windows has no SIGHUP."""
INTERRUPT_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGALRM") if hasattr(signal, name)]
"""Ctrl-C, and the alarm that raises it again. Windows has no SIGALRM."""
AFTER_CALLBACK_S = 0.05
"""Seconds after which an interrupt is raised again that Python has dropped."""
BATCH_SIZE = 128
"""Default batch size of programs that run a model, in sentences of 32 tokens."""


BY_NAME = tyro.conf.arg(constructor=str, help_behavior_hint=lambda default: "")
"""Of an argument that may be an object in Python: the command line takes its name."""
BY_NAMES = tyro.conf.arg(constructor=tuple[str, ...])
"""The same for several, with `tyro.conf.UseAppendAction`: the option is repeated."""
BY_COMMAS = tyro.conf.arg(constructor=str, metavar="A,B,..", help_behavior_hint=lambda default: "")
Listed = Annotated[str | int | Path | Sequence[str | int | Path], BY_COMMAS]
"""Values, or one text that separates them by commas."""


def listed(value: str | int | Path | Sequence[str | int | Path]) -> list[str]:
    """The values of a `Listed` argument, with `~` expanded."""
    values = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int | Path) else value
    return [os.path.expanduser(text) for one in values if (text := str(one).strip())]


def parse(function: Callable[..., Any], arguments: Sequence[str], **defaults: Any) -> dict[str, Any]:
    """The arguments of a program's function from its command line; prints and exits for `--help` and `--version`.

    Args:
      defaults: defaults of the program that differ from the function's.
    """
    options, unknown = parse_known(function, arguments, **defaults)
    if unknown:
        choices = [f"--{name}" for name in inspect.signature(function).parameters]
        flag = unknown[0].split("=")[0]
        raise InputError(f"unknown option {flag}.{did_you_mean(flag, choices)} --help lists the options.")
    return options


def parse_known(
    function: Callable[..., Any], arguments: Sequence[str], **defaults: Any
) -> tuple[dict[str, Any], list[str]]:
    """Like `parse`, and the arguments that the function does not have."""
    if "--version" in arguments:
        print(version_text())
        sys.exit()

    @functools.wraps(function)
    def options(**values: Any) -> dict[str, Any]:
        return values

    module = sys.modules[function.__module__]
    return tyro.cli(
        functools.partial(options, **defaults),
        prog=f"python -m {module.__spec__.name if module.__spec__ else module.__name__}",
        description=module.__dict__["__doc__"],
        args=arguments,
        use_underscores=True,
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )


@contextlib.contextmanager
def printed(log: logging.Logger) -> Iterator[None]:
    """Prints what a program's function logs."""
    handler, level = logging.StreamHandler(sys.stdout), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def make_callable(name: str, function: Callable[..., Any]) -> None:
    """Makes a program's module `name` callable as `function`: `jaxdistill.evaluate(...)`."""
    signature = inspect.signature(function)

    def call(*args: Any, **options: Any) -> Any:
        for argument, value in signature.bind(*args, **options).arguments.items():
            kind = signature.parameters[argument].annotation
            if get_origin(kind) is Literal and value not in get_args(kind):
                raise InputError(
                    f"{argument}={value!r:.60} is unknown; allowed: {', '.join(map(repr, get_args(kind)))}."
                )
        return function(*args, **options)

    class Program(types.ModuleType):
        __call__ = staticmethod(call)
        __signature__ = signature

    sys.modules[name].__class__ = Program
    sys.modules[name].__dict__.setdefault("__all__", [function.__name__])  # what `help` lists


def leave_at_once(number: int, frame: Any) -> None:
    """Signal handler that ends the process without cleanup; safe because all writes are atomic."""
    os.write(2, b"\ninterrupted\n")  # below a progress bar
    os._exit(_status(number))


def _status(number: int) -> int:
    """Exit status after a signal."""
    return INTERRUPTED if number == signal.SIGINT else AGAIN


def error_status(error: InputError) -> int:
    """Exit status after an `InputError`."""
    return AGAIN if isinstance(error, TemporaryError) else IN_USE if isinstance(error, InUseError) else BAD_INPUT


def error_of_input(error: BaseException) -> InputError | None:
    """The error as an `InputError`, if it is bad input, a fault of the user's disk, or devices that JAX cannot use; None for
    any other, which is a bug."""
    if isinstance(error, OSError) and error.errno in DISK_FAULTS:
        place = f"{error.filename}: " if error.filename else ""
        return InputError(f"{place}{error.strerror}; fix that and run the same command again.")
    return error if isinstance(error, InputError) else devices.error_of_devices(error)


class Interrupted(KeyboardInterrupt):
    """Ends a program with `status` after a signal, once it has saved."""

    def __init__(self, status: int, note: str = ""):
        super().__init__(note)
        self.status = status


def status_of(stopped: KeyboardInterrupt) -> int:
    """Exit status of an interrupted program."""
    return stopped.status if isinstance(stopped, Interrupted) else INTERRUPTED


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
        if _is_main_thread():
            for number in STOP_SIGNALS:
                if number.name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # nohup
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number, frame) -> None:
        self.status = _status(number)
        if self._notice:
            os.write(2, f"\n{self._notice}\n".encode())  # below a progress bar
        for known in self._before:
            signal.signal(known, leave_at_once)

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _one_interrupt() -> Iterator[None]:
    """Raises KeyboardInterrupt on the first Ctrl-C even if a library converts it, and again if Python drops it, as in JAX's
    garbage collector callback. Exits at once on the second."""
    before, dropped = {number: signal.getsignal(number) for number in INTERRUPT_SIGNALS}, sys.unraisablehook
    if before[signal.SIGINT] == signal.SIG_IGN or not _is_main_thread():
        yield
        return
    came = False

    def interrupt(number, frame):
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, leave_at_once)
        raise KeyboardInterrupt

    def tell(unraisable: Any) -> None:
        # TensorStore ends some reads of a damaged checkpoint late, even after the program's error.
        if "Event loop is closed" not in str(unraisable.exc_value):
            dropped(unraisable)

    def raise_again_or_tell(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            _set_alarm(AFTER_CALLBACK_S)
        else:
            tell(unraisable)

    for number in before:
        signal.signal(number, interrupt)
    sys.unraisablehook = raise_again_or_tell
    try:
        yield
    except Exception as error:
        if came:  # an interrupted import raises its own error
            raise KeyboardInterrupt from error
        raise
    finally:
        _set_alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = tell


def _set_alarm(seconds: float) -> None:
    """Raises SIGALRM after so many seconds, or never after 0; does nothing on Windows."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class _Outliving:
    """A text stream that drops output after its reader has closed it, as in `| head -1`."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._outlive(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._outlive(self._stream.flush)

    def _outlive(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BrokenPipeError:  # what is buffered goes to the null device
            with open(os.devnull, "wb") as devnull:
                os.dup2(devnull.fileno(), self._stream.fileno())


@contextlib.contextmanager
def _streams() -> Iterator[None]:
    """Sets up standard streams: closed ones and broken pipes drop output, because a program's results are files."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in before)  # noqa: SIM115 - open to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.stdout, sys.stderr = _Outliving(sys.stdout), _Outliving(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def run(main: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> None:
    """Runs a program's `main`. Bad input and disk errors print one line and exit with status 2, Ctrl-C with 130,
    SIGTERM and SIGHUP during a loop that saves with 75."""
    with _streams():
        try:
            with _one_interrupt():
                devices.prepare_libtpu()
                keep_compiled()
                memory.keep_freed()
                main(sys.argv[1:] if arguments is None else arguments)
            sys.stdout.flush()
        except Exception as error:
            problem = error_of_input(error)
            if problem is None:
                raise
            print(f"error: {problem}", file=sys.stderr)
            sys.exit(error_status(problem))
        except KeyboardInterrupt as stopped:
            print(f"interrupted{stopped}", file=sys.stderr)
            sys.exit(status_of(stopped))
