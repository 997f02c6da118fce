"""The points of a sweep: a grid's combinations of options, and the configs to which they apply."""

import functools
import hashlib
import itertools
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxdistill import config as configs
from jaxdistill.cli import did_you_mean
from jaxdistill.core import InputError
from jaxdistill.main import parse_flags
from jaxdistill.options.config_file import load_config_module, shipped_configs
from jaxdistill.options.overrides import ALL, option_names
from jaxdistill.training.setup.unread import training_of, why_unread

SEED = "run.seed"
"""The option of the seed; a sweep sets it in every stage."""
SEEDS = (SEED, f"{ALL}{SEED}")
"""Names of the seed in a grid."""
CONFIG = "config"
"""Column with the config's name, in sweeps over several configs."""
LACKS = "-"
"""Shown if a config does not have an option."""


class Point(NamedTuple):
    """One training of the grid."""

    options: dict[str, Any]
    """The swept options without the seed, with the config's types; `CONFIG` comes first in sweeps over several configs."""
    stages: Sequence[configs.Config]
    """All options of every stage."""
    arguments: tuple[str, ...]
    """Arguments of `jaxdistill.main`, without the workdir."""

    @property
    def shown(self) -> str:
        return " ".join(f"{name}={value}" for name, value in (self.options | {SEED: self.seed}).items())

    @property
    def seed(self) -> int:
        """The seed of the first stage."""
        return self.stages[0].run.seed

    @property
    def name(self) -> str:
        """Name of the point's folder."""
        plain = self.shown.replace(" ", ",")
        safe = re.sub(r"[^A-Za-z0-9_.=,+-]", "-", plain)[:150]
        return safe if safe == plain else f"{safe}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


def studies() -> dict[str, pathlib.Path]:
    """Maps names to files of the papers' studies."""
    return {path.stem: path for path in sorted((shipped_configs()[0].parent / "studies").glob("*.py"))}


def read_grid(text: str) -> tuple[str, Any]:
    """Reads (config or "", grid) from a study file, a shipped study's name, or `option=value,value;option=value`."""
    path, shipped = pathlib.Path(text), studies()
    if "=" in text and not path.is_file():
        parts = [part.partition("=") for part in split_outside_brackets(text, ";")]
        return "", {option: split_outside_brackets(values, ",") for option, _, values in parts}
    if not path.is_file():
        if path.stem not in shipped or path.parent.name not in ("", "studies"):
            close = did_you_mean(path.stem, list(shipped))
            raise InputError(f"study {text!r} does not exist; shipped: {', '.join(shipped)}.{close}")
        path = shipped[path.stem]
    try:
        module = load_config_module(path)
    except Exception as error:  # whatever a user's file raises
        raise InputError(f"study {path} cannot be read ({type(error).__name__}: {error}).") from error
    return getattr(module, "CONFIG", ""), getattr(module, "GRID", None)


def split_outside_brackets(text: str, separator: str) -> list[str]:
    """Splits a text at separators outside brackets; an empty text has no parts."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        parts = [*parts, ""] if letter == separator and not depth else [*parts[:-1], parts[-1] + letter]
    return [part.strip() for part in parts] if text else []


def points(grid: Any, seeds: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """Options of every training: all combinations of a dict of lists, or the dicts of a list; seeds vary fastest."""
    if isinstance(grid, Mapping) and all(isinstance(values, list) for values in grid.values()):
        grid = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if not grid or not isinstance(grid, list) or not all(isinstance(options, Mapping) and options for options in grid):
        raise InputError("the grid must be a dict of option to list of values, or a list of dicts, and not empty.")
    if seeds and any({*SEEDS} & {*options} for options in grid):
        raise InputError("run.seed is in the grid and in --seeds; give it once.")
    return [{**options, **seed} for options in grid for seed in ([{SEED: seed} for seed in seeds] or [{}])]


def whole_config(arguments: Sequence[str]) -> list[configs.Config]:
    """All options of every stage as the training will read them; raises the same `InputError`s."""
    return configs.parse_stages(parse_flags([*arguments, "--workdir=unused"]).stages)


def config_names(specs: Sequence[str]) -> dict[str, str]:
    """Maps `FILE[:PRESET]` to names in tables, such as `congen:tiny` for `configs/congen.py:tiny`; empty for a single config."""
    if len(specs) == 1:
        return {specs[0]: ""}
    parts = [spec.partition(":") for spec in specs]
    names = [f"{pathlib.Path(file).stem}{colon}{preset}" for file, colon, preset in parts]
    return dict(zip(specs, names if len(set(names)) == len(names) else specs, strict=True))


def base_options(specs: Sequence[str], given: Sequence[str]) -> dict[str, Any]:
    """All options before the grid changes them; in sweeps over several configs, by the config's name."""
    of_names = {
        name: configs.flat_stages(
            whole_config([f"--config={spec}", *(flag for flag in given if takes(spec, option_named(flag), specs))])
        )
        for spec, name in config_names(specs).items()
    }
    return of_names.get("", of_names)


