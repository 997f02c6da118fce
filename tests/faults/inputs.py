"""Texts, tables and vectors that cannot be read."""

import gzip
import os
from collections.abc import Callable

import numpy as np

from faults.harness import Case, Ended, Room


def _text(name: str, content: bytes) -> Callable[[Room], Ended]:
    """Trains on a file of this content."""

    def do(room: Room) -> Ended:
        path = room.folder / name
        path.write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
        return room.train(data__text=path)

    return do


def _link(target: str) -> Callable[[Room], Ended]:
    def do(room: Room) -> Ended:
        (room.folder / "text.txt").symlink_to(target)
        return room.train(data__text=room.folder / "text.txt")

    return do


def _pipe(room: Room) -> Ended:
    os.mkfifo(room.folder / "text.txt")
    return room.train(data__text=room.folder / "text.txt")


def _unknown(room: Room) -> Ended:
    (room.folder / "text.txt").write_text("แมวนอนหลับในสวนกับสุนัข\n" * 200, encoding="utf-8")
    return room.train(data__text=room.folder / "text.txt", data__dedupe=False)


def _unknown_vocabulary(room: Room) -> Ended:
    """Long sentences without spaces, from which the student's own WordPiece vocabulary is trained."""
    sentence = "แมวนอนหลับในสวนกับสุนัขตัวใหญ่ที่บ้านของฉันทุกวันตอนเช้า" * 3
    (room.folder / "text.txt").write_text(
        "".join(f"{sentence[number % 40 :]}\n" for number in range(200)), encoding="utf-8"
    )
    np.save(room.folder / "v.npy", np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32))
    teacher = {"teacher__kind": "vectors", "teacher__model": None, "teacher__file": room.folder / "v.npy"}
    student = {
        "student__model": room.export(),
        "student__kind": "fresh",
        "student__layers": None,
        "student__vocabulary": 300,
        "student__width": 16,
        "student__depth": 1,
    }
    short = {"run__steps": 2, "evals__every": 2, "data__dedupe": False}
    return room.train(data__text=room.folder / "text.txt", **teacher, **student, **short)


def _long_vectors(room: Room) -> Ended:
    np.save(room.folder / "v.npy", np.full((600, 16), 1e30, np.float32))
    return room.train(
        teacher__kind="vectors", teacher__model=None, teacher__file=room.folder / "v.npy", student__model=room.export()
    )


def _vectors(content: bytes) -> Callable[[Room], Ended]:
    def do(room: Room) -> Ended:
        (room.folder / "v.npy").write_bytes(content)
        student = room.export()
        return room.train(
            teacher__kind="vectors", teacher__model=None, teacher__file=room.folder / "v.npy", student__model=student
        )

    return do


CASES = [
    Case("vectors of 1e30", _long_vectors, says=r"v.npy row 0 has the length 4.0e\+30"),
    Case(
        "a folder as the text", lambda room: room.train(data__text=room.folder), says="is a folder", quick=True
    ),
    Case(
        "a text that does not exist",
        lambda room: room.train(data__text=room.folder / "none.txt"),
        says="does not exist",
        quick=True,
    ),
    Case("a line of 40 MB", _text("a.txt", b"a" * (40 << 20)), says="longer than 16,777,216 bytes.*max_line_bytes"),
    Case("a gzip bomb: 300 MB in one line", _text("a.txt.gz", b"a" * (300 << 20)), says="longer than 16,777,216 bytes"),
    Case("an empty gzip file", _text("a.txt.gz", b""), says="is empty"),
    Case("a pipe as the text", _pipe, says="is a pipe; only regular files can be read", quick=True),
    Case("`/dev/zero` as the text", _link("/dev/zero"), says="is a device; only regular files can be read"),
    Case("`/proc/self/environ` as the text", _link("/proc/self/environ"), says="is a file of the kernel"),
    Case("a column twice", _text("a.tsv", b"text\ttext\nx\ty\n"), says="has the column 'text' twice"),
    Case("a whole number of 5,000 digits", _text("a.jsonl", b'{"n": ' + b"1" * 5000 + b"}\n"), says="a.jsonl:1 is not valid JSON"),
    Case("JSON nested 100,000 deep", _text("a.jsonl", b"[" * 10**5 + b"\n"), says="a.jsonl:1 .* nested too deeply"),
    Case("bytes that are not UTF-8", _text("a.txt", b"good\ncaf\xe9\n"), says="a.txt:2 is not UTF-8"),
    Case("a damaged Parquet table", _text("a.parquet", b"PAR1 damaged PAR1"), says="is not a complete Parquet file"),
    Case("vectors in a damaged archive", _vectors(b"PK\x03\x04" + bytes(40)), says="is not a complete .npy file of numbers"),
    Case("old Mac line ends (CR)", _text("a.txt", b"".join(b"sentence %d\r" % n for n in range(400))), says="report:", status=0, left=("run/*",)),
    Case("Thai without spaces, with its own vocabulary", _unknown_vocabulary, says="report:", status=0, left=("run/*",)),
    Case("a language that the tokenizer does not know", _unknown, says="does not know the text.*--config.data.max_unknown="),
]  # fmt: skip
