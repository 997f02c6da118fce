"""Trains a student: reads the command line, builds the run, trains, exports, and prints the results."""

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

USAGE = """usage: python -m jaxdistill.main --config=FILE[:PRESET] [--workdir=DIR]
           [--dry_run [--compile_for=SLICE] | --check=WHERE] [--config.SECTION.OPTION=VALUE ...]

Trains a student and exports it to DIR/export. Running the same command again resumes training.

  --config=FILE[:PRESET]   a shipped config, found from any folder, or your own file. Without a
                           preset, shipped ones train on text that comes with the project. Some
                           presets take an argument, such as a paper's student
                           (l2.py:paper:minilm-l6), and each one other kinds of student, teacher and
                           objective: l2.py:minilm-l3:student=static:teacher=stored
  --config.SECTION.OPTION=VALUE
                           an option; with --config, --help lists them. In configs with stages
                           --config.stage2.SECTION.OPTION=VALUE, and --config.text=FILE, --config.seed=1
                           and others for all stages
  --workdir=DIR            for checkpoints, metrics, log, plot and export: a folder,
                           s3://BUCKET/PATH or gs://BUCKET/PATH; default: runs/CONFIG-PRESET
  --dry_run                build everything, including stored targets and labels; print sizes,
                           memory, steps and estimated time; stop before step 1
  --compile_for=SLICE      with --dry_run: compile the step for absent TPUs (v5e-16 or
                           v5litepod-16, v5p-64, v6e-8), and print memory, FLOPs, traffic and the
                           run's least minutes and chip-hours; needs the TPU compiler (pip install
                           libtpu) but no TPU
  --check=here|elsewhere   check the options, and that text and models exist, and stop; elsewhere: for
                           machines that see only buckets and hubs. The launchers do this first
  --profile=FIRST:LAST     trace these steps into DIR/profile, for xprof
  --version                print versions and devices, and stop
  --help                   this text; with --config, the description and the options of that config
"""


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
        named = [argument.partition("=")[2] for argument in _joined(arguments) if argument.startswith("--config=")]
        print(one_config_help(named[-1]) if named else f"{USAGE}\n{configs_help()}")
    else:
        try:
            app.run(train, argv=["jaxdistill.main", *arguments], flags_parser=lambda argv: parse_flags(argv[1:]))
        except SystemExit as ended:  # with which absl ends every program
            if ended.code:
                raise


def parse_flags(arguments: Sequence[str]) -> Flags:
    """Parses a command line by absl and `config_flags`; raises `InputError`, one line, if it is invalid."""
    flags.FLAGS(["jaxdistill.main", "--verbosity=-1"])  # absl's own flags: other libraries log warnings only
    arguments = _joined(arguments)
    specs = [argument.partition("=")[2] for argument in arguments if re.match("--?config=", argument)]
    if not specs:
        _parsed(arguments, [])  # an unknown option says more
        raise InputError("--config is missing. --help shows the usage.")
    name, colon, preset = specs[-1].partition(":")
    names = option_names(load_config(specs[-1]))
    others = [argument for argument in arguments if not re.match("--?config=", argument)]
    for option in re.findall(r"^--?(?:no)?config\.([^=\n]+)", "\n".join(others), re.MULTILINE):
        check_option(names, option, flag="--config.")
    given = _parsed([f"--config={find_config(name)}{colon}{preset}", *others], names)
    if given.workdir == "":
        raise InputError("--workdir is empty; give a folder, or leave the option out for runs/CONFIG-PRESET.")
    if given.compile_for and not given.dry_run:
        raise InputError(f"--compile_for={given.compile_for} plans a run and trains nothing; add --dry_run.")
    if given.profile:
        set_options(given.config, dict.fromkeys(in_every_stage(given.config, "run.profile"), given.profile))
    shown = [argument for argument in others if not re.match("--?workdir=", argument)]
    return Flags(
        stages=parse_stages(given.config),
        workdir=os.path.expanduser(given.workdir or default_workdir(specs[-1])),
        dry_run=given.dry_run,
        compile_for=given.compile_for,
        check=given.check or "",
        command=f"python -m jaxdistill.main {shlex.join([f'--config={specs[-1]}', *shown, '--workdir=DIR'])}",
    )


def _parsed(arguments: Sequence[str], names: Sequence[str]) -> flags.FlagValues:
    """The values of the flags; `names` are those of the config's options."""
    values, argv = flags.FlagValues(), ["jaxdistill.main", *arguments]
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    flags.DEFINE_string("workdir", None, "", flag_values=values)
    flags.DEFINE_bool("dry_run", False, "", flag_values=values)
    flags.DEFINE_string("compile_for", "", "", flag_values=values)
    flags.DEFINE_enum("check", None, ["here", "elsewhere"], "", flag_values=values)
    flags.DEFINE_string("profile", "", "", flag_values=values)
    try:
        rest = values(argv)[1:]
    except flags.UnrecognizedFlagError as error:
        known = [
            *(f"config.{name}" for name in names),
            "config",
            "workdir",
            "dry_run",
            "compile_for",
            "check",
            "profile",
        ]
        close = closest_option(error.flagname, known, flag="--")
        raise InputError(f"unknown option --{error.flagname}.{close} --help lists the options.") from None
    except flags.Error as error:
        raise InputError(f"{str(error).removeprefix('flag ').rstrip('.')}.") from None
    if rest:
        raise InputError(f"{rest[0]!r} is not an option; options begin with --. --help lists them.")
    return values


def _joined(arguments: Sequence[str]) -> list[str]:
    """Rewrites `--OPTION VALUE` to `--OPTION=VALUE`."""
    joined: list[str] = []
    for argument in arguments:
        if joined and re.fullmatch(r"--?(config|workdir)[\w.]*", joined[-1]) and not re.match(r"-\D", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def train(given: Flags) -> None:
    """Does what a command line says."""
    logging.root.removeHandler(absl_logging.get_absl_handler())  # absl's own format on standard error
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("jaxdistill").setLevel(logging.INFO)
    from jaxdistill.training.plan import print_plan
    from jaxdistill.training.setup.check import check_launch
    from jaxdistill.training.stages import run_stages

    print(f"workdir: {given.workdir}", flush=True)
    if given.check:
        check_launch(given.stages, given.workdir, given.check)
        print("checked: the options are valid, and text and models exist; those on the hub were not looked for")
    elif given.compile_for:
        if len(given.stages) > 1:
            print(f"stage 1 of {len(given.stages)}")
        print_plan(given.config, pathlib.Path(given.workdir), given.compile_for, print)
    else:
        run_stages(given.stages, given.workdir, dry_run=given.dry_run, command=given.command)


if __name__ == "__main__":
    run(main)
