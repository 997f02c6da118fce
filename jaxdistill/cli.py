"""Shared parts of the command-line programs: options with suggestions, one-line errors, signals, closed pipes."""

import argparse
import codecs
import contextlib
import difflib
import errno
import io
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, get_args

from jaxdistill import devices, memory
from jaxdistill.compile_cache import keep_compiled
from jaxdistill.core import InputError, InUseError, Precision, TemporaryError
from jaxdistill.files import buckets, is_remote, parts
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
LOOKALIKES = {"\u2500": "-", "\u00d7": "x", "\u2026": "...", "\u2013": "-"}
"""ASCII substitutes for characters of tables and bars that a terminal's encoding lacks."""
STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that ask a program to stop. Windows has no SIGHUP."""
INTERRUPT_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGALRM") if hasattr(signal, name)]
"""Ctrl-C, and the alarm that raises it again. Windows has no SIGALRM."""
AFTER_CALLBACK_S = 0.05
"""Seconds after which an interrupt is raised again that Python has dropped."""
BATCH_SIZE = 128
"""Default batch size of programs that run a model, in sentences of 32 tokens."""


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """` Did you mean X?` if a known word is similar or has these initials (`lr` for `learning_rate`); otherwise empty."""
    initials = [name for name in known if len(word) > 1 and word == "".join(part[:1] for part in name.split("_"))]
    close = initials or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""


class _PrintVersion(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        print(version_text())
        parser.exit()


class Parser(argparse.ArgumentParser):
    """An argument parser without abbreviations that suggests the closest option for an unknown one, with `--version`."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self.add_argument(
            "--version",
            action=_PrintVersion,
            nargs=0,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            help="print versions and devices, and stop",
        )

    def parse_args(self, args=None, namespace=None):
        options = [option for action in self._actions for option in action.option_strings]
        for argument in sys.argv[1:] if args is None else args:
            flag = argument.split("=")[0]
            if flag.startswith("--") and flag not in options:
                raise InputError(f"unknown option {flag}.{did_you_mean(flag, options)} --help lists the options.")
        given = super().parse_args(args, namespace)
        parts.use(getattr(given, "parts", ""))
        return given

    def error(self, message):
        raise InputError(f"{message}. --help lists the options.")

    def defaults(self) -> dict[str, Any]:
        """Maps names of all options to their defaults; None for required ones."""
        return {action.dest: action.default for action in self._actions if action.default is not argparse.SUPPRESS}

    def parse_call(
        self, options: Mapping[str, Any], *, joined: Sequence[str], repeated: Sequence[str]
    ) -> argparse.Namespace:
        """Parses options given in Python, with the checks of the command line. None means not given.

        Args:
          joined: options that accept lists, whose values are joined by commas.
          repeated: options that accept lists, with a flag for each value.
        """
        arguments, defaults = [], self.defaults()
        for name, value in options.items():
            if isinstance(defaults[name], bool):
                if not isinstance(value, bool):
                    raise InputError(f"{name}={value!r:.60} must be True or False.")
                arguments += [f"--{name}"] * value
            elif value != defaults[name] and ((value is not None and value != "") or defaults[name]):
                texts = _texts_of(name, value, may_be_list=name in (*joined, *repeated))
                arguments += [f"--{name}={text}" for text in ([",".join(texts)] if name in joined else texts)]
        return self.parse_args(arguments)


def _texts_of(name: str, value: Any, *, may_be_list: bool) -> list[str]:
    """Converts the values of an option given in Python to strings."""
    is_list = isinstance(value, Iterable) and not isinstance(value, str)
    texts = ["" if one is None else one for one in (value if is_list else [value])]
    wrong = [one for one in texts if not isinstance(one, str | pathlib.PurePath | Real) or isinstance(one, bool)]
    if wrong or (is_list and not may_be_list):
        single = "a single value" if is_list else "a text, a path or a number"
        kind = "text, a path, or a list of these" if may_be_list else single
        raise InputError(f"{name} must be {kind}; got {value!r:.60}.")
    return list(map(str, texts))


