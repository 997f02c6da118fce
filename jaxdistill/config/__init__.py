"""Loads config files, changes their options, and reads them into the dataclasses of `options.py`."""

import contextlib
import dataclasses
import difflib
import inspect
import json
import pathlib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict, FieldReference

from jaxdistill.config.options import PLAIN, SECTIONS, Config, Sharding, ShardingRules, ShardingWord
from jaxdistill.core import InputError, Positive, Range, did_you_mean, errors_of, plugins
from jaxdistill.core.paths import configs_folder
from jaxdistill.core.plugins import KINDS
from jaxdistill.data.options import Columns
from jaxdistill.objectives.weighted import Term, Weighted

SHARED = {
    "text": "data.text", "columns": "data.columns", "batch_size": "data.batch_size", "seed": "run.seed", "best": "evals.best",
    "pairs": "evals.pairs", "entities": "evals.entities",
}  # fmt: skip
"""Maps short options of a training of several stages to the option that each sets in every stage; see `chain`."""
TYPE_WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}  # for errors


def load_config(spec: str) -> ConfigDict:
    """The config that `FILE`, `FILE:PRESET` or `FILE:PRESET:ARGUMENT` names, made by `get_config` of the file."""
    name, _, preset = spec.partition(":")
    get_config = config_module(name).get_config
    return get_config(preset) if preset else get_config()


def load_study(name: str) -> tuple[str, Any]:
    """`CONFIG` and `GRID` of a study, which is a user's file or a shipped one; `sweep` trains such a grid.
    An empty name gives no config, and a grid of one point that changes no option."""
    if not name:
        return "", [{}]
    module = config_module(name, "studies")
    return getattr(module, "CONFIG", ""), getattr(module, "GRID", None)  # `sweep` refuses a missing grid


def config_module(name: str, folder: str = "") -> types.ModuleType:
    """Loads the user's config file `name`, or else the shipped one, from `configs/` or a `folder` inside it."""
    path = pathlib.Path(name).expanduser()
    if path.is_file():
        return plugins.load_module(str(path))
    shipped = {file.name: file for file in shipped_configs(folder)}
    file_name = path.name if path.suffix else f"{path.name}.py"
    # `l2`, `l2.py` and `configs/l2.py` name the shipped file from any folder; `mine/l2.py` names only a user's file.
    if path.parent.name not in ("", "configs", folder) or file_name not in shipped:
        names = f"{pathlib.Path('configs', folder)}/{', '.join(shipped)}"
        close = did_you_mean(file_name, list(shipped))
        raise InputError(f"config file {path} does not exist; shipped: {names}.{close}")
    return plugins.load_module(str(shipped[file_name]))


def shipped_configs(folder: str = "") -> list[pathlib.Path]:
    """The config files in `configs/`, or in a `folder` inside it. Files whose names begin with `_` are helpers of these."""
    return sorted(path for path in (configs_folder() / folder).glob("*.py") if not path.name.startswith("_"))


def default_workdir(spec: str) -> str:
    """`runs/CONFIG-PRESET` in the current folder, such as `runs/congen-paper-bert-tiny`."""
    name, _, preset = spec.partition(":")
    if not preset:  # `get_config` then takes its default
        parameters = inspect.signature(config_module(name).get_config).parameters
        preset = str(parameters["preset"].default) if "preset" in parameters else ""
    run_name = f"{pathlib.Path(name).stem}-{preset}".rstrip("-")
    return "runs/" + re.sub(r"[^-+.A-Za-z0-9_]", "-", run_name)


def defaults(*, objective: str, student: str = "cut", teacher: str = "live") -> ConfigDict:
    """A config of all options with their defaults, for a config file to change.
    The arguments name kinds, which determine the options of these sections. The objective `embedding+gram` makes two objectives."""
    config = ConfigDict({section: dataclasses.asdict(options_class()) for section, options_class in PLAIN.items()})
    config.student = KINDS["student"].default_options(student)
    config.teacher = KINDS["teacher"].default_options(teacher)
    set_kind(config, "objective", objective)
    return config


def set_kind(config: ConfigDict, section: str, kind: str, **options: Any) -> None:
    """Replaces the section `student`, `teacher` or `objective` by the default options of a kind, changed by `options`.
    A student or teacher keeps the values of options that its previous kind has too. An objective `A+B` becomes a section `objectives`
    instead, with an entry of weight 1 and default options for each kind; `options` are then ignored."""
    if section == "objective" and "+" in kind:
        _set_objectives(config, kind.split("+"))
        return
    changed = ConfigDict(KINDS[section].default_options(kind))
    if section != "objective":
        previous = cast(ConfigDict, config[section])
        changed.update({name: value for name, value in previous.items() if name in changed and name != "kind"})
    elif "objectives" in config:
        del config.objectives
    changed.update(options)
    config[section] = changed


