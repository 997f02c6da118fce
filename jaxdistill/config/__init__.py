"""All options of a run: a config file makes a `ConfigDict`, which is read once into frozen dataclasses."""

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
"""Options of a chain, mapped to what each sets in every stage; a chain has those whose values all stages share."""


def load_config(spec: str) -> ConfigDict:
    """The config that `FILE`, `FILE:PRESET` or `FILE:PRESET:ARGUMENT` names."""
    name, _, preset = spec.partition(":")
    get_config = config_module(name).get_config
    return get_config(preset) if preset else get_config()


def load_study(name: str) -> tuple[str, Any]:
    """CONFIG and GRID of a study (see `sweep`), a file or a shipped one; without a name, a grid of one point that changes no option."""
    if not name:
        return "", [{}]
    module = config_module(name, "studies")
    return getattr(module, "CONFIG", ""), getattr(module, "GRID", None)


def config_module(name: str, folder: str = "") -> types.ModuleType:
    """Loads the user's file of that name, or else the shipped one, in `configs/` or a `folder` inside it."""
    path = pathlib.Path(name).expanduser()
    shipped = {file.name: file for file in shipped_configs(folder)}
    if not path.is_file():
        file_name = path.name if path.suffix else f"{path.name}.py"
        if path.parent.name not in ("", "configs", folder) or file_name not in shipped:
            names = f"{pathlib.Path('configs', folder)}/{', '.join(shipped)}"
            close = did_you_mean(file_name, list(shipped))
            raise InputError(f"config file {path} does not exist; shipped: {names}.{close}")
        path = shipped[file_name]
    return plugins.load_module(str(path))


def shipped_configs(folder: str = "") -> list[pathlib.Path]:
    """The files of `configs/`, or of a `folder` inside it."""
    return sorted(path for path in (configs_folder() / folder).glob("*.py") if not path.name.startswith("_"))


def default_workdir(spec: str) -> str:
    """`runs/CONFIG-PRESET` in the current folder, such as `runs/congen-paper-bert-tiny`."""
    name, _, preset = spec.partition(":")
    if not preset:
        arguments = inspect.signature(config_module(name).get_config).parameters
        preset = str(arguments["preset"].default) if "preset" in arguments else ""
    return f"runs/{re.sub(r'[^-+.A-Za-z0-9_]', '-', f'{pathlib.Path(name).stem}-{preset}'.rstrip('-'))}"


def defaults(*, objective: str, student: str = "cut", teacher: str = "live") -> ConfigDict:
    """Every option of a training with its default, for a config file to change; those of student, teacher and objective by their kinds.

    The objective `embedding+gram` makes two objectives, in the section `objectives`.
    """
    kinds = {name: KINDS[name].default_options(kind) for name, kind in (("student", student), ("teacher", teacher))}
    config = ConfigDict({name: dataclasses.asdict(options()) for name, options in PLAIN.items()} | kinds)
    set_kind(config, "objective", objective)
    return config


def set_kind(config: ConfigDict, section: str, kind: str, **options: Any) -> None:
    """Changes the kind of the student, the teacher or the objective; `A+B` makes the objective a sum, which ignores `options`.

    A student or teacher keeps the values of options that both kinds have; other options get defaults. `options` are set last.
    """
    if section == "objective" and "+" in kind:
        kinds = kind.split("+")
        if twice := [name for name in kinds if kinds.count(name) > 1]:
            raise InputError(
                f"objective {kind!r} names {twice[0]} twice; in a config file, entries of config.objectives may have one `kind`."
            )
        if "objective" in config:
            del config.objective
        config.objectives = ConfigDict({name: KINDS[section].default_options(name) | {"weight": 1.0} for name in kinds})
        return
    changed = ConfigDict(KINDS[section].default_options(kind))
    if section != "objective":
        previous = cast(ConfigDict, config[section])
        changed.update({name: value for name, value in previous.items() if name in changed and name != "kind"})
    changed.update(options)
    config[section] = changed


def chain(stages: Sequence[Any]) -> ConfigDict:
    """A training of several stages, configs of `defaults`, each of which passes its student on to the next.

    If all have the same value for an option of `SHARED`, the chain has one too, such as `seed`, which sets it in every stage where it
    is not set separately.
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
        config.update_from_flattened_dict(
            {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
        )


def check_option(names: Sequence[str], name: str, *, flag: str = "") -> None:
    """Raises `InputError` if `name` is not among a config's option `names`, or is a `kind`. `flag` precedes names in errors."""
    section, option = ["", *name.split(".")][-2:]
    if name in names and option != "kind":
        return
    kinds = KINDS.get(section)
    having = [kind for kind in kinds.classes if option in kinds.default_options(kind)] if kinds else []
    if having:
        raise InputError(
            f"{flag}{name}: the kind of the {section} is chosen by the preset (--config=FILE.py:PRESET:{section}={having[0]}), in a "
            f"config file, or in Python by an object; {option} needs one of {', '.join(having)}."
        )
    raise InputError(f"unknown option {flag}{name}.{closest_option(name, names, flag=flag)}")


