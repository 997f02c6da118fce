"""Several trainings in a row: each hands its best student on to the next (two-stage DistilCSE)."""

import dataclasses
import json
import pathlib

import jax

from jaxdistill.config import Config, flat
from jaxdistill.distill import distill
from jaxdistill.train import read_config


def run_stages(config: Config, workdir: pathlib.Path, *, dry_run: bool, command: str) -> None:
    """Runs a training, or in `workdir/stage1`, `workdir/stage2` and so on all stages that `then` chains.

    A stage whose `student.model` is `previous` begins with the export of the stage before. A finished stage is not run
    again.
    """
    stages = in_order(config)
    if len(stages) == 1:
        distill(config, workdir, dry_run=dry_run, command=command)
        return
    for number, stage in enumerate(stages, start=1):
        folder = workdir / f"stage{number}"
        if is_finished(folder, stage):
            _say(f"stage {number} of {len(stages)} is finished: {folder / 'export'}")
            continue
        _say(f"stage {number} of {len(stages)}: {stage.objective['name']} in {folder}")
        distill(stage, folder, dry_run=dry_run, command=command)
        if dry_run:
            break  # the next stage's student is not there yet


def in_order(config: Config) -> list[Config]:
    """The stages, each without those that follow it."""
    stages = []
    while config is not None:
        stages.append(dataclasses.replace(config, then=None))
        config = config.then
    return stages


def is_finished(folder: pathlib.Path, config: Config) -> bool:
    """Whether the stage was run to its end with just these options."""
    if not (folder / "results.json").is_file() or not (folder / "export").is_dir():
        return False
    before = read_config(folder)
    done = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return before is not None and flat(before) == flat(config) == done["config"]


def _say(line: str) -> None:
    if jax.process_index() == 0:
        print(line)
