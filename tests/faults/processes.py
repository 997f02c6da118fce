"""Processes, signals, locks and file systems."""

from faults.harness import Case, Ended, Room


def _no_coordinator(room: Room) -> Ended:
    return room.run("main", *room.arguments(), variables={"JAX_COORDINATOR_ADDRESS": "nonsense"})


CASES = [Case("`JAX_COORDINATOR_ADDRESS=nonsense`", _no_coordinator, says="could not be joined")]
