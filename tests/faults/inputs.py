"""Texts, tables and vectors that cannot be read."""

from faults.harness import Case, Ended, Room


def _folder_as_text(room: Room) -> Ended:
    return room.train(data__text=room.folder)


def _no_file(room: Room) -> Ended:
    return room.train(data__text=room.folder / "none.txt")


CASES = [
    Case("a folder as the text", _folder_as_text, says="is a folder", quick=True),
    Case("a text that does not exist", _no_file, says="does not exist", quick=True),
]
