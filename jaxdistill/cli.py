"""Shared by all command-line programs: options with suggestions, one-line errors, exit statuses, signals, closed pipes."""

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
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxdistill import parts
from jaxdistill.core import InputError
from jaxdistill.files import is_remote
from jaxdistill.paths import cache_folder

BAD_INPUT = 2
INTERRUPTED = 130
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
"""What the user's disk can refuse anywhere in a program; other errors of files are told where they come up, or are ours."""
LOOKALIKES = {"\u2500": "-", "\u00d7": "x", "\u2026": "...", "\u2013": "-"}
"""What stands for characters of tables and bars on a terminal whose encoding lacks them."""
BATCH_SIZE = 128
"""Sentences of 32 tokens that programs which read a model compute together, if not told otherwise."""
COMPILED_BYTES = 2 << 30
"""Compiled programs that are kept; the least recently used ones go."""
HALF_WRITTEN_SECONDS = 60
"""After this time, a compiled program without its time of use is one that a killed process left."""
COMPILED_SECONDS = 0.2
"""What took longer to compile is kept."""


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """` Did you mean X?` when a known word is close or has these initials (`lr` for `learning_rate`), else nothing."""
    initials = [name for name in known if len(word) > 1 and word == "".join(part[:1] for part in name.split("_"))]
    close = initials or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""


class Parser(argparse.ArgumentParser):
    """argparse that takes no abbreviations and suggests the option that was probably meant."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

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

    def defaults(self) -> argparse.Namespace:
        """What the options are when none is given; required ones are None."""
        shown = [action for action in self._actions if action.default is not argparse.SUPPRESS]
        return argparse.Namespace(**{action.dest: action.default for action in shown})


def positive(text: str) -> int:
    """The type of an option that is a whole number above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be at least 1")
    return number


def local_path(text: str) -> str:
    """The type of an option that names a local file or folder: `~` is expanded, an address such as gs:// refused."""
    if is_remote(text):
        raise argparse.ArgumentTypeError(
            f"{text} is an address; only local files and mounted file systems are supported"
        )
    return os.path.expanduser(text)


def add_reading_options(parser: Parser) -> None:
    """`--pooling`, `--max_length` and `--batch_size`: how `--model` reads sentences; and `--parts`."""
    parser.add_argument(
        "--parts",
        default="",
        help="modules or files with your own readers, families and evaluations, separated by commas",
    )
    parser.add_argument("--pooling", default="", help="needed where a checkpoint does not say its pooling")
    parser.add_argument("--max_length", type=int, default=0, help="tokens of a sentence; 0: as the checkpoint says")
    parser.add_argument("--batch_size", type=positive, default=BATCH_SIZE, help="sentences computed together")


def leave_at_once(number: int, frame: Any) -> None:
    """A signal handler that ends the process without cleaning up, as files on disk are complete at every moment."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


class Interrupts:
    """Ctrl-C, SIGTERM and SIGHUP ask a loop to save and leave; a second signal ends the process at once.

    NOTE without it, an interrupt that comes inside JAX may be lost (in its callback of the garbage collector), or crash the
    process at its end.
    """

    def __enter__(self) -> "Interrupts":
        self.asked = False
        self._before: dict[int, Any] = {}
        if _is_main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # nohup
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number, frame) -> None:
        self.asked = True
        for known in self._before:
            signal.signal(known, leave_at_once)

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _one_interrupt() -> Iterator[None]:
    """Turns the first Ctrl-C into a KeyboardInterrupt, whatever a library makes of it, and leaves at once on the second."""
    first = signal.getsignal(signal.SIGINT)
    if first == signal.SIG_IGN or not _is_main_thread():
        yield
        return
    came = False

    def interrupt(number, frame):
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, leave_at_once)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if came:  # an import that fails halfway raises an error of its own
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, first)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _lookalikes(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that a terminal's encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(LOOKALIKES.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("lookalikes", _lookalikes)


class _Outliving:
    """A text stream that drops what is written once its reader is gone, as after `| head -1`."""

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
    """Sends the rest of a stream, buffered text included, nowhere."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)


@contextlib.contextmanager
def _streams(*, outlives_reader: bool) -> Iterator[None]:
    """Standard streams for a program: closed ones lead nowhere; with `outlives_reader`, so do those that break."""
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


def make_callable(name: str, function: Callable[..., Any]) -> None:
    """Lets the module `name`, a program, be called as `function`: `jaxdistill.evaluate(...)`."""

    class Program(types.ModuleType):
        __call__ = staticmethod(function)

    sys.modules[name].__class__ = Program


def _keep_compiled() -> None:
    """Has JAX keep compiled programs in the cache folder, where the environment does not say otherwise.

    NOTE a folder that the environment names keeps its own limit: with another one JAX fails at entries without a time.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        own = cache_folder() / "compiled"
        _drop_half_written(own)
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(COMPILED_BYTES))
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(own)
    folder = os.environ["JAX_COMPILATION_CACHE_DIR"]
    size = os.environ.get("JAX_COMPILATION_CACHE_MAX_SIZE", "-1")
    seconds = os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(COMPILED_SECONDS))
    if "jax" in sys.modules:  # which reads the environment when it is imported
        config = sys.modules["jax"].config
        config.update("jax_compilation_cache_dir", folder)
        config.update("jax_compilation_cache_max_size", int(size))
        config.update("jax_persistent_cache_min_compile_time_secs", float(seconds))


def _drop_half_written(compiled: pathlib.Path) -> None:
    """Removes programs without their time of use, which a killed process leaves and JAX fails at from then on."""
    for path in compiled.glob("*-cache"):
        with contextlib.suppress(OSError):
            is_old = time.time() - path.stat().st_mtime > HALF_WRITTEN_SECONDS
            if is_old and not path.with_name(path.name.removesuffix("-cache") + "-atime").exists():
                path.unlink()


def run(
    main: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None, *, outlives_reader: bool = True
) -> None:
    """Runs a program's `main`: bad input and a full disk end in one line and status 2, Ctrl-C in status 130.

    Args:
      outlives_reader: whether the program goes on when nobody reads what it prints, since its result is in files.
    """
    with _streams(outlives_reader=outlives_reader):
        _run(main, sys.argv[1:] if arguments is None else arguments)


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """Raises `InputError` for bytes that are no text: what is written about a run could not hold them."""
    for argument in arguments:
        if any("\udc80" <= letter <= "\udcff" for letter in argument):
            raise InputError(f"{argument!r} has bytes that are not UTF-8; rename the file, or use a UTF-8 locale.")


def _run(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> None:
    """Calls `main` and translates what it raises."""
    try:
        with _one_interrupt():
            _keep_compiled()
            _refuse_undecodable(arguments)
            main(arguments)
        sys.stdout.flush()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except BrokenPipeError:
        _to_devnull(sys.stdout)
    except OSError as error:
        if error.errno not in DISK_FAULTS:
            raise
        place = f"{error.filename}: " if error.filename else ""
        print(f"error: {place}{error.strerror}; mend that and give the same command again.", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt as stopped:
        print(f"interrupted{stopped}", file=sys.stderr)
        sys.exit(INTERRUPTED)
