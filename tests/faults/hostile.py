"""Model folders that are damaged or hostile."""

from faults.harness import Case, Ended, Room


def _no_config(room: Room) -> Ended:
    model = room.export()
    (model / "config.json").unlink()
    return room.train(teacher__model=model)


CASES = [Case("a model without `config.json`", _no_config, says="config.json is missing", quick=True)]
