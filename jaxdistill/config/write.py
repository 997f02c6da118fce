"""Makes and changes a `ConfigDict` of options: defaults, kinds, stages, and options by their dotted names."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from ml_collections import ConfigDict, FieldReference

from jaxdistill.config.options import PLAIN, SECTIONS
from jaxdistill.config.read import stage_names
from jaxdistill.core import InputError, did_you_mean
from jaxdistill.files.kinds import KINDS

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


def defaults(*, objective: str, student: str = "cut", teacher: str = "live") -> ConfigDict:
    """Every option of a training with its default, for a config file to change.

    Args:
      objective, student, teacher: the kinds, which determine the options of their sections.
    """
    kinds = {"objective": objective, "student": student, "teacher": teacher}
    return ConfigDict({section: _section(section, kinds.get(section, "")) for section in SECTIONS})


def _section(section: str, kind: str) -> dict[str, Any]:
    return KINDS[section].default_options(kind) if kind else dataclasses.asdict(PLAIN[section]())


def set_kind(config: ConfigDict, section: str, kind: str, **options: Any) -> None:
    """Makes the student, the teacher or the objective another kind.

    Options that both kinds of student or teacher have keep their values; all others have their defaults. `options` are set last.
    """
    made, before = ConfigDict(_section(section, kind)), cast(ConfigDict, config[section])
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
    names = option_names(config)
    for name, value in options.items():
        check_option(names, name)
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
    if option == "kind" and section in KINDS:
        raise InputError(
            f"{flag}{name}: a {section}'s kind determines its options and is chosen before them: by the preset "
            f"(--config=FILE.py:PRESET:{section}=KIND), in a config file, or in Python by an object such as {KINDS[section].example}."
        )
    if name in names:
        return
    if any(other.startswith(f"{name}.") for other in names):
        raise InputError(f"{flag}{name} is a section; set one of its options, such as {flag}{name}.OPTION.")
    having = KINDS[section].having(option) if section in KINDS else []
    if having:
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
    meant = did_you_mean(option, list(by_word)).removeprefix(" Did you mean ").removesuffix("?")
    return f" Did you mean {flag}{by_word[meant]}?" if meant else ""


def option_names(config: ConfigDict) -> list[str]:
    """The dotted names of all options."""
    return list(_names(config))


def _names(config: Any) -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from (f"{name}.{inner}" for inner in _names(value))
        else:
            yield name
