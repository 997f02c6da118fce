"""Trains a student: parses the command line, builds the run, trains, exports, and prints the results."""

import logging
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxdistill import config as configs
from jaxdistill.cli import did_you_mean, run
from jaxdistill.core import InputError
from jaxdistill.options.config_file import default_workdir, read_config_file
from jaxdistill.options.overrides import WORDS, option_names, with_options
from jaxdistill.versions import version_text

FLAGS = ("--config", "--workdir", "--dry_run", "--compile_for", "--check", "--profile", "--help")
PLACES = ("here", "elsewhere")
"""Values of `--check`: where the training is to run."""
USAGE = """usage: python -m jaxdistill.main --config=FILE[:PRESET] [--workdir=DIR]
           [--dry_run [--compile_for=SLICE] | --check=WHERE] [--config.SECTION.OPTION=VALUE ...]

Trains a student and exports it to DIR/export. Running the same command again resumes training.

  --config=FILE[:PRESET]   a shipped config, found from any folder, or your own file. Without a
                           preset, shipped ones train on text that comes with the project. Some
                           presets take an argument, such as a paper's student:
                           l2.py:paper:minilm-l6
  --workdir=DIR            for checkpoints, metrics, log, plot and export: a folder,
                           s3://BUCKET/PATH or gs://BUCKET/PATH; default: runs/CONFIG-PRESET
  --dry_run                build everything, including stored targets and labels; print sizes,
                           memory, steps and estimated time; stop before step 1
  --compile_for=SLICE      with --dry_run: compile the step for absent TPUs (v5e-16 or
                           v5litepod-16, v5p-64, v6e-8), and print memory, FLOPs, traffic and the
                           run's least minutes and chip-hours; needs the TPU compiler (pip install
                           libtpu) but no TPU
  --check=here|elsewhere   check options, text and models without running them, and stop; here:
                           loads models that are on this machine; elsewhere: for machines that
                           see only buckets and hubs, not local files. The launchers do this first
  --config.all.SECTION.OPTION=VALUE, --config.stage2.SECTION.OPTION=VALUE
                           for configs with stages: every stage that has the option, or one
  --profile=FIRST:LAST     trace these steps into DIR/profile, for xprof
  --version                print versions and devices, and stop
  --help                   this text; with --config, the description of that config
"""


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.main`."""
    if not arguments or any(argument in ("--help", "-h", "--helpfull") for argument in arguments):
        print(help_text(arguments))
        return
    if "--version" in arguments:
        print(version_text())
        return
    given = parse_flags(arguments)
    stages = configs.parse_stages(given.stages)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("jaxdistill").setLevel(logging.INFO)
    from jaxdistill.planning.plan import print_plan
    from jaxdistill.training.setup.stage_checks import check_launch
    from jaxdistill.training.setup.unread import warn_of_unread
    from jaxdistill.training.stages import run_stages

    if not any(re.match("--?workdir", argument) for argument in arguments):
        print(f"workdir: {given.workdir}", flush=True)
    warn_of_unread(stages, _overridden(arguments))
    if given.check:
        check_launch(stages, given.workdir, given.check)
        print("checked: the options are valid, and text and models exist; those on the hub were not looked for")
    elif given.compile_for:
        if len(stages) > 1:
            print(f"stage 1 of {len(stages)}")
        print_plan(stages[0], pathlib.Path(given.workdir), given.compile_for, print)
    else:
        run_stages(stages, given.workdir, dry_run=given.dry_run, command=command_line(arguments))


def help_text(arguments: Sequence[str]) -> str:
    """The docstring of the config that the command line names; without a config, the usage, all presets and all options."""
    from jaxdistill.options.option_help import all_configs, one_config

    named = [argument.partition("=")[2] for argument in _joined(arguments) if argument.startswith("--config=")]
    return one_config(named[0]) if named else f"{USAGE}\n{all_configs()}"


class Flags(NamedTuple):
    """A command line."""

    stages: list[dict[str, Any]]
    """All options of every stage as plain data."""
    workdir: str
    """A folder, or an address in a bucket."""
    dry_run: bool
    compile_for: str
    """A TPU slice; empty: this machine's devices."""
    check: str
    """Value of `--check`; empty: run the training."""

    @property
    def config(self) -> dict[str, Any]:
        """The options of the first stage, often the only one."""
        return self.stages[0]


def parse_flags(arguments: Sequence[str]) -> Flags:
    """Parses a command line; raises `InputError` if it is invalid."""
    options, rest = _split(_joined(arguments))
    named = options.pop("config", "")
    if not named:
        _refuse_unknown_flags([f"--{name}" for name in options])
        raise InputError("--config is missing. --help shows the usage.")
    given = {name.removeprefix("config."): value for name, value in options.items() if name.startswith("config.")}
    stages = read_config_file(named)
    _refuse_unknown_flags([f"--{name}" for name in options], option_names(stages[0]))
    stages = with_options(stages, given, text=True)
    if rest:
        raise InputError(f"{rest[0]!r} is not an option; options begin with --. --help lists them.")
    if options.get("workdir") == "":
        raise InputError("--workdir is empty; give a folder, or leave the option out for runs/CONFIG-PRESET.")
    dry_run = options.get("dry_run", "false").lower()
    if dry_run not in WORDS:
        raise InputError(f"--dry_run={dry_run!r} must be true or false.")
    if (check := options.get("check", "")) not in ("", *PLACES):
        raise InputError(f"--check={check} is unknown; allowed: {', '.join(PLACES)}.")
    compile_for = options.get("compile_for", "")
    if compile_for and not WORDS[dry_run]:
        raise InputError(f"--compile_for={compile_for} plans a run and trains nothing; add --dry_run.")
    workdir = os.path.expanduser(options.get("workdir") or default_workdir(named))
    return Flags(stages, workdir, WORDS[dry_run], compile_for, check=check)


def _split(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options by name (the last value counts), and arguments that are not options."""
    flags = [argument for argument in arguments if re.match(r"--?[A-Za-z_]", argument)]
    pairs = [flag.lstrip("-").partition("=") for flag in flags]
    options = {name: value if equals else "true" for name, equals, value in pairs}
    if options.pop("nodry_run", ""):
        options["dry_run"] = "false"
    return options, [argument for argument in arguments if argument not in flags]


def _joined(arguments: Sequence[str]) -> list[str]:
    """Rewrites `--OPTION VALUE` to `--OPTION=VALUE`, and the short form `--profile` to its option."""
    joined: list[str] = []
    for argument in arguments:
        if (
            joined
            and re.fullmatch(r"--?(config|workdir|compile_for|check|profile)[\w.]*", joined[-1])
            and not re.match(r"-\D", argument)
        ):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return [re.sub(r"^--?profile=", "--config.all.run.profile=", argument) for argument in joined]


def _refuse_unknown_flags(flags: Sequence[str], options: Sequence[str] = ()) -> None:
    """Raises `InputError` for an unknown flag; `options` names the options of the config."""
    for name in flags:
        if name in FLAGS or name.startswith("--config."):
            continue
        full = [f"--config.{option}" for option in options if option.rpartition(".")[2] == name.lstrip("-")]
        meant = f" Did you mean {' or '.join(full)}?" if full else did_you_mean(name, FLAGS)
        raise InputError(f"unknown option {name}.{meant} --help lists the options.")


def _overridden(arguments: Sequence[str]) -> list[str]:
    """Options set on the command line: `section.option` of each `--config.section.option=value`."""
    names = [argument.split("=")[0].lstrip("-") for argument in arguments]
    return [name.removeprefix("config.") for name in names if name.startswith("config.")]


def command_line(arguments: Sequence[str]) -> str:
    """The command that repeats the run, for its model card."""
    kept = [argument for argument in _joined(arguments) if not argument.lstrip("-").startswith("workdir")]
    return f"python -m jaxdistill.main {shlex.join([*kept, '--workdir=DIR'])}"


if __name__ == "__main__":
    run(main)
