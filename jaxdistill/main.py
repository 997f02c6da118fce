"""Trains a student and exports it to DIR/export. Running the same command again resumes training.

  python -m jaxdistill.main --config=FILE[:PRESET] [--workdir=DIR] [--config.SECTION.OPTION=VALUE ...]

Some presets take an argument, such as a paper's student (l2.py:paper:minilm-l6), and all with one stage other kinds of student,
teacher and objective: l2.py:minilm-l3:student=static:teacher=stored. `--config=FILE[:PRESET] --help` describes a config and
lists its options. A config with stages has --config.stage2.SECTION.OPTION=VALUE for one of them, and names such as --config.text
and --config.seed for values that all stages share.
"""

import inspect
import os
import pathlib
import re
import shlex
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict, config_flags

from jaxdistill import config as configs
from jaxdistill.config.options import Config
from jaxdistill.core import InputError
from jaxdistill.core.cli import run
from jaxdistill.core.runtime import log_to_stdout


class Flags(NamedTuple):
    """The values of a command line; `_define_flags` describes the flags."""

    stages: list[Config]
    workdir: str
    dry_run: bool
    compile_for: str
    check: str
    command: str
    """The command that repeats the run, for its model card."""


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.main`."""
    if not arguments or {"--help", "-h", "--helpfull"} & {*arguments}:
        print_help(_spec_and_others(arguments)[0])
        return
    args = parse_flags(arguments)
    log_to_stdout()
    from jaxdistill.training.plan import print_plan, slice_named  # only now, so that errors in flags appear at once
    from jaxdistill.training.stages import check_launch, run_stages

    if args.check:
        if args.compile_for:
            slice_named(args.compile_for)  # raises for an unknown slice
        check_launch(args.stages, args.workdir, args.check)
        print("checked: the options are valid, and what they name here exists; buckets and the hub were not asked")
    elif args.compile_for:
        if len(args.stages) > 1:
            print(f"stage 1 of {len(args.stages)}")
        print_plan(args.stages[0], pathlib.Path(args.workdir), args.compile_for)
    else:
        print(f"workdir: {args.workdir}", flush=True)
        run_stages(args.stages, args.workdir, dry_run=args.dry_run, command=args.command)


def print_help(spec: str) -> None:
    """Prints what a config is, the arguments of its presets, and the options of the preset; without a config, the program's help."""
    if spec:
        module = configs.config_module(spec.partition(":")[0])
        print(f"{inspect.cleandoc(module.__doc__ or '')}\n")
        for preset, allowed in getattr(module, "ARGUMENTS", {}).items():
            print(f"{preset}:ARGUMENT  {', '.join(allowed)}")
        print("\nOptions, described in jaxdistill/config/options.py, data/options.py and the files of the kinds:")
        for name, value in flatten_dict(configs.load_config(spec).to_dict(), sep=".").items():
            print(f"  {'' if name.endswith('.kind') else '--config.'}{name}={value}")  # a kind is chosen by the preset
        return
    _heading, _, flag_help = _define_flags(ConfigDict(), []).get_help(include_special_flags=False).partition(":\n")
    print(f"{__doc__}\n{flag_help}\n\nConfigs and their presets:")
    for path in configs.shipped_configs():
        module = configs.config_module(str(path))
        print(f"\n  configs/{path.name}: {(inspect.getdoc(module) or '').splitlines()[0]}")
        print(textwrap.indent(textwrap.fill(", ".join(module.PRESETS), 84, break_on_hyphens=False), " " * 6))


def parse_flags(arguments: Sequence[str]) -> Flags:
    """Parses a command line with absl and `config_flags`; raises `InputError` if it is invalid."""
    flags.FLAGS(["jaxdistill.main", "--verbosity=-1"])  # shows only warnings of libraries that log through absl
    spec, others = _spec_and_others(arguments)
    if not spec:
        raise InputError("--config is missing. --help shows the usage.")
    config = configs.load_config(spec)
    names = configs.option_names(config)
    for argument in others:
        if matched := re.match(r"--?(?:no)?config\.([^=]+)", argument):  # `--noconfig.X`: False
            configs.check_option(names, matched[1], flag="--config.")  # config_flags would show a traceback
    argv = ["jaxdistill.main", *others]
    values = _define_flags(config, argv)
    try:
        _, *positional = values(argv)
    except flags.UnrecognizedFlagError as error:
        close = configs.closest_option(error.flagname, [*values, *(f"config.{name}" for name in names)], flag="--")
        raise InputError(f"unknown option --{error.flagname}.{close} --help lists the options.") from None
    except flags.Error as error:
        message = str(error).removeprefix("flag ").rstrip(".")
        # Python's words for a value of a wrong type, and the type.
        jargon = {"invalid literal": int, "could not convert": float, "Non-boolean": bool}
        for words, expected in jargon.items():
            if words in message:
                message = f"{message.partition(': ')[0]} must be {configs.TYPE_WORDS[expected]}"
        raise InputError(f"{message}.") from None
    if positional:
        raise InputError(f"{positional[0]!r} is not an option; options begin with --. --help lists them.")
    if values.profile:
        configs.set_options(config, dict.fromkeys(configs.in_every_stage(config, "run.profile"), values.profile))
    without_workdir = [flag for flag in others if not re.match("--?workdir=", flag)]
    shown_arguments = [f"--config={spec}", *without_workdir, "--workdir=DIR"]
    return Flags(
        stages=configs.parse_stages(config),
        workdir=os.path.expanduser(values.workdir or configs.default_workdir(spec)),
        dry_run=values.dry_run,
        compile_for=values.compile_for,
        check=values.check or "",
        command=f"python -m jaxdistill.main {shlex.join(shown_arguments)}",  # without the user's folder
    )


def _spec_and_others(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The last `--config`, or an empty string; and all other arguments, with `--config.X VALUE` or `--workdir VALUE` joined by `=`."""
    joined: list[str] = []
    for argument in arguments:
        is_value = not re.match(r"-\D", argument)  # -1 is a value too
        if is_value and joined and re.fullmatch(r"--?(config|workdir)[\w.]*", joined[-1]):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    specs = [argument for argument in joined if re.match("--?config=", argument)]
    spec = specs[-1].partition("=")[2] if specs else ""
    return spec, [argument for argument in joined if argument not in specs]


def _define_flags(config: ConfigDict, argv: Sequence[str]) -> flags.FlagValues:
    """Defines the program's flags. Each `--config.X` in `argv` gets a flag too, which writes its value into `config` when parsed."""
    values = flags.FlagValues()
    usage = "a shipped config, found from any folder, or your own file; without a preset, shipped ones train on text that comes with them"
    config_flags.DEFINE_config_dict("config", config, usage, values, sys_argv=list(argv))
    usage = "a folder or gs://BUCKET/PATH, for checkpoints, metrics, log, plot and export; default: runs/CONFIG-PRESET"
    flags.DEFINE_string("workdir", "", usage, values)
    usage = "build everything, including stored targets and labels; print sizes, memory, steps and estimated time; stop before step 1"
    flags.DEFINE_bool("dry_run", False, usage, values)
    usage = "with --dry_run: compile the step for absent TPUs (v5e-16 or v5litepod-16, v5p-64, v6e-8), and print memory, FLOPs, collectives"
    usage += " and the run's least minutes and chip-hours; needs the TPU compiler (pip install libtpu) but no TPU"
    flags.DEFINE_string("compile_for", "", usage, values)
    usage = "check the options, the text's columns, and that files and models exist, and stop; elsewhere: for machines that see only buckets and hubs"
    flags.DEFINE_enum("check", None, ["here", "elsewhere"], usage, values)
    flags.DEFINE_string("profile", "", "FIRST:LAST: trace these steps into DIR/profile, for xprof", values)
    return values


if __name__ == "__main__":
    run(main)
