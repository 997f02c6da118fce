"""Shared parts of the command-line programs: options from signatures, one-line errors, Ctrl-C, closed pipes.

A program is one typed function. tyro makes its command line from the signature and the docstring, and Python calls it.
"""

import contextlib
import functools
import inspect
import io
import logging
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro

from jaxdistill.core import InputError, did_you_mean, runtime

BATCH_SIZE = 128
"""Default batch size of programs that run a model, in sentences of 32 tokens."""
BY_NAME = tyro.conf.arg(constructor=str, help_behavior_hint=lambda default: "")
"""For an argument that may be an object in Python; the command line takes its name."""
BY_NAMES = tyro.conf.arg(constructor=tuple[str, ...])
"""The same for several, with `tyro.conf.UseAppendAction`: the option is repeated."""
BY_COMMAS = tyro.conf.arg(constructor=str, metavar="A,B,..", help_behavior_hint=lambda default: "")
Listed = Annotated[str | int | Path | Sequence[str | int | Path], BY_COMMAS]
"""Values, or one text that separates them by commas."""


def listed(value: str | int | Path | Sequence[str | int | Path]) -> list[str]:
    """The values of a `Listed` argument as text, with `~` expanded; empty ones are left out."""
    value = value.split(",") if isinstance(value, str) else value
    values = [value] if isinstance(value, int | Path) else value
    return [os.path.expanduser(text) for one in values if (text := str(one).strip())]


def parse(
    function: Callable[..., Any], arguments: Sequence[str], *, others: str = "", **defaults: Any
) -> tuple[dict[str, Any], list[str]]:
    """Parses a program's command line; returns the arguments of `function`, and unknown flags that begin with `others`.

    Prints and exits for `--help` and `--version`. Raises `InputError` for other flags. `defaults` are the program's.
    """
    if "--version" in arguments:
        print(runtime.version_text())
        sys.exit()

    @functools.wraps(function)
    def options(**values: Any) -> dict[str, Any]:
        return values

    module = sys.modules[function.__module__]
    parsed, unknown = tyro.cli(
        functools.partial(options, **defaults),
        prog=f"python -m {module.__spec__.name if module.__spec__ else module.__name__}",
        description=module.__doc__,
        args=arguments,
        use_underscores=True,
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    for argument in unknown:
        if not others or not argument.startswith(others):
            flag = argument.split("=")[0]
            close = did_you_mean(flag, [f"--{name}" for name in parsed])
            raise InputError(f"unknown option {flag}.{close} --help lists the options.")
    return parsed, unknown


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
    """Makes a program's module `name` callable as `function`: `jaxdistill.evaluate(...)`. A call raises `InputError` if
    an argument is none of the values of its `Literal`."""
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


class _Outliving:
    """A text stream that drops output once its reader is gone: Ctrl-C in `| tee log` also ends `tee`, and the run must save."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BrokenPipeError:  # what is buffered goes to the null device
            with open(os.devnull, "wb") as devnull:
                os.dup2(devnull.fileno(), self._stream.fileno())


def _report(report: Callable[[Any], object], unraisable: Any) -> None:
    """Hook for exceptions that Python cannot raise: passes them to the hook `report`, except those of TensorStore's
    reads of a damaged checkpoint that end after their event loop."""
    if "Event loop is closed" not in str(unraisable.exc_value):
        report(unraisable)


def _has_no_traceback(record: logging.LogRecord) -> bool:
    """Log filter that drops records with a traceback: Orbax also raises the error, such as another process's death."""
    return not record.exc_info


def run(main: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> None:
    """Runs a program's `main`. Bad input and disk errors print one line and exit with status 2, Ctrl-C with 130,
    temporary errors with 75, as do SIGTERM and SIGHUP during a loop that saves, and a workdir in use with 73."""
    streams, handler = (sys.stdout, sys.stderr), signal.getsignal(signal.SIGINT)
    sys.unraisablehook = functools.partial(_report, sys.unraisablehook)
    logging.getLogger("absl").addFilter(_has_no_traceback)
    if runtime.is_main_thread() and handler != signal.SIG_IGN:  # ignored under nohup
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # A program that is started with a stream closed has None there.
    sys.stdout, sys.stderr = (_Outliving(stream or open(os.devnull, "w")) for stream in streams)  # noqa: SIM115 - open to the end
    try:
        runtime.prepare_libtpu()
        runtime.keep_compiled()
        runtime.keep_freed()
        main(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        problem = error if interrupted else runtime.error_of_input(error)
        if problem is None:
            raise
        print(f"interrupted{problem}" if interrupted else f"error: {problem}", file=sys.stderr)
        sys.exit(runtime.exit_status(problem))
    finally:
        sys.stdout, sys.stderr = streams
        if runtime.is_main_thread():
            signal.signal(signal.SIGINT, handler)
