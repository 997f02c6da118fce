"""Shared parts of the command-line programs: options from signatures, one-line errors, Ctrl-C, closed pipes.

A program is one typed function, which users also call from Python. tyro makes its command line from the signature and the docstring.
"""

import functools
import inspect
import io
import logging
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro

from jaxdistill.core import InputError, did_you_mean, runtime

BATCH_SIZE = 128
"""Default batch size of programs that run a model, in sentences of 32 tokens."""
BY_NAME = tyro.conf.arg(constructor=str, help_behavior_hint=lambda default: "")
"""For an argument that may be an object in Python; the command line takes its name, and the help shows no default."""
BY_NAMES = tyro.conf.arg(constructor=tuple[str, ...])
"""For an argument that may be several objects in Python; with `tyro.conf.UseAppendAction`, the option is repeated."""
Listed = Annotated[
    str | int | Path | Sequence[str | int | Path],
    tyro.conf.arg(constructor=str, metavar="A,B,..", help_behavior_hint=lambda default: ""),
]
"""An argument that is one value, a sequence of values, or a string of values separated by commas."""


def listed(argument: str | int | Path | Sequence[str | int | Path]) -> list[str]:
    """The values of a `Listed` argument as strings, with `~` expanded and without empty ones."""
    if isinstance(argument, str):
        argument = argument.split(",")
    elif isinstance(argument, int | Path):
        argument = [argument]
    return [os.path.expanduser(text) for value in argument if (text := str(value).strip())]


def parse(
    function: Callable[..., Any], arguments: Sequence[str], *, others: str = "", **defaults: Any
) -> tuple[dict[str, Any], list[str]]:
    """Parses a command line into the arguments of `function`; `--help` prints the options and exits.
    `defaults` override the defaults of the signature. Flags that start with `others` are returned unparsed; an empty string
    matches none. Raises `InputError` for any other unknown flag."""
    as_dict = functools.wraps(function)(lambda **values: values)  # tyro reads the signature and the docstring
    module = sys.modules[function.__module__]
    parsed, unknown = tyro.cli(
        functools.partial(as_dict, **defaults),
        prog=f"python -m {module.__spec__.name if module.__spec__ else module.__name__}",  # not `__main__`
        description=module.__doc__,
        args=arguments,
        use_underscores=True,
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    refused = [argument for argument in unknown if not (others and argument.startswith(others))]
    if refused:
        flag = refused[0].split("=")[0]
        close = did_you_mean(flag, [f"--{name}" for name in parsed])
        raise InputError(f"unknown option {flag}.{close} --help lists the options.")
    return parsed, unknown


def make_callable(name: str, function: Callable[..., Any]) -> None:
    """Makes the module `name` callable, so that `jaxdistill.evaluate(...)` calls the `function` of that module.
    Such a call raises `InputError` for a value that the `Literal` annotation of its argument does not list."""
    signature = inspect.signature(function)

    def checked_call(*args: Any, **options: Any) -> Any:
        for argument, value in signature.bind(*args, **options).arguments.items():
            annotation = signature.parameters[argument].annotation
            if get_origin(annotation) is Literal and value not in get_args(annotation):
                allowed = ", ".join(map(repr, get_args(annotation)))
                raise InputError(f"{argument}={value!r:.60} is unknown; allowed: {allowed}.")
        return function(*args, **options)

    class Program(types.ModuleType):
        __call__ = staticmethod(checked_call)
        __signature__ = signature

    sys.modules[name].__class__ = Program
    sys.modules[name].__dict__.setdefault("__all__", [function.__name__])  # what `help` lists


class _Pipe(io.FileIO):
    """A file that drops output once its reader has ended. Ctrl-C also ends `tee` in `| tee log`, and the run must still save."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def _unfailing(stream: Any) -> Any:
    """Standard output or error, wrapped so that neither a closed pipe nor a character makes writing fail:
    output that nobody can read is dropped, and characters that the encoding lacks are replaced."""
    if stream is None:  # the program was started without it
        return open(os.devnull, "w")
    if type(stream) is not io.TextIOWrapper:  # the stream of a notebook or a test
        return stream
    pipe: Any = _Pipe(stream.fileno(), "w", closefd=False)
    file = pipe if stream.write_through else io.BufferedWriter(pipe)  # unbuffered under `python -u`
    return io.TextIOWrapper(file, stream.encoding, "replace", None, stream.line_buffering, stream.write_through)


def run(main: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> None:
    """Runs a program's `main`; `--version` prints versions instead. An expected error ends it with one line, see `runtime.last_line`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    streams = (sys.stdout, sys.stderr)
    # Hides an error of TensorStore: reading a damaged checkpoint may outlive its event loop.
    hook = sys.unraisablehook
    sys.unraisablehook = lambda error: None if "Event loop is closed" in str(error.exc_value) else hook(error)
    # Hides logged tracebacks: Orbax also raises the error that it logs, such as the death of another process.
    logging.getLogger("absl").addFilter(lambda record: not record.exc_info)
    sys.stdout, sys.stderr = map(_unfailing, streams)
    try:
        runtime.prepare_libtpu()
        runtime.keep_compiled()
        runtime.keep_freed()
        if "--version" in arguments:
            runtime.print_versions()
        else:
            main(arguments)
        sys.stdout.flush()  # here, so that an error of a full disk gets its one line too
    except (Exception, KeyboardInterrupt) as error:
        expected = runtime.last_line(error)
        if expected is None:
            raise
        line, status = expected
        print(line, file=sys.stderr)
        sys.exit(status)
    finally:
        sys.stdout, sys.stderr = streams