@functools.cache
def _options_of(spec: str) -> frozenset[str]:
    stages = parse_flags([f"--config={spec}", "--workdir=unused"]).stages
    own = {f"stage{number}.{name}" for number, stage in enumerate(stages, start=1) for name in option_names(stage)}
    everywhere = {f"{ALL}{name}" for stage in stages for name in option_names(stage)}
    return frozenset(own | everywhere | {SEED} | set(option_names(stages[0]) if len(stages) == 1 else ()))


def takes(spec: str, option: str, specs: Sequence[str]) -> bool:
    """Whether a config gets an option meant for all of `specs`: if it has the option, or if none has, so that each refuses it."""
    having = [one for one in specs if option in _options_of(one)] if len(specs) > 1 else []
    return not having or spec in having


def _of_stages(spec: str, name: str) -> str:
    """The option's name on the command line; a seed applies to every stage."""
    return f"{ALL}{name}" if name == SEED and f"stage2.{SEED}" in _options_of(spec) else name


def option_named(flag: str) -> str:
    """The option that a flag such as `--config.run.steps=3` sets."""
    return flag.split("=")[0].removeprefix("--config.")


def say_who_takes(specs: Sequence[str], options: Sequence[str]) -> None:
    """Prints a line for each option that only some of the configs have."""
    for option in options:
        without = [name for spec, name in config_names(specs).items() if not takes(spec, option, specs)]
        if without:
            print(f"{option} is given to the configs that have it, not to {', '.join(without)}")


def plan(specs: Sequence[str], given: Sequence[str], chosen: Sequence[Mapping[str, Any]]) -> list[Point]:
    """The trainings of each config with the chosen options; parses all command lines before the first training runs."""
    for name in map(option_named, given):
        if any(name in options for options in chosen):
            raise InputError(f"{name} is in the grid and on the command line; give it once.")
    planned: dict[str, Point] = {}
    names = config_names(specs)
    for spec, options in itertools.product(specs, chosen):
        options = {name: value for name, value in options.items() if takes(spec, name, specs)}
        flags = [flag for flag in given if takes(spec, option_named(flag), specs)]
        seeded = {_of_stages(spec, name): value for name, value in options.items()}
        arguments = (f"--config={spec}", *flags, *(f"--config.{name}={value}" for name, value in seeded.items()))
        try:
            whole = whole_config(arguments)
        except InputError as error:
            raise InputError(f"{spec}: {error}") if names[spec] else error from None
        of_config = {CONFIG: names[spec]} if names[spec] else {}
        point = Point(
            of_config | {name: value_of(whole, name) for name in options if name not in SEEDS}, whole, arguments
        )
        planned.setdefault(point.name, point)
    refuse_equal(list(planned.values()))
    return list(planned.values())


def value_of(stages: Sequence[configs.Config], name: str) -> Any:
    """The value of an option in the first stage that has it, with the type of the config."""
    of_stages = configs.flat_stages(stages)
    for stage in stages if name.startswith(ALL) else ():
        if name.removeprefix(ALL) in (options := configs.flat(stage)):
            return options[name.removeprefix(ALL)]
    return of_stages.get(name, of_stages.get(name.removeprefix("stage1.")))


def refuse_equal(planned: Sequence[Point]) -> None:
    """Raises `InputError` if two points are the same training, because the options that differ are not read."""
    seen: dict[str, Point] = {}
    for point in planned:
        key = json.dumps(training_of(point.stages), sort_keys=True)
        other = seen.setdefault(key, point)
        if other is not point:
            reasons = {name: why_unread(point.stages, name) for name in sorted({*point.options} - {CONFIG})}
            why = "".join(f"; {name} is not read, because {reason}" for name, reason in reasons.items() if reason)
            raise InputError(
                f"the points {other.shown} and {point.shown} are the same training{why}. Remove one of them."
            )
