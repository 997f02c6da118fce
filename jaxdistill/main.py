"""Trains a student: parses the command line, builds the run, trains, exports, and prints the results."""

import logging
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from jaxdistill import config as configs
from jaxdistill.cli import did_you_mean, run
from jaxdistill.core import InputError
from jaxdistill.training.config_file import default_workdir, read_config_file
from jaxdistill.versions import version_text

ALLOWED = {
    "Non-boolean argument": "true or false",
    "invalid literal for int": "a whole number",
    "could not convert string to float": "a number",
}
"""What the flag libraries say of a value of the wrong type, and what is allowed."""
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
  --compile_for=SLICE      with --dry_run: compile the step for absent TPUs (v5e-16, v5p-64, v6e-8),
                           and print memory, arithmetic, traffic and the minimum time; needs the
                           TPU compiler (pip install libtpu) but no TPU
  --check=here|elsewhere   check options, text and models, without loading or reading them, and
                           stop; elsewhere: for machines that see no files of this one, only buckets
                           and hubs. The launchers do this first
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
    config = configs.parse_config(given.config)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("jaxdistill").setLevel(logging.INFO)
    from jaxdistill.planning.plan import print_plan
    from jaxdistill.training.stage_checks import check_launch
    from jaxdistill.training.stages import in_order, run_stages
    from jaxdistill.training.unread import warn_of_unread

    if not any(re.match("--?workdir", argument) for argument in arguments):
        print(f"workdir: {given.workdir}", flush=True)
    warn_of_unread(config, _overridden(arguments))
    if given.check:
        check_launch(in_order(config), given.workdir, given.check)
        print("checked: the options are valid, and text and models exist; those on the hub were not looked for")
    elif given.compile_for:
        stages = in_order(config)
        if len(stages) > 1:
            print(f"stage 1 of {len(stages)}")
        print_plan(stages[0], pathlib.Path(given.workdir), given.compile_for, print)
    else:
        run_stages(config, given.workdir, dry_run=given.dry_run, command=command_line(arguments))


def help_text(arguments: Sequence[str]) -> str:
    """The docstring of the config that the command line names; without one the usage, all presets and all options."""
    from jaxdistill.training.option_help import all_configs, one_config

    named = [argument.partition("=")[2] for argument in _joined(arguments) if argument.startswith("--config=")]
    return one_config(named[0]) if named else f"{USAGE}\n{all_configs()}"


class Flags(NamedTuple):
    """A command line."""

    config: dict[str, Any]
    """All options as plain data."""
    workdir: str
    """A folder, or an address in a bucket."""
    dry_run: bool
    compile_for: str
    """A TPU slice; empty: this machine's devices."""
    check: str
    """Where the training is to run; empty: it is run, not checked."""


def parse_flags(arguments: Sequence[str]) -> Flags:
    """Parses a command line; raises `InputError` for a faulty one."""
    arguments = _joined(arguments)
    named = [argument.partition("=")[2] for argument in arguments if re.match(r"--?config=", argument)]
    if not named or not named[-1]:
        _refuse_unknown_flags(arguments)
        raise InputError("--config is missing. --help shows the usage.")
    config = ConfigDict(read_config_file(named[-1]))
    _refuse_unknown_overrides(arguments, config)
    values = flags.FlagValues()
    flags.DEFINE_string("workdir", None, "", flag_values=values)
    flags.DEFINE_bool("dry_run", False, "", flag_values=values)
    flags.DEFINE_string("compile_for", "", "", flag_values=values)
    flags.DEFINE_enum("check", None, ["here", "elsewhere"], "", flag_values=values)
    program = sys.argv
    try:
        rest = [_as_tuple(argument) for argument in arguments if not re.match(r"--?config=", argument)]
        # NOTE: config_flags looks for overrides in sys.argv and nowhere else, when the flag is defined.
        sys.argv = ["jaxdistill.main", *rest]
        config_flags.DEFINE_config_dict("config", config, flag_values=values)
        rest = values(sys.argv)[1:]
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, SyntaxError) as error:
        raise InputError(_clear(error, option_names(config.to_dict()))) from error
    finally:
        sys.argv = program
    if rest:
        raise InputError(f"{rest[0]!r} is not an option; options begin with --. --help lists them.")
    if values.workdir == "":
        raise InputError("--workdir is empty; give a folder, or leave the option out for runs/CONFIG-PRESET.")
    if values.compile_for and not values.dry_run:
        raise InputError(f"--compile_for={values.compile_for} plans a run and trains nothing; add --dry_run.")
    workdir = os.path.expanduser(values.workdir or default_workdir(named[-1]))
    return Flags(values.config.to_dict(), workdir, values.dry_run, values.compile_for, values.check or "")


