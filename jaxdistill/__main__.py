"""One command for all programs: `jaxdistill train --config=...`, or `python -m jaxdistill train --config=...`."""

import importlib
from collections.abc import Sequence

from jaxdistill.core import InputError, did_you_mean
from jaxdistill.core.cli import run

PROGRAMS = {
    "train": "trains a student and exports it",
    "sweep": "repeats a training over a grid of options and seeds",
    "evaluate": "scores models on STS, retrieval, transfer and other tasks",
    "export": "exports a kept checkpoint of a run, or a model, also for other runtimes",
    "encode": "writes the vectors of a text to a file",
    "mine": "finds hard negatives of queries",
}
"""Maps each program to what it does. `train` is the module `jaxdistill.main`; the others are modules of their names."""


def main() -> None:
    """The command `jaxdistill`."""
    run(_run_program)


def _run_program(arguments: Sequence[str]) -> None:
    """Runs the program that the first argument names with the other arguments; without arguments, lists the programs."""
    name, *others = arguments or ["--help"]
    if name in ("--help", "-h"):
        print("usage: jaxdistill PROGRAM [OPTIONS]; each program has --help and --version\n")
        print("\n".join(f"  {program:10}{purpose}" for program, purpose in PROGRAMS.items()))
    elif name in PROGRAMS:
        importlib.import_module(f"jaxdistill.{'main' if name == 'train' else name}").main(others)
    else:
        raise InputError(f"unknown program {name!r}.{did_you_mean(name, [*PROGRAMS])} There are {', '.join(PROGRAMS)}.")


if __name__ == "__main__":
    main()
