"""Finds the row of a paper that a run repeats, and the options in which the run differs from that row's preset."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from jaxdistill.config import WITHOUT_EFFECT, Config, flat, parse_stages
from jaxdistill.config.files import load_config
from jaxdistill.core import InputError
from jaxdistill.evals import sts
from jaxdistill.reporting import papers
from jaxdistill.reporting.papers import Cited

SHOWN = 6
"""Most differing options that a line names."""


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """The row of `run.paper`, and how the run differs from it."""

    row: Cited
    preset: str
    """The closest preset that repeats the row; empty if none does."""
    changed: tuple[str, ...]
    """Options in which the run differs from that preset."""

    def beside(self, measured: Collection[str]) -> Cited:
        """The paper's row, reduced to scores that the run has measured; if it has measured none, to STS scores."""
        return self.row.only(measured if {*measured} & {*self.row.scores} else (*sts.TESTS, "average"))

    def line(self, measured: Collection[str]) -> str:
        """The tables that the row's measured scores come from, and how the run differs."""
        differences = "no preset repeats this row"
        if self.preset:
            others = [f"{len(self.changed) - SHOWN} others"] * (len(self.changed) > SHOWN)
            changed = ", ".join([*self.changed[:SHOWN], *others])
            differences = f"this run has the options of configs/{self.preset}" + f" except {changed}" * bool(changed)
        return f"{self.row.label} ({self.beside(measured).tables}); {differences}"


def repeated(config: Config) -> Repeated | None:
    """The row that a stage's `run.paper` names; None if it is empty. Raises `InputError` if there is no such row."""
    if not config.run.paper:
        return None
    row = papers.cited(config.run.paper, "run.paper")
    options = _compared(config)
    candidates = [
        (preset, tuple(name for name in options | stage if options.get(name) != stage.get(name)))
        for preset in papers.presets_of(row.reference)
        for stage in _stages_of(preset, row.reference)
    ]
    preset, changed = min(candidates, key=lambda one: len(one[1]), default=("", ()))
    return Repeated(row=row, preset=preset, changed=changed)


def _stages_of(preset: str, reference: str) -> list[dict[str, Any]]:
    """The options of a preset's stages that repeat the row; none if there is no such preset."""
    try:
        stages = parse_stages(load_config(preset))
    except InputError:
        return []
    return [_compared(stage) for stage in stages if stage.run.paper == reference]


def _compared(config: Config) -> dict[str, Any]:
    return {name: value for name, value in flat(config).items() if name not in WITHOUT_EFFECT}
