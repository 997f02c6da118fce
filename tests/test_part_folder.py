"""Folders of parts: resumed exactly, shared by processes and runs, never mixed up; locally and in a bucket."""

import errno
import json

import numpy as np
import pytest

from jaxdistill.cluster import shared_folder
from jaxdistill.core import InputError
from jaxdistill.data import part_folder
from jaxdistill.data.part_folder import PartFolder, read_origin

from process_threads import Processes

ROWS = np.arange(25, dtype=np.float32)


def opened(folder, origin="text", **options):
    return PartFolder(folder, {"of": origin}, rows=25, part_rows=10, suffix=".npy", **options)


def filled(parts, stops_at=None, made=None):
    """Writes the missing parts; like a killed run, none from `stops_at` on."""
    for part in parts.missing():
        if part == stops_at:
            raise InputError("stopped")
        rows = ROWS[np.array(parts.rows_of(part))]
        parts.write(part, lambda path, rows=rows: np.save(path, rows), {"odd": int((rows % 2).sum())})
        if made is not None:
            made.append(part)
    return parts.finish()


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def assert_whole(parts):
    np.testing.assert_array_equal(np.concatenate([np.load(parts.path(part)) for part in range(3)]), ROWS)


def test_a_folder_has_its_parts_and_an_index_of_them(tmp_path):
    parts = opened(tmp_path / "p")
    assert not parts.is_complete and dict(filled(parts)) == {"rows": 25, "odd": 12}
    assert_whole(parts)
    assert names(tmp_path / "p")[-3:] == [f"part-0000{part}-of-00003.npy" for part in range(3)]
    index = json.loads((tmp_path / "p" / ".jaxdistill" / "index.json").read_text())
    assert [part["rows"] for part in index["parts"]] == [10, 10, 5] and index["origin"]["of"] == "text"
    again = opened(tmp_path / "p")
    assert again.is_complete and not [*again.missing()] and again.counts()["odd"] == 12


def test_a_killed_run_goes_on_with_the_parts_that_are_missing(tmp_path):
    with pytest.raises(InputError, match="stopped"):
        filled(opened(tmp_path / "p"), stops_at=1)
    (tmp_path / "p" / ".jaxdistill" / "draft-0-1-part-00001-of-00003.npy").write_text("half")
    again, made = opened(tmp_path / "p"), []
    assert not again.is_complete and again.counts()["rows"] == 10
    filled(again, made=made)
    assert made == [1, 2] and not [name for name in names(tmp_path / "p") if "draft" in name]
    assert_whole(again)


@pytest.mark.parametrize("damage", ["bytes", "cut", "removed", "note"])
def test_a_damaged_part_alone_is_made_again(tmp_path, caplog, damage):
    parts, made = opened(tmp_path / "p"), []
    filled(parts)
    path, content = parts.path(1), bytearray(parts.path(1).read_bytes())
    content[-3] ^= 0xFF
    {
        "bytes": lambda: path.write_bytes(content),
        "cut": lambda: path.write_bytes(content[:-4]),
        "removed": path.unlink,
        "note": (tmp_path / "p" / ".jaxdistill" / "part-00001.json").unlink,
    }[damage]()
    again = opened(tmp_path / "p")
    assert not again.is_complete
    filled(again, made=made)
    assert made == [1] and ("part-00001-of-00003.npy is damaged" in caplog.text) == (damage != "note")
    assert_whole(again)


@pytest.mark.parametrize("content", [None, "{"])
def test_parts_of_another_origin_are_removed(tmp_path, caplog, content):
    filled(opened(tmp_path / "p"))
    (tmp_path / "p" / "mine.txt").write_text("mine")
    if content:
        (tmp_path / "p" / part_folder.ORIGIN).write_text(content)
    again, made = opened(tmp_path / "p", "text" if content else "other"), []
    assert ("has no readable .jaxdistill/origin.json" if content else "(of was text, is other)") in caplog.text
    assert names(tmp_path / "p") == [".jaxdistill/origin.json", "mine.txt"]
    filled(again, made=made)
    assert made == [0, 1, 2]


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "part-00000-of-00001.npy").write_text("mine")
    with pytest.raises(InputError, match="holds files that are not parts of this program; name another folder"):
        opened(tmp_path)
    assert names(tmp_path) == ["part-00000-of-00001.npy"] and read_origin(tmp_path) is None


def test_a_full_disk_is_one_clear_line_and_leaves_no_part(tmp_path):
    def full(path):
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    parts = opened(tmp_path)
    with pytest.raises(InputError, match="part-00000-of-00003.npy could not be written: no space left on the disk"):
        parts.write(0, full)
    assert names(tmp_path) == [".jaxdistill/origin.json"]


@pytest.mark.parametrize("folders", [1, 2])
def test_processes_share_the_parts_of_the_folder_that_they_see(tmp_path, monkeypatch, folders):
    four, made = Processes(4), []
    for module in (shared_folder, part_folder):
        monkeypatch.setattr(module, "processes", four)

    def work():
        folder = tmp_path / str(four.index() * folders // 4)
        parts, own = opened(folder), []
        counts = filled(parts, made=own)
        made.append((folder.name, own))
        return parts.is_shared, dict(counts)

    assert four.run(work) == [(folders == 1, {"rows": 25, "odd": 12})] * 4
    of_folder = [[], [0], [1], [2]] if folders == 1 else [[0, 2], [1]]
    assert sorted(made) == [(str(folder), own) for folder in range(folders) for own in of_folder]
    assert len({tuple((folder / name).read_bytes() for name in names(folder)) for folder in tmp_path.iterdir()}) == 1
