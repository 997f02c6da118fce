"""Trains a student and exports it to DIR/export. Running the same command again resumes training.

  python -m jaxdistill.main --config=FILE[:PRESET] [--workdir=DIR] [--config.SECTION.OPTION=VALUE ...]

Some presets take an argument, such as a paper's student (l2.py:paper:minilm-l6), and all with one stage other kinds of student,
teacher and objective: l2.py:minilm-l3:student=static:teacher=stored. `--config=FILE[:PRESET] --help` describes a config and
lists its options. A config with stages has --config.stage2.SECTION.OPTION=VALUE for one of them, and names such as --config.text
and --config.seed for values that all stages share.
"""

import logging
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence
from typing import NamedTuple

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from jaxdistill.cli import run
from jaxdistill.config import Config, parse_stages, set_options
from jaxdistill.config.files import configs_help, default_workdir, find_config, load_config, one_config_help
from jaxdistill.config.write import check_option, closest_option, in_every_stage, option_names
from jaxdistill.core import InputError
from jaxdistill.versions import version_text


class Flags(NamedTuple):
    """A command line."""

    stages: list[Config]
    """The options of every stage, often of one."""
    workdir: str
    """A folder, or an address in a bucket."""
    dry_run: bool
    compile_for: str
    """A TPU slice; empty: this machine's devices."""
    check: str
    """Where the training is to run; empty: run it."""
    command: str
    """The command that repeats the run, for its model card."""

    @property
    def config(self) -> Config:
        """The options of the first stage."""
        return self.stages[0]


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.main`."""
    if "--version" in arguments:
        print(version_text())
    elif not arguments or {"--help", "-h", "--helpfull"} & {*arguments}:
        specs, _ = _split(arguments)
        listed = _defined([]).get_help(include_special_flags=False).partition(":\n")[2]
        print(one_config_help(specs[-1]) if specs else f"{__doc__}\n{listed}\n\n{configs_help()}")
    else:
        try:
            app.run(train, argv=["jaxdistill.main", *arguments], flags_parser=lambda argv: parse_flags(argv[1:]))
        except SystemExit as ended:  # with which absl ends every program
            if ended.code:
                raise


def parse_flags(arguments: Sequence[str]) -> Flags:
    """Parses a command line by absl and `config_flags`; raises `InputError`, one line, if it is invalid."""
    flags.FLAGS(["jaxdistill.main", "--verbosity=-1"])  # absl's own flags: other libraries log warnings only
    specs, others = _split(arguments)
    if not specs:
        _parsed(others, [])  # an unknown option says more
        raise InputError("--config is missing. --help shows the usage.")
    name, colon, preset = specs[-1].partition(":")
    # First, because absl shows tracebacks of a file that fails and of an option that the config does not have.
    names = option_names(load_config(specs[-1]))
    for named in filter(None, (re.match(r"--?(?:no)?config\.([^=]+)", argument) for argument in others)):
        check_option(names, named[1], flag="--config.")
    values = _parsed([f"--config={find_config(name)}{colon}{preset}", *others], names)
    if values.workdir == "":
        raise InputError("--workdir is empty; give a folder, or leave the option out for runs/CONFIG-PRESET.")
    if values.compile_for and not values.dry_run:
        raise InputError(f"--compile_for={values.compile_for} plans a run and trains nothing; add --dry_run.")
    if values.profile:
        set_options(values.config, dict.fromkeys(in_every_stage(values.config, "run.profile"), values.profile))
    shown = [f"--config={specs[-1]}", *(one for one in others if not re.match("--?workdir=", one)), "--workdir=DIR"]
    return Flags(
        stages=parse_stages(values.config),
        workdir=os.path.expanduser(values.workdir or default_workdir(specs[-1])),
        dry_run=values.dry_run,
        compile_for=values.compile_for,
        check=values.check or "",
        command=f"python -m jaxdistill.main {shlex.join(shown)}",
    )


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The values of `--config`, and the other arguments, of which `--OPTION VALUE` becomes `--OPTION=VALUE`."""
    joined: list[str] = []
    for argument in arguments:
        if joined and re.fullmatch(r"--?(config|workdir)[\w.]*", joined[-1]) and not re.match(r"-\D", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    configs = [argument for argument in joined if re.match("--?config=", argument)]
    return [one.partition("=")[2] for one in configs], [argument for argument in joined if argument not in configs]


def _defined(argv: Sequence[str]) -> flags.FlagValues:
    """The flags of a command line that is not parsed yet."""
    values = flags.FlagValues()
    text = "a shipped config, found from any folder, or your own file; without a preset, shipped ones train on text that comes with them"
    config_flags.DEFINE_config_file("config", None, text, values, sys_argv=list(argv))
    text = "a folder or gs://BUCKET/PATH, for checkpoints, metrics, log, plot and export; default: runs/CONFIG-PRESET"
    flags.DEFINE_string("workdir", None, text, values)
    text = "build everything, including stored targets and labels; print sizes, memory, steps and estimated time; stop before step 1"
    flags.DEFINE_bool("dry_run", False, text, values)
    text = "with --dry_run: compile the step for absent TPUs (v5e-16 or v5litepod-16, v5p-64, v6e-8), and print memory, FLOPs, traffic"
    text += " and the run's least minutes and chip-hours; needs the TPU compiler (pip install libtpu) but no TPU"
    flags.DEFINE_string("compile_for", "", text, values)
    text = "check the options, and that text and models exist, and stop; elsewhere: for machines that see only buckets and hubs"
    flags.DEFINE_enum("check", None, ["here", "elsewhere"], text, values)
    flags.DEFINE_string("profile", "", "FIRST:LAST: trace these steps into DIR/profile, for xprof", values)
    return values


def _parsed(arguments: Sequence[str], names: Sequence[str]) -> flags.FlagValues:
    """The values of the flags; `names` are the names of the config's options."""
    argv = ["jaxdistill.main", *arguments]
    values = _defined(argv)
    candidates = [*values, *(f"config.{name}" for name in names)]
    try:
        rest = values(argv)[1:]
    except flags.UnrecognizedFlagError as error:
        close = closest_option(error.flagname, candidates, flag="--")
        raise InputError(f"unknown option --{error.flagname}.{close} --help lists the options.") from None
    except flags.Error as error:
        raise InputError(f"{str(error).removeprefix('flag ').rstrip('.')}.") from None
    if rest:
        raise InputError(f"{rest[0]!r} is not an option; options begin with --. --help lists them.")
    return values


def train(args: Flags) -> None:
    """Does what a command line says."""
    logging.root.removeHandler(absl_logging.get_absl_handler())  # absl's own format on standard error
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("jaxdistill").setLevel(logging.INFO)
    from jaxdistill.training.check import check_launch
    from jaxdistill.training.plan import print_plan
    from jaxdistill.training.stages import run_stages

    if args.check:
        check_launch(args.stages, args.workdir, args.check)
        print("checked: the options are valid, and text and models exist; those on the hub were not looked for")
    elif args.compile_for:
        if len(args.stages) > 1:
            print(f"stage 1 of {len(args.stages)}")
        print_plan(args.config, pathlib.Path(args.workdir), args.compile_for, print)
    else:
        print(f"workdir: {args.workdir}", flush=True)
        run_stages(args.stages, args.workdir, dry_run=args.dry_run, command=args.command)


if __name__ == "__main__":
    run(main)