def closest_option(name: str, names: Sequence[str], *, flag: str = "") -> str:
    """The hint ` Did you mean X?`, with the option whose last word is most similar; an empty string if none is close."""
    section, _, word = name.rpartition(".")
    ordered = sorted(names, key=lambda other: (other.rpartition(".")[0] == section, -other.count(".")))
    # Of options with the same last word, the last one stays: in the same section, or else with the fewest dots.
    by_word = {other.rpartition(".")[2]: other for other in ordered}
    close = difflib.get_close_matches(word, by_word, n=1)
    return f" Did you mean {flag}{by_word[close[0]]}?" if close else ""


def option_names(config: ConfigDict) -> list[str]:
    """The dotted names of all options."""
    return list(flatten_dict(config.to_dict(), sep="."))


def parse_stages(config: ConfigDict | Mapping[str, Any]) -> list[Config]:
    """Reads every stage of a training; if there are several, errors begin with the number of the stage."""
    stages = [config[name] for name in stage_names(config)] or [config]
    parsed = []
    for number, stage in enumerate(stages, start=1):
        with of_stage(number, stages):
            parsed.append(parse_config(cast(Any, stage)))
    return parsed


def of_stage(number: int, stages: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """A context that puts the stage's number before the message of an `InputError`, if there are several stages."""
    return errors_of(f"stage {number}") if len(stages) > 1 else contextlib.nullcontext()


def parse_config(config: ConfigDict | Mapping[str, Any]) -> Config:
    """Reads a nested mapping, with defaults for missing options; raises `InputError` for unknown options and wrong values."""
    config = config.to_dict() if isinstance(config, ConfigDict) else config
    _refuse_unknown(config, (*SECTIONS, "objectives"), prefix="")
    if "objective" in config and "objectives" in config:
        raise InputError("the config has objective and objectives; leave one of them out.")
    read = {}
    for section in SECTIONS:
        if section != "objective" or "objectives" not in config:
            read[section] = _options(section, config.get(section, {}), prefix=section)
    if "objectives" in config:
        terms = []
        for name, options in config["objectives"].items():
            options = {"kind": name, "weight": 1.0, **options}
            weight = typed(options.pop("weight"), Positive, f"objectives.{name}.weight")
            terms.append(Term(_options("objective", options, prefix=f"objectives.{name}"), weight, name))
        read["objective"] = Weighted(terms=tuple(terms))
    if read["run"].minutes:  # overrides `steps`, which most presets set
        read["run"] = dataclasses.replace(read["run"], steps=-1)
    return Config(**read)


def _options(section: str, options: Mapping[str, Any], *, prefix: str) -> Any:
    """Reads a section into its dataclass, or that of its kind; missing options get their defaults. `prefix` is its name in errors."""
    options = dict(options)
    kind = options.pop("kind", KINDS[section].default) if section in KINDS else ""
    options_class: type = KINDS[section].options_class(kind) if section in KINDS else PLAIN[section]
    fields = [field.name for field in dataclasses.fields(options_class)]
    if "kind" in fields:
        options["kind"] = kind
    _refuse_unknown(options, fields, prefix=f"{prefix}.")
    hints = typing.get_type_hints(options_class, include_extras=True)
    return options_class(**{name: typed(value, hints[name], f"{prefix}.{name}") for name, value in options.items()})


def _refuse_unknown(options: Mapping[str, Any], allowed: Sequence[str], *, prefix: str) -> None:
    for name in options:
        if name not in allowed:
            close = did_you_mean(name, list(allowed))
            raise InputError(f"config key {prefix}{name} is unknown.{close} Known: {', '.join(allowed)}.")


def nested(config: Config) -> dict[str, dict[str, Any]]:
    """All options as types of JSON (lists for tuples); students, teachers and objectives with their kinds."""
    options = json.loads(json.dumps({name: dataclasses.asdict(getattr(config, name)) for name in SECTIONS}))
    objective = options.pop("objective")
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


def typed(value: Any, kind: Any, name: str) -> Any:
    """Converts the value of the option `name` to the type `kind` of its field; raises `InputError` for another or out of range."""
    if kind in (Columns, Sharding) and isinstance(value, tuple) and len(value) == 1 and isinstance(value[0], str):
        value = value[0]  # `config_flags` makes a tuple of a word
    if kind == Columns and isinstance(value, str):
        value = (("text", value),) if value else ()
    if kind == Sharding:
        kind = ShardingWord if isinstance(value, str) else ShardingRules
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return arguments[1].checked(typed(value, arguments[0], name), name)
    if origin is Literal:
        if value not in arguments:
            raise InputError(f"{name}={value!r} is unknown; allowed: {', '.join(map(str, arguments))}.")
        return value
    if origin is tuple and isinstance(value, list | tuple):
        # The number of parts is fixed, unless the type ends in `...`.
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        Range(least=len(kinds), most=len(kinds)).checked(tuple(value), name)
        return tuple(typed(part, kinds[i], f"{name}[{i}]") for i, part in enumerate(value))
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return Range().checked(float(value), name)
    plain = origin or kind
    if isinstance(kind, types.UnionType) or not isinstance(plain, type):
        return value  # no shipped option has such a type; a user's own kind checks the value itself
    if not isinstance(value, plain) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{name}={value!r} has type {type(value).__name__}; it must have type {plain.__name__}.")
    return value