def _set_objectives(config: ConfigDict, kinds: Sequence[str]) -> None:
    """Replaces the section `objective` by `objectives`, with an entry of weight 1 for each of the `kinds`."""
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise InputError(
                f"objective {'+'.join(kinds)!r} names {kind} twice; in a config file, two of config.objectives may have the same `kind`."
            )
    if "objective" in config:
        del config.objective
    config.objectives = ConfigDict({kind: KINDS["objective"].default_options(kind) | {"weight": 1.0} for kind in kinds})


def chain(stages: Sequence[Any]) -> ConfigDict:
    """Joins the configs of several stages into one training, in which each stage passes its student on to the next.
    For each option of `SHARED` on which all stages agree, the result gets the short option, such as `seed`. Its value holds in
    every stage that does not set the option separately."""
    config = ConfigDict({f"stage{number}": stage for number, stage in enumerate(stages, start=1)})
    for name, option in SHARED.items():
        section, _, key = option.partition(".")
        value, *others = (stage[section][key] for stage in stages)
        if all(other == value for other in others):
            config[name] = FieldReference(value)
            for stage in stages:
                stage[section][key] = config.get_oneway_ref(name)  # follows `config[name]` until it is set itself
    return config


def stage_names(config: ConfigDict | Mapping[str, Any]) -> list[str]:
    """`stage1`, `stage2` and so on; empty for a single training."""
    names = [name for name in config if re.fullmatch(r"stage[1-9]\d*", name)]
    return sorted(names, key=lambda name: int(name.removeprefix("stage")))


def in_every_stage(config: ConfigDict, option: str) -> list[str]:
    """The dotted names of an option in all stages; of a single training, the option itself."""
    return [f"{stage}.{option}" for stage in stage_names(config)] or [option]


def set_options(config: ConfigDict, options: Mapping[str, Any]) -> None:
    """Sets options by dotted name, such as `stage2.run.steps`; raises `InputError` for a name that the config does not have."""
    for name in options:
        check_option(option_names(config), name)
    with config.ignore_type():  # types are checked when the config is read
        config.update_from_flattened_dict(options)


def check_option(names: Sequence[str], name: str, *, flag: str = "") -> None:
    """Raises `InputError` if the option `name` cannot be set: it is not among a config's option `names`, or is a `kind`.
    The error says which kinds have the option, or else which option is most similar. `flag` precedes names in the error."""
    sections, _, option = name.rpartition(".")
    if name in names and option != "kind":
        return
    section = sections.rpartition(".")[2]  # `student` of `stage2.student.layers`
    if section in KINDS:
        fitting = [kind for kind in KINDS[section].classes if option in KINDS[section].default_options(kind)]
        if fitting:
            raise InputError(
                f"{flag}{name}: the kind of the {section} is chosen by the preset (--config=FILE.py:PRESET:{section}={fitting[0]}), in a "
                f"config file, or in Python by an object; {option} needs one of {', '.join(fitting)}."
            )
    raise InputError(f"unknown option {flag}{name}.{closest_option(name, names, flag=flag)}")


def closest_option(name: str, names: Sequence[str], *, flag: str = "") -> str:
    """The hint ` Did you mean X?`, with the option whose last word is most similar; an empty string if none is close.
    Of several options with that last word, it is the one in the section of `name`, or else the one with the fewest dots."""
    section, _, last_word = name.rpartition(".")
    worst_first = sorted(names, key=lambda option: (option.rpartition(".")[0] == section, -option.count(".")))
    by_last_word = {option.rpartition(".")[2]: option for option in worst_first}  # the last of several options stays
    close = difflib.get_close_matches(last_word, by_last_word, n=1)
    return f" Did you mean {flag}{by_last_word[close[0]]}?" if close else ""


def option_names(config: ConfigDict) -> list[str]:
    """The dotted names of all options."""
    return list(flatten_dict(config.to_dict(), sep="."))


def parse_stages(config: ConfigDict | Mapping[str, Any]) -> list[Config]:
    """Reads every stage of a training; if there are several, errors begin with the number of the stage."""
    stages = [config[name] for name in stage_names(config)] or [config]
    parsed = []
    for number, stage in enumerate(stages, start=1):
        with errors_of_stage(number, stages):
            parsed.append(parse_config(cast(Any, stage)))
    return parsed


