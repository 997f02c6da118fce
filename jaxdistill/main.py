"""Trains a student: reads the command line, builds the run, trains, exports, and shows what came of it."""

import ast
import importlib.util
import inspect
import logging
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from absl import flags
from ml_collections import config_flags

from jaxdistill import config as configs
from jaxdistill.cli import did_you_mean, run
from jaxdistill.core import InputError
from jaxdistill.files import local

USAGE = """usage: python -m jaxdistill.main --config=FILE[:PRESET] --workdir=DIR [--dry_run] [--config.SECTION.OPTION=VALUE ...]

Trains a student and exports it to DIR/export. The same command again continues where it stopped.

  --config=FILE[:PRESET]   configs/congen.py:quickstart, or a file of your own; shipped ones are found from any folder.
                           Some presets take an argument, such as a paper's student: l2.py:paper:minilm-l6
  --workdir=DIR            checkpoints, metrics, plot and export go here
  --dry_run                build everything, print sizes, memory, steps and estimated time, and stop before step 1
  --help                   this text
"""


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.main`."""
    if not arguments or any(argument in ("--help", "-h", "--helpfull") for argument in arguments):
        print(help_text())
        return
    raw, workdir, dry_run = parse_flags(arguments)
    config = configs.parse(raw)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("jaxdistill").setLevel(logging.INFO)
    # Imported here so that flag errors appear before JAX loads.
    from jaxdistill.training.stages import run_stages
    from jaxdistill.training.unread import unread

    reasons = unread(config)
    for name in set(_overridden(arguments)) & reasons.keys():
        logging.warning("warning: --config.%s has no effect, because %s", name, reasons[name])
    run_stages(config, pathlib.Path(workdir), dry_run=dry_run, command=command_line(arguments))


def parse_flags(arguments: Sequence[str]) -> tuple[dict[str, Any], str, bool]:
    """(config as plain data, workdir, dry_run); raises `InputError` for whatever the command line has wrong."""
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values)
    flags.DEFINE_string("workdir", None, "", flag_values=values)
    flags.DEFINE_bool("dry_run", False, "", flag_values=values)
    arguments = [_with_shipped_config(argument) for argument in _joined(arguments)]
    _refuse_unknown_overrides(arguments)
    program = sys.argv
    try:
        sys.argv = ["jaxdistill.main", *arguments]  # NOTE: config_flags looks for overrides there and nowhere else
        rest = values(sys.argv)[1:]
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, SyntaxError) as error:
        raise InputError(_clear(error)) from error
    finally:
        sys.argv = program
    if rest:
        raise InputError(f"{rest[0]!r} is not an option; options begin with --. --help lists them.")
    for name in ("config", "workdir"):
        if not getattr(values, name):
            raise InputError(f"--{name} is missing. --help shows the usage.")
    return values.config.to_dict(), str(local(values.workdir, "--workdir")), values.dry_run


def _joined(arguments: Sequence[str]) -> list[str]:
    """`--config FILE` as `--config=FILE`, likewise `--workdir`."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] in ("--config", "--workdir"):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _with_shipped_config(argument: str) -> str:
    """`--config=configs/x.py` where that file is not there: the one that is installed with the package."""
    match = re.fullmatch(r"--?config=([^:]*)(:.*)?", argument)
    if not match:
        return argument
    path, preset = pathlib.Path(match[1]), match[2] or ""
    if not path.is_file():
        shipped = {file.name: file for file in shipped_configs()}
        if path.parent.name in ("", "configs") and path.name in shipped:
            path = shipped[path.name]
        else:
            known = [f"configs/{name}" for name in shipped]
            raise InputError(
                f"config file {path} does not exist; shipped: {', '.join(known)}.{did_you_mean(str(path), known)}"
            )
    _let_configs_import_each_other(path)
    return f"--config={path}{preset}"


def shipped_configs() -> list[pathlib.Path]:
    """The config files that come with the package, or beside it in a clone."""
    here = pathlib.Path(__file__).parent
    folder = here / "configs" if (here / "configs").is_dir() else here.parent / "configs"
    return sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))


def _let_configs_import_each_other(path: pathlib.Path) -> None:
    """A config file may import its neighbours and the shipped ones by their plain names."""
    for folder in (path.resolve().parent, *{file.parent.resolve() for file in shipped_configs()}):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _refuse_unknown_overrides(arguments: Sequence[str]) -> None:
    """`--config.section.option` must be an option of the config that the command line names."""
    given = [f"config.{name}" for name in _overridden(arguments)]
    path = next((argument.split("=", 1)[1] for argument in arguments if argument.startswith("--config=")), "")
    if not given or not path:
        return
    name, _, preset = path.partition(":")
    get_config = load_config_module(pathlib.Path(name)).get_config
    try:
        sections = (get_config(preset) if preset else get_config()).to_dict()
    except ValueError:
        return  # an unknown preset is told where the config is loaded
    known = [f"config.{option}" for option in _option_names(sections)]
    for name in given:
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


def _option_names(options: dict[str, Any]) -> list[str]:
    """`section.option` of a nested config."""
    names: list[str] = []
    for key, value in options.items():
        names += [f"{key}.{name}" for name in _option_names(value)] if isinstance(value, dict) else [key]
    return names


def _clear(error: Exception) -> str:
    """One line for what the flag libraries say in several."""
    if "Error whilst parsing config file" in str(error):  # with a traceback, whose last line says what it is
        return str(error).strip().splitlines()[-1].split(": ", 1)[-1]
    text = " ".join(str(error).split()) or type(error).__name__
    unknown = re.search(r"Unknown command line flag '([^']+)'", text)
    if unknown:
        meant = did_you_mean(unknown[1], ("config", "workdir", "dry_run", "help"))
        return f"unknown option --{unknown[1]}.{meant} --help lists the options."
    return text


def preset_names(module) -> list[str]:
    """Every preset of a config file, also with each of its arguments."""
    arguments = getattr(module, "ARGUMENTS", {})
    return [*module.PRESETS, *(f"{preset}:{one}" for preset, allowed in arguments.items() for one in allowed)]


def load_config_module(path: pathlib.Path):
    """A config file as a module."""
    _let_configs_import_each_other(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def help_text() -> str:
    """Usage, the presets of every shipped config, and every option with its meaning."""
    parts = [USAGE, "Configs and their presets:\n"]
    for path in shipped_configs():
        module = load_config_module(path)
        parts.append(f"  configs/{path.name}: {', '.join(module.PRESETS)}\n      {module.__doc__.splitlines()[0]}")
        for preset, arguments in getattr(module, "ARGUMENTS", {}).items():
            parts.append(f"      {preset}:ARGUMENT with {', '.join(arguments)}")
    parts.append("\nOptions (--config.SECTION.OPTION=VALUE):")
    kinds = [configs.Data, configs.Teacher, configs.Student, configs.Optimizer, configs.Evals, configs.Run]
    parts += [line for kind in kinds for line in _option_lines(kind.__name__.lower(), kind)]
    from jaxdistill import objectives

    for name in objectives.available():
        parts += _option_lines("objective", objectives.options_class(name), note=f" ({name})")
    return "\n".join(parts)


def _option_lines(section: str, kind: type, note: str = "") -> list[str]:
    """Each field of an options class with the text that stands below it."""
    body = ast.parse(inspect.getsource(kind)).body[0].body
    hints = get_type_hints(kind, include_extras=True)
    lines = [f"\n  {section}{note}: {inspect.getdoc(kind).splitlines()[0]}"]
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            meaning = f"  {' '.join(said.split())}" if said else ""
            lines.append(f"    {node.target.id}: {_type_words(hints[node.target.id])}{meaning}")
    return lines


def _type_words(kind: Any) -> str:
    """A field's type as the help shows it: `float, above 0` or `linear | cosine`."""
    if get_origin(kind) is Annotated:
        plain, allowed = get_args(kind)
        return f"{plain.__name__}, {allowed}"
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        return f"({', '.join('...' if part is Ellipsis else _type_words(part) for part in parts)})"
    return kind.__name__


def command_line(arguments: Sequence[str]) -> str:
    """The command that repeats the run, for its model card."""
    kept = [argument for argument in arguments if not argument.startswith("--workdir")]
    return f"python -m jaxdistill.main {shlex.join([*kept, '--workdir=DIR'])}"


if __name__ == "__main__":
    run(main)
