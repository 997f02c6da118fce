"""Outputs that must not be lost."""

from faults.harness import Case, Ended, Room


def _output_is_input(room: Room) -> Ended:
    text = room.text()
    return room.run("encode", f"--model={room.export()}", f"--input={text}", f"--output={text}")


CASES = [Case("`encode` with its input as the output", _output_is_input, says="must end in", quick=True)]