def positive(text: str) -> int:
    """Type of an option that must be a positive integer."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be at least 1")
    return number


def local_path(text: str) -> str:
    """Type of an option that names a local file or folder. Expands `~`; refuses addresses such as gs://."""
    if is_remote(text):
        raise argparse.ArgumentTypeError(
            f"{text} is an address; this option takes only local paths and mounted file systems"
        )
    return os.path.expanduser(text)


def any_path(text: str) -> str:
    """Type of an option that names a file or folder, also in a bucket. Expands `~`; refuses addresses with secrets."""
    if is_remote(text):
        try:
            buckets.checked_address(text)
        except InputError as error:  # argparse would repeat the text
            raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None
    return os.path.expanduser(text)


def add_reading_options(parser: Parser, *, precision: Precision = "auto") -> None:
    """Adds `--pooling`, `--max_length`, `--batch_size` and `--precision`, which set how `--model` reads sentences, and
    `--parts`."""
    add = parser.add_argument
    add("--parts", default="", help="modules or files with your own readers, families and evaluations, with commas")
    add("--pooling", default="", help="required if the checkpoint does not state its pooling")
    add("--max_length", type=int, default=0, help="maximum tokens per sentence; 0: the checkpoint's")
    add("--batch_size", type=positive, default=BATCH_SIZE, help="sentences per batch")
    products = f"precision of matrix products; auto: bfloat16 where the hardware supports it; default: {precision}"
    add("--precision", choices=get_args(Precision), default=precision, help=products)


def reading_options(given: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_reading_options` as arguments of `inference.load`."""
    return {name: getattr(given, name) for name in ("pooling", "max_length", "batch_size", "precision")}


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

    def raise_again_or_tell(told: Any) -> None:
        if issubclass(told.exc_type, KeyboardInterrupt):
            _set_alarm(AFTER_CALLBACK_S)
        # TensorStore ends some reads of a damaged checkpoint late.
        elif "Event loop is closed" not in str(told.exc_value):
            dropped(told)

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
        sys.unraisablehook = dropped


def _set_alarm(seconds: float) -> None:
    """Raises SIGALRM after so many seconds, or never after 0; does nothing on Windows."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _lookalikes(error: UnicodeError) -> tuple[str, int]:
    """Substitutes characters that a terminal's encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(LOOKALIKES.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("lookalikes", _lookalikes)


class _Outliving:
    """A text stream that drops output after its reader has closed it, as in `| head -1`."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            _to_devnull(self._stream)


def _to_devnull(stream: Any) -> None:
    """Redirects a stream, buffered text included, to the null device."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)


@contextlib.contextmanager
def _streams(*, outlives_reader: bool) -> Iterator[None]:
    """Sets up standard streams: closed ones drop output; with `outlives_reader`, so do broken pipes."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in before)  # noqa: SIM115 - open to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="lookalikes")
    if outlives_reader:
        sys.stdout, sys.stderr = _Outliving(sys.stdout), _Outliving(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def run(
    main: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None, *, outlives_reader: bool = True
) -> None:
    """Runs a program's `main`. Bad input and disk errors print one line and exit with status 2, Ctrl-C with 130,
    SIGTERM and SIGHUP during a loop that saves with 75.

    Args:
      outlives_reader: whether the program continues after its output pipe closes, because its results are files.
    """
    with _streams(outlives_reader=outlives_reader):
        _run(main, sys.argv[1:] if arguments is None else arguments)


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """Raises `InputError` for arguments that are not UTF-8, which the run's JSON files could not hold."""
    for argument in arguments:
        if any("\udc80" <= letter <= "\udcff" for letter in argument):
            raise InputError(f"{argument!r} is not UTF-8; rename the file, or use a UTF-8 locale.")


def _run(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> None:
    """Calls `main` and translates its exceptions."""
    try:
        with _one_interrupt():
            devices.prepare_libtpu()
            keep_compiled()
            memory.keep_freed()
            _refuse_undecodable(arguments)
            main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _to_devnull(sys.stdout)
    except Exception as error:
        known = error_of_input(error)
        if known is None:
            raise
        print(f"error: {known}", file=sys.stderr)
        sys.exit(error_status(known))
    except KeyboardInterrupt as stopped:
        print(f"interrupted{stopped}", file=sys.stderr)
        sys.exit(status_of(stopped))
