"""One command for all programs: `jaxdistill train --config=...`, or `python -m jaxdistill train --config=...`."""

import importlib
import sys
from types import ModuleType

from jaxdistill.cli import BAD_INPUT, did_you_mean, run
from jaxdistill.versions import version_text

PROGRAMS = {
    "train": ("main", "trains a student and exports it"),
    "sweep": ("sweep", "repeats a training over a grid of options and seeds"),
    "evaluate": ("evaluate", "scores models on STS, retrieval, transfer and other tasks"),
    "export": ("export", "exports a kept checkpoint of a run, or a model, also for other runtimes"),
    "encode": ("encode", "writes the vectors of a text to a file"),
    "mine": ("mine", "finds hard negatives of queries"),
}
"""Maps names of programs to their modules and what they do."""


def main() -> None:
    """Runs the program that the first argument names with the other arguments."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h"):
        print("usage: jaxdistill PROGRAM [OPTIONS]; each program has --help and --version\n")
        print("\n".join(f"  {program:10}{what}" for program, (_, what) in PROGRAMS.items()))
        return
    if name == "--version":
        print(version_text())
        return
    if name not in PROGRAMS:
        known = ", ".join(PROGRAMS)
        print(
            f"error: program {name!r} is unknown.{did_you_mean(name, list(PROGRAMS))} There are {known}.",
            file=sys.stderr,
        )
        sys.exit(BAD_INPUT)
    # Imported inside `run`, which handles Ctrl-C.
    run(lambda args: _module(name).main(args), arguments)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"jaxdistill.{PROGRAMS[name][0]}")


if __name__ == "__main__":
    main()
