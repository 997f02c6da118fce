"""Exports a kept checkpoint of a run."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxdistill.cli import Parser, local_path, run
from jaxdistill.core import InputError
from jaxdistill.folders import refuse_foreign
from jaxdistill.reporting.model_card import Facts, read_facts
from jaxdistill.training.export import card_of, export, weights_bytes
from jaxdistill.training.loop import restored_student


def checkpoint_facts(workdir: str | Path, step: int, name: str) -> Facts:
    """What the run's `card.json` says about the checkpoint of `step`; its scores only if they are of that step."""
    facts = read_facts(workdir) or Facts(name=name)
    scores = facts.scores if facts.steps == step else {}
    return dataclasses.replace(facts, name=name, steps=step, scores=scores)


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.export`."""
    parser = Parser(prog="python -m jaxdistill.export", description=__doc__)
    parser.add_argument("--workdir", type=local_path, required=True, help="folder of the run")
    parser.add_argument("--step", required=True, type=int, help="a kept checkpoint; a wrong one lists those there are")
    parser.add_argument("--out", type=local_path, required=True, help="folder to write")
    given = parser.parse_args(arguments)
    if not Path(given.workdir).is_dir():
        raise InputError(f"{given.workdir} does not exist; --workdir is the folder of a run.")
    # Before the checkpoint is restored, which takes longer.
    refuse_foreign(Path(given.out).resolve())
    model = restored_student(given.workdir, given.step)
    facts = checkpoint_facts(given.workdir, given.step, Path(given.out).resolve().name)
    folder = export(model, given.out, card=card_of(model, facts))
    print(
        f"{folder}: {model.parameter_count:,} parameters, {weights_bytes(folder) / 1e6:.1f} MB, reloaded and compared"
    )


if __name__ == "__main__":
    run(main)