def _joined(arguments: Sequence[str]) -> list[str]:
    """`--OPTION VALUE` as `--OPTION=VALUE`, and `--profile` as the option that it is short for."""
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
    return [re.sub(r"^--?profile=", "--config.run.profile=", argument) for argument in joined]


def _as_tuple(argument: str) -> str:
    """`--config.data.columns=body` and `--config.run.sharding=fsdp` as the tuples that they stand for."""
    name, _, value = argument.partition("=")
    if not value or value.startswith(("(", "[", "'", '"')):
        return argument
    if name.endswith(".data.columns"):
        return f"{name}={(('text', value),)!r}"
    return f"{name}={(value,)!r}" if name.endswith(".run.sharding") else argument


def _refuse_unknown_flags(arguments: Sequence[str]) -> None:
    known = ("--config", "--workdir", "--dry_run", "--compile_for", "--check", "--profile", "--help")
    for argument in arguments:
        name = argument.partition("=")[0]
        if name.startswith("--") and name not in (*known, "--nodry_run") and not name.startswith("--config."):
            raise InputError(f"unknown option {name}.{did_you_mean(name, known)} --help lists the options.")


def _refuse_unknown_overrides(arguments: Sequence[str], config: ConfigDict) -> None:
    """`--config.section.option` must be an option of the config that the command line names."""
    known = [f"config.{option}" for option in option_names(config.to_dict())]
    for name in (f"config.{option}" for option in _overridden(arguments)):
        if name not in known:
            raise InputError(f"unknown option --{name}.{_likely_option(name, known)} --help lists the options.")


def _likely_option(name: str, known: Sequence[str]) -> str:
    """` Did you mean X?` for a close option of the same section, or else of any other."""
    section, _, option = name.rpartition(".")
    for names in ([other for other in known if other.rpartition(".")[0] == section], known):
        if meant := did_you_mean(option, list({other.rpartition(".")[2]: None for other in names})):
            word = meant.removeprefix(" Did you mean ").removesuffix("?")
            return f" Did you mean {next(other for other in names if other.endswith(f'.{word}'))}?"
    return ""


def _overridden(arguments: Sequence[str]) -> list[str]:
    """Options that the command line gives: `section.option` of each `--config.section.option=value`."""
    names = [argument.split("=")[0].lstrip("-") for argument in arguments]
    return [name.removeprefix("config.") for name in names if name.startswith("config.")]


def option_names(options: dict[str, Any]) -> list[str]:
    """`section.option` of a nested config."""
    names: list[str] = []
    for key, value in options.items():
        names += [f"{key}.{name}" for name in option_names(value)] if isinstance(value, dict) else [key]
    return names


def _clear(error: Exception, options: Sequence[str]) -> str:
    """Condenses an error of the flag libraries to one line; `options` are those of the config."""
    text = " ".join(str(error).split()) or type(error).__name__
    for said, allowed in ALLOWED.items():
        if mistyped := re.match(rf"flag (--[\w.]+)=(.*): [(']*{said}", text):
            return f"{mistyped[1]}={mistyped[2]!r} must be {allowed}."
    unknown = re.search(r"Unknown command line flag '([^']+)'", text)
    if unknown:
        full = [f"--config.{option}" for option in options if option.rpartition(".")[2] == unknown[1]]
        known = ("config", "workdir", "dry_run", "compile_for", "check", "profile", "help")
        meant = f" Did you mean {' or '.join(full)}?" if full else did_you_mean(unknown[1], known)
        return f"unknown option --{unknown[1]}.{meant} --help lists the options."
    return text


def command_line(arguments: Sequence[str]) -> str:
    """The command that repeats the run, for its model card."""
    kept = [argument for argument in _joined(arguments) if not argument.lstrip("-").startswith("workdir")]
    return f"python -m jaxdistill.main {shlex.join([*kept, '--workdir=DIR'])}"


if __name__ == "__main__":
    run(main)
