"""Config files, shipped or the user's own, and the `ConfigDict`s that they make: defaults, kinds, stages, options by name."""

import dataclasses
import inspect
import pathlib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from ml_collections import ConfigDict, FieldReference

from jaxdistill.config.options import PLAIN, SECTIONS
from jaxdistill.config.read import stage_names
from jaxdistill.core import InputError, closest, did_you_mean, plugins
from jaxdistill.core.kinds import KINDS
from jaxdistill.core.paths import configs_folder

SHARED = {
    "text": "data.text",
    "columns": "data.columns",
    "batch_size": "data.batch_size",
    "seed": "run.seed",
    "best": "evals.best",
    "pairs": "evals.pairs",
    "entities": "evals.entities",
}
"""Options of a chain that set one of every stage, if all stages begin with the same value."""


def load_config(spec: str) -> ConfigDict:
    """What `get_config` of `FILE`, `FILE:PRESET` or `FILE:PRESET:ARGUMENT` returns.

    Raises:
      InputError: the file does not exist, raises an error, or has no such preset.
    """
    name, _, preset = spec.partition(":")
    path = find_config(name)
    try:
        config = plugins.load_module(str(path)).get_config(*[preset] * bool(preset))
    except InputError:
        raise
    except Exception as error:  # whatever a user's file raises
        raise InputError(f"config file {path} cannot be read ({type(error).__name__}: {error}).") from error
    if not isinstance(config, ConfigDict):
        raise InputError(
            f"config file {path}: get_config returned {type(config).__name__}; return jaxdistill.config.defaults(...) with "
            "your changes, or jaxdistill.config.chain([...]) for several stages."
        )
    return config


def find_config(name: str) -> pathlib.Path:
    """The file of that name, or else the shipped config of that name."""
    path = pathlib.Path(name).expanduser()
    if path.is_file():
        return path
    shipped = {file.name: file for file in shipped_configs()}
    if path.parent.name in ("", "configs") and path.name in shipped:
        return shipped[path.name]
    close = did_you_mean(path.name, list(shipped))
    raise InputError(f"config file {path} does not exist; shipped: configs/{', '.join(shipped)}.{close}")


def shipped_configs() -> list[pathlib.Path]:
    """The config files installed with the package, or beside it in a clone."""
    return sorted(path for path in configs_folder().glob("*.py") if not path.name.startswith("_"))


def default_workdir(spec: str) -> str:
    """`runs/CONFIG-PRESET` in the current folder, such as `runs/congen-paper-bert-tiny`."""
    name, _, preset = spec.partition(":")
    if not preset:
        arguments = inspect.signature(plugins.load_module(str(find_config(name))).get_config).parameters
        preset = str(arguments["preset"].default) if "preset" in arguments else ""
    return f"runs/{re.sub(r'[^-+.A-Za-z0-9_]', '-', f'{pathlib.Path(name).stem}-{preset}'.rstrip('-'))}"


def one_config_help(spec: str) -> str:
    """The description of a config, the arguments of its presets, and the kinds and options of the preset that is named."""
    module, config = plugins.load_module(str(find_config(spec.partition(":")[0]))), load_config(spec)
    lines = [inspect.cleandoc(module.__doc__ or ""), ""]
    lines += [f"{preset}:ARGUMENT  {', '.join(taken)}" for preset, taken in getattr(module, "ARGUMENTS", {}).items()]
    lines += ["", "Options, which the documentation describes:"]
    for name, value in _options(config):
        lines.append(f"  {'' if name.endswith('.kind') else '--config.'}{name}={value}")
    return "\n".join(lines)