def errors_of_stage(number: int, stages: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """If there are several stages, puts a stage's number before the message of an `InputError` raised in the `with` block."""
    return errors_of(f"stage {number}") if len(stages) > 1 else contextlib.nullcontext()


def parse_config(config: ConfigDict | Mapping[str, Any]) -> Config:
    """Reads a nested mapping, with defaults for missing options; raises `InputError` for unknown options and wrong values."""
    config = config.to_dict() if isinstance(config, ConfigDict) else config
    _refuse_unknown(config, (*SECTIONS, "objectives"), prefix="")
    if "objective" in config and "objectives" in config:
        raise InputError("the config has objective and objectives; leave one of them out.")
    sections: dict[str, Any] = {}
    for section in SECTIONS:
        if section == "objective" and "objectives" in config:
            sections[section] = _read_objectives(config["objectives"])
        else:
            sections[section] = _read_section(section, config.get(section, {}), prefix=section)
    if sections["run"].minutes:  # overrides `steps`, which most presets set
        sections["run"] = dataclasses.replace(sections["run"], steps=-1)
    return Config(**sections)


def _read_objectives(section: Mapping[str, Mapping[str, Any]]) -> Weighted:
    """Reads the section `objectives` into a weighted sum. An entry's name is its kind, unless it has an option `kind`."""
    terms = []
    for name, options in section.items():
        options = {"kind": name, "weight": 1.0, **options}
        weight = typed(options.pop("weight"), Positive, f"objectives.{name}.weight")
        terms.append(Term(_read_section("objective", options, prefix=f"objectives.{name}"), weight, name))
    return Weighted(terms=tuple(terms))


def _read_section(section: str, options: Mapping[str, Any], *, prefix: str) -> Any:
    """Reads a section into its dataclass, or into that of its kind. `prefix` is the section's name in errors."""
    options = dict(options)
    kind = options.pop("kind", KINDS[section].default) if section in KINDS else ""
    options_class: type = KINDS[section].options_class(kind) if section in KINDS else PLAIN[section]
    fields = [field.name for field in dataclasses.fields(options_class)]
    if "kind" in fields:  # students and teachers store their kind, objectives do not
        options["kind"] = kind
    _refuse_unknown(options, fields, prefix=f"{prefix}.")
    hints = typing.get_type_hints(options_class, include_extras=True)
    return options_class(**{name: typed(value, hints[name], f"{prefix}.{name}") for name, value in options.items()})


def _refuse_unknown(options: Mapping[str, Any], allowed: Sequence[str], *, prefix: str) -> None:
    """Raises `InputError` for a name in `options` that is not `allowed`; `prefix` precedes it in the error."""
    for name in options:
        if name not in allowed:
            close = did_you_mean(name, list(allowed))
            raise InputError(f"config key {prefix}{name} is unknown.{close} Known: {', '.join(allowed)}.")


def nested(config: Config) -> dict[str, dict[str, Any]]:
    """All options by section, as JSON types (lists for tuples), with each `kind`. Several objectives are in `objectives`, by name."""
    options = json.loads(json.dumps({name: dataclasses.asdict(getattr(config, name)) for name in SECTIONS}))
    objective = options.pop("objective")  # which, unlike students and teachers, has no field `kind`
    if isinstance(config.objective, Weighted):
        options["objectives"] = {
            term.name: {"kind": term.kind, "weight": term.weight, **values["objective"]}
            for term, values in zip(config.objective.terms, objective["terms"], strict=True)
        }
    else:
        options["objective"] = {"kind": config.kinds["objective"], **objective}
    return options


def flat(*stages: Config) -> dict[str, Any]:
    """The options of `nested` by dotted name, such as `data.text`, or with several stages `stage2.data.text`."""
    numbered = {f"stage{number}": nested(stage) for number, stage in enumerate(stages, start=1)}
    return flatten_dict(numbered if len(stages) > 1 else numbered["stage1"], sep=".")


def typed(value: Any, declared: Any, name: str) -> Any:
    """Converts the value of the option `name` to its declared type; raises `InputError` for another type or a value out of range."""
    # Columns and shardings may also be a word, which `config_flags` puts into a tuple.
    is_word_in_tuple = isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str)
    if declared in (Columns, Sharding) and is_word_in_tuple:
        value = value[0]
    if declared == Columns and isinstance(value, str):
        value = (("text", value),) if value else ()  # the column of the sentences
    if declared == Sharding:
        declared = ShardingWord if isinstance(value, str) else ShardingRules
    origin = typing.get_origin(declared)
    arguments = typing.get_args(declared)
    if origin is Annotated:  # such as `Positive`, with its `Range`
        return arguments[1].checked(typed(value, arguments[0], name), name)
    if origin is Literal:
        if value not in arguments:
            raise InputError(f"{name}={value!r} is unknown; allowed: {', '.join(map(str, arguments))}.")
        return value
    if origin is tuple and isinstance(value, list | tuple):
        # The number of parts is fixed, unless the type ends in `...`.
        part_types = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(value) != len(part_types):
            raise InputError(f"{name}={value} has {len(value)} parts; their number must be exactly {len(part_types)}.")
        return tuple(typed(part, part_types[i], f"{name}[{i}]") for i, part in enumerate(value))
    is_bool = isinstance(value, bool)  # which Python also counts as an int
    if declared is float and isinstance(value, int | float) and not is_bool:
        return Range().checked(float(value), name)
    plain_type = origin or declared  # `tuple` for `tuple[str, ...]`
    if isinstance(declared, types.UnionType) or not isinstance(plain_type, type):
        return value  # only a user's own kind declares such a type; it checks the value itself
    if not isinstance(value, plain_type) or (is_bool and declared is not bool):
        raise InputError(f"{name}={value!r} must be {TYPE_WORDS.get(plain_type, f'of type {plain_type.__name__}')}.")
    return value