def configs_help() -> str:
    """The shipped configs and their presets."""
    lines = ["Configs and their presets:"]
    for path in shipped_configs():
        module = plugins.load_module(str(path))
        lines += [f"\n  configs/{path.name}: {(inspect.getdoc(module) or '').splitlines()[0]}"]
        lines += textwrap.wrap(", ".join(module.PRESETS), 90, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def defaults(*, objective: str, student: str = "cut", teacher: str = "live") -> ConfigDict:
    """Every option of a training with its default, for a config file to change.

    Args:
      objective, student, teacher: the kinds, which determine the options of their sections.
    """
    kinds = {"objective": objective, "student": student, "teacher": teacher}
    plain = {section: dataclasses.asdict(kind()) for section, kind in PLAIN.items()}
    made = plain | {section: KINDS[section].default_options(kind) for section, kind in kinds.items()}
    return ConfigDict({section: made[section] for section in SECTIONS})


def set_kind(config: ConfigDict, section: str, kind: str, **options: Any) -> None:
    """Makes the student, the teacher or the objective another kind.

    Options that both kinds of student or teacher have keep their values; all others have their defaults. `options` are set last.
    """
    made, before = ConfigDict(KINDS[section].default_options(kind)), cast(ConfigDict, config[section])
    if section != "objective":
        made.update({name: value for name, value in before.items() if name in made and name != "kind"})
    made.update(options)
    config[section] = made


def chain(stages: Sequence[Any]) -> ConfigDict:
    """A training of several stages, `stage1` and so on, each of which passes its student on to the next.

    Options of `SHARED` whose values are the same in all stages have a name of their own, such as `seed`, which sets them in
    every stage that has no other value.

    Args:
      stages: what `defaults` returns, changed.
    """
    config = ConfigDict({f"stage{number}": stage for number, stage in enumerate(stages, start=1)})
    for name, option in SHARED.items():
        section, _, key = option.partition(".")
        first, *others = (stage[section][key] for stage in stages)
        if all(other == first for other in others):
            config[name] = FieldReference(first)
            for stage in stages:
                stage[section][key] = config.get_oneway_ref(name)
    return config


def in_every_stage(config: ConfigDict, option: str) -> list[str]:
    """The dotted names of an option in all stages; of a single training, the option itself."""
    return [f"{stage}.{option}" for stage in stage_names(config)] or [option]


def set_options(config: ConfigDict, options: Mapping[str, Any]) -> None:
    """Sets options by dotted name, such as `stage2.run.steps`; raises `InputError` for a name that the config does not have."""
    for name, value in options.items():
        check_option(option_names(config), name)
        *sections, option = name.split(".")
        holder: Any = config
        for section in sections:
            holder = holder[section]
        with holder.ignore_type():  # types are checked when the config is read
            holder[option] = tuple(value) if isinstance(value, list) else value


def check_option(names: Sequence[str], name: str, *, flag: str = "") -> None:
    """Raises `InputError` if a config has no option of this name, or the name is a kind.

    Args:
      names: the names of the config's options.
      flag: prefix of the option on the command line.
    """
    *_, section, option = ["", *name.split(".")]
    kinds = KINDS.get(section)
    if kinds and option == "kind":
        raise InputError(
            f"{flag}{name}: a {section}'s kind determines its options and is chosen before them: by the preset "
            f"(--config=FILE.py:PRESET:{section}=KIND), in a config file, or in Python by an object such as {kinds.example}."
        )
    if name in names:
        return
    if any(other.startswith(f"{name}.") for other in names):
        raise InputError(f"{flag}{name} is a section; set one of its options, such as {flag}{name}.OPTION.")
    if having := [kind for kind in kinds.available() if option in kinds.default_options(kind)] if kinds else []:
        raise InputError(
            f"{flag}{name} is an option of the {section} {', '.join(having)}; choose it by the preset "
            f"(--config=FILE.py:PRESET:{section}={having[0]}) or in a config file."
        )
    raise InputError(f"unknown option {flag}{name}.{closest_option(name, names, flag=flag)}")


def closest_option(name: str, names: Sequence[str], *, flag: str = "") -> str:
    """` Did you mean X?` for an option whose last word is similar, in the same section if it has one; otherwise empty."""
    section, _, option = name.rpartition(".")
    ordered = sorted(names, key=lambda other: (other.rpartition(".")[0] == section, -other.count(".")))
    by_word = {other.rpartition(".")[2]: other for other in ordered}
    meant = closest(option, list(by_word))
    return f" Did you mean {flag}{by_word[meant]}?" if meant else ""


def option_names(config: ConfigDict) -> list[str]:
    """The dotted names of all options."""
    return [name for name, _ in _options(config)]


def _options(config: Any) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from ((f"{name}.{inner}", value) for inner, value in _options(value))
        else:
            yield name, value
