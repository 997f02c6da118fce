"""Stored targets: resumed exactly, never mixed up, and the user's own vectors checked."""

import contextlib
import hashlib
import json
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from jaxdistill.core import InputError
from jaxdistill.data import resumable, spread, targets
from jaxdistill.training import teacher

from process_threads import Processes

TEXTS = [f"sentence {i}" for i in range(25)]


def embed(texts):
    return np.array([[float(text.split()[1]), len(text)] for text in texts], np.float32)


def fill(store, embed, texts, **options):
    targets.fill_vectors(spread.opened(lambda: store, store.path.parent), embed, texts, **options)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(targets, "BLOCK_ROWS", 10)


def test_targets_are_made_in_blocks_and_read_back(tmp_path):
    store, done = targets.open_targets(tmp_path, "d", 25, 2), []
    fill(store, embed, TEXTS, advance=done.append)
    assert done == [0, 10, 10, 5] and store.complete
    np.testing.assert_array_equal(store.array, embed(TEXTS))
    np.testing.assert_array_equal(np.load(store.path), embed(TEXTS))


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    calls = []

    def stops(texts):
        calls.append(texts)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return embed(texts)

    with pytest.raises(KeyboardInterrupt):
        fill(targets.open_targets(tmp_path, "d", 25, 2), stops, TEXTS)
    again = targets.open_targets(tmp_path, "d", 25, 2)
    assert again.done == 20 and not again.complete
    with pytest.raises(InputError, match="20 of 25 rows"):
        _ = again.array
    fill(again, stops, TEXTS)
    assert calls[3] == TEXTS[20:]
    np.testing.assert_array_equal(again.array, embed(TEXTS))


def test_rows_that_were_written_but_not_noted_are_written_again(tmp_path):
    store = targets.open_targets(tmp_path, "d", 25, 2)
    store.append(embed(TEXTS[:10]))
    note = store.file.note.read_text()
    store.append(embed(TEXTS[10:20]) + 99)
    store.file.note.write_text(note)
    again = targets.open_targets(tmp_path, "d", 25, 2)
    fill(again, embed, TEXTS)
    np.testing.assert_array_equal(again.array, embed(TEXTS))


def test_bytes_that_changed_are_made_again(tmp_path, caplog):
    store = targets.open_targets(tmp_path, "d", 25, 2)
    fill(store, embed, TEXTS)
    content = bytearray(store.path.read_bytes())
    content[-9] ^= 0xFF
    store.path.write_bytes(content)
    again = targets.open_targets(tmp_path, "d", 25, 2)
    assert again.done == 0 and "is damaged; starting over" in caplog.text
    fill(again, embed, TEXTS)
    np.testing.assert_array_equal(again.array, embed(TEXTS))


@pytest.mark.parametrize("count", [2, 4])
def test_processes_make_a_part_each_of_the_same_file_and_go_on_after_a_kill(tmp_path, monkeypatch, count):
    monkeypatch.setattr(targets, "BLOCK_ROWS", 3)  # nine blocks
    made = []

    def make(*, stops_at=""):
        def noted(texts):
            if stops_at in texts:
                raise InputError("stopped")
            made.append((spread.processes.index(), texts))
            return embed(texts)

        found = targets.cached_vectors(tmp_path / "all", "teacher", noted, TEXTS, 2, what="", progress=False)
        return np.array(found)

    alone = targets.cached_vectors(tmp_path / "one", "teacher", embed, TEXTS, 2, what="", progress=False)
    monkeypatch.setattr(spread, "processes", Processes(count))
    stopped = spread.processes.run(lambda: make(stops_at=TEXTS[13]))  # in the fifth block
    assert all(isinstance(error, InputError | threading.BrokenBarrierError) for error in stopped)
    before = made[:]
    monkeypatch.setattr(spread, "processes", Processes(count))
    for found in spread.processes.run(make):
        np.testing.assert_array_equal(found, alone)
    one, several = (next((tmp_path / name).rglob("targets.npy")) for name in ("one", "all"))
    assert several.read_bytes() == one.read_bytes()
    assert sorted(path.name for path in several.parent.iterdir()) == sorted(path.name for path in one.parent.iterdir())
    for kept in range(12 // (3 * count) * count):  # whole rounds before the kill are not made again
        assert TEXTS[3 * kept : 3 * kept + 3] not in [texts for _, texts in made[len(before) :]]
    shares = np.bincount([number for number, _ in made], minlength=count)
    assert shares.min() >= 9 // count - 1


def test_hosts_that_do_not_share_the_folder_make_a_part_each_of_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "BLOCK_ROWS", 4)
    made, four = [], Processes(4)  # two of each host
    monkeypatch.setattr(spread, "processes", four)
    monkeypatch.setattr(
        spread, "broadcast", lambda own, source: np.array(four.gathered(own.tolist())[source], own.dtype)
    )
    digest = hashlib.sha256(b"teacher").hexdigest()[:32]
    begun = targets.open_targets(tmp_path / "1", digest, 25, 2)  # a killed run has left more on one host
    begun.append(embed(TEXTS[:8]))
    begun.file.unlock()

    def make():
        def noted(texts):
            made.extend(texts)
            return embed(texts)

        folder = tmp_path / str(four.index() // 2)
        return np.array(targets.cached_vectors(folder, "teacher", noted, TEXTS, 2, what="", progress=False))

    for found in four.run(make):
        np.testing.assert_array_equal(found, embed(TEXTS))
    assert sorted(made) == sorted(TEXTS)
    one, two = (path.read_bytes() for path in tmp_path.rglob("targets.npy"))
    assert one == two


@pytest.mark.parametrize("hosts", ["ab", "ba"])
def test_files_of_several_hosts_are_opened_in_the_hosts_order_whatever_the_processes_are(tmp_path, monkeypatch, hosts):
    two, order = Processes(2), []
    monkeypatch.setattr(spread, "processes", two)
    monkeypatch.setattr(spread.socket, "gethostname", lambda: hosts[two.index()])

    def opened():
        def open_file():
            order.append(hosts[two.index()])
            return targets.open_targets(tmp_path / hosts[two.index()], "d", 25, 2)

        return spread.opened(open_file, tmp_path / hosts[two.index()]).shared

    assert two.run(opened) == [False, False] and order == ["a", "b"]


def joined(processes, own):
    """Stands in for `mesh.all_gathered`."""
    return np.concatenate([np.array(one, own.dtype) for one in processes.gathered(own.tolist())])


def test_of_one_call_each_process_computes_a_part_and_an_error_in_one_is_raised_in_all(monkeypatch):
    three, made = Processes(3), []
    monkeypatch.setattr(spread, "processes", three)
    monkeypatch.setattr(spread, "all_gathered", lambda own: joined(three, own))

    def embedded(texts, *, role):
        if role[0] == "refused":
            raise InputError("refused")
        made.append(list(zip(texts, role, strict=True)))
        return embed(texts).astype(np.float64)

    for texts in (TEXTS, TEXTS[:2]):  # the third process has none of two
        roles = [f"role of {text}" for text in texts]
        for found in three.run(lambda texts=texts, roles=roles: spread.over_processes(embedded)(texts, role=roles)):
            np.testing.assert_array_equal(found, embed(texts))
            assert found.dtype == np.float64
    assert sorted(map(len, made)) == [1, 1, 7, 9, 9]
    assert all(role == f"role of {text}" for part in made for text, role in part)
    roles[1] = "refused"
    refused = three.run(lambda: pytest.raises(InputError, spread.over_processes(embedded), TEXTS[:2], role=roles))
    assert ["refused" in str(one.value) for one in refused] == [True] * 3


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_work_that_fails_in_one_process_fails_in_all_and_the_next_goes_on(monkeypatch, calls):
    three = Processes(3)
    monkeypatch.setattr(spread, "processes", three)
    monkeypatch.setattr(spread, "all_gathered", lambda own: joined(three, own))
    whole = spread.over_processes(lambda texts, *, role: embed(texts))

    def work(fails_in, fails_after):
        for number in range(2):
            if three.index() in fails_in and number == fails_after:
                raise InputError("unreadable")
            whole(TEXTS, role="")
        if three.index() in fails_in:
            raise InputError("unreadable")
        return "read"

    def one_after_another():
        told = []
        for fails_in in [(1,), (), (0, 2), (0, 1, 2)]:
            try:
                told.append(spread.together(lambda fails_in=fails_in: work(fails_in, calls)))
            except InputError as error:
                told.append(str(error))
        return told

    assert three.run(one_after_another) == [["unreadable", "read", "unreadable", "unreadable"]] * 3


ANOTHER_PROGRAM = """
import logging, sys
import numpy as np
from jaxdistill.data import targets
logging.basicConfig()
store = targets.open_targets(sys.argv[1], "d", 25, 2)
print(store.done, float(store.array.sum()))
"""


def test_another_program_waits_and_takes_what_the_first_has_made(tmp_path):
    store = targets.open_targets(tmp_path, "d", 25, 2)
    command = [sys.executable, "-c", ANOTHER_PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as other:
        assert "another program is writing" in other.stderr.readline()
        fill(store, embed, TEXTS)
        out, _ = other.communicate(timeout=60)
    assert out == f"25 {float(embed(TEXTS).sum())}\n"
    assert not list(tmp_path.rglob("*.lock"))


def test_complete_targets_are_not_made_again(tmp_path):
    fill(targets.open_targets(tmp_path, "d", 25, 2), embed, TEXTS)
    again = targets.open_targets(tmp_path, "d", 25, 2)
    fill(again, lambda texts: pytest.fail("made again"), TEXTS)
    assert again.complete


def test_another_digest_has_targets_of_its_own(tmp_path):
    fill(targets.open_targets(tmp_path, "d", 25, 2), embed, TEXTS)
    assert targets.open_targets(tmp_path, "e", 25, 2).done == 0
    assert targets.open_targets(tmp_path, "d", 25, 2).done == 25


def test_targets_of_another_text_view_precision_or_teacher_have_another_digest(monkeypatch):
    monkeypatch.setattr(teacher.targets, "cached_vectors", lambda folder, of, *given, **more: of)
    digests = set()
    for digest, view, dtype, model in ("atfm", "btfm", "asfm", "athm", "atfn"):
        views, dtypes = {"t": "text", "s": "second"}, {"f": np.float32, "h": np.float16}
        of_model = SimpleNamespace(digest=lambda model=model: model, role_prompts={}, source="")
        made = teacher.Targets.__new__(teacher.Targets)
        made.text = SimpleNamespace(columns=("text", "second"), content_digest=digest, texts=lambda *given: [])
        made.embedders = [SimpleNamespace(model=of_model, encode=len, width=2)]
        config = SimpleNamespace(data=SimpleNamespace(cache_folder="cache"))
        digests.add(made._stored(config, views[view], dtypes[dtype], progress=False))
    assert len(digests) == 5


@pytest.mark.parametrize("change", ["digest", "width", "cut", "garbage"])
def test_damaged_or_foreign_targets_are_made_again(tmp_path, caplog, change):
    store = targets.open_targets(tmp_path, "d", 25, 2)
    fill(store, embed, TEXTS)
    note = json.loads(store.file.note.read_text())
    if change in note["origin"]:
        store.file.note.write_text(json.dumps(note | {"origin": note["origin"] | {change: "other"}}))
    elif change == "cut":
        store.path.write_bytes(store.path.read_bytes()[:-8])
    else:
        store.file.note.write_text("{")
    assert targets.open_targets(tmp_path, "d", 25, 2).done == 0
    assert "starting over" in caplog.text


def test_a_vector_that_is_not_finite_is_named_by_its_row(tmp_path):
    store = targets.open_targets(tmp_path, "d", 25, 2)
    with pytest.raises(InputError, match="row 13 is not finite"):
        fill(store, lambda texts: np.where(embed(texts) == 13, np.nan, embed(texts)), TEXTS)
    assert store.done == 10


def test_a_full_disk_is_one_clear_line(tmp_path, monkeypatch):
    store = targets.open_targets(tmp_path, "d", 25, 2)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(resumable.os, "fsync", full)
    with pytest.raises(InputError, match="targets.npy could not be written: no space left on the disk"):
        store.append(embed(TEXTS[:10]))
    assert targets.open_targets(tmp_path, "d", 25, 2).done == 0


def test_texts_and_rows_must_agree(tmp_path):
    with pytest.raises(InputError, match="24 texts for targets of 25 rows"):
        fill(targets.open_targets(tmp_path, "d", 25, 2), embed, TEXTS[:24])
    with pytest.raises(InputError, match=r"the shape \(3,\) do not go into .*, of \(2,\)"):
        targets.open_targets(tmp_path, "d", 25, 2).append(np.zeros((4, 3)))


def test_the_users_vectors_are_mapped_not_read(tmp_path):
    np.save(tmp_path / "v.npy", embed(TEXTS))
    found = targets.checked_own_vectors(f"vectors:{tmp_path}/v.npy", 25)
    assert isinstance(found.base, np.memmap)
    np.testing.assert_array_equal(found, embed(TEXTS))
    np.testing.assert_array_equal(targets.Selected(found, np.array([4, 7, 9]))[np.array([2, 0])], embed(TEXTS)[[9, 4]])


def test_whitened_targets_have_equal_variances_in_all_directions_that_vary():
    draw = np.random.default_rng(0)
    cone = draw.normal(size=(4000, 3)) * [0.5, 0.2, 0.1] + [4.0, 2.0, 1.0]
    flat = np.concatenate([cone, cone.sum(axis=1, keepdims=True)], axis=1).astype(np.float32)
    rows = np.arange(4000)
    white, centred = targets.Whitened(flat, power=1.0), targets.Whitened(targets.Selected(flat, rows), power=0.0)
    assert white.shape == (4000, 4) and len(white) == 4000
    np.testing.assert_allclose(np.linalg.norm(white[rows], axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(np.cov(white[rows].T), np.diag([1 / 3, 1 / 3, 1 / 3, 0.0]), atol=0.02)
    known = flat - flat.mean(axis=0, dtype=np.float64)
    known /= np.linalg.norm(known, axis=1, keepdims=True)
    np.testing.assert_allclose(centred[rows[:9]] @ centred[rows[:9]].T, known[:9] @ known[:9].T, atol=1e-5)
    first = targets.Whitened(flat, power=0.0, components=1)
    assert first.shape == (4000, 1)
    np.testing.assert_array_equal(np.abs(first[rows]), 1.0)


BAD = [
    (np.zeros((24, 2), np.float32), "has 24 rows of width 2, the text has 25"),
    (np.zeros(25, np.float32), r"holds float32 \(25,\); it must be a float array"),
    (np.zeros((25, 2), np.int64), r"holds int64 \(25, 2\)"),
    (np.where(np.arange(50).reshape(25, 2) == 43, np.inf, 0.0), "row 21 is not finite"),
    (np.where(np.arange(50).reshape(25, 2) == 43, 1e30, 1.0), r"row 21 has the length 1.0e\+30"),
    (np.array([[{}]] * 25), r"holds object \(25, 1\)"),
]


@pytest.mark.parametrize(("array", "message"), BAD, ids=range(len(BAD)))
def test_vectors_that_cannot_be_targets_are_refused(tmp_path, monkeypatch, array, message):
    monkeypatch.setattr(targets.vector_files, "BLOCK_ROWS", 10)
    np.save(tmp_path / "v.npy", array)
    with pytest.raises(InputError, match=message):
        targets.checked_own_vectors(tmp_path / "v.npy", 25)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (np.where(np.arange(25) == 21, 0.0, 1.0), "v.npy row 21 is a zero vector"),
        (np.where(np.arange(25) == 3, 0.0, 1.0), ""),  # a row that is not trained on
        (None, "v.npy: the vectors of all 24 rows point the same way as that of row 0"),
    ],
)
def test_targets_that_teach_nothing_are_refused(tmp_path, monkeypatch, scale, message):
    monkeypatch.setattr(targets.vector_files, "BLOCK_ROWS", 10)
    drawn = np.random.default_rng(0).normal(size=(25, 3))
    np.save(tmp_path / "v.npy", np.outer(np.arange(1, 26), drawn[0]) if scale is None else drawn * scale[:, None])
    with pytest.raises(InputError, match=message) if message else contextlib.nullcontext():
        targets.checked_own_vectors(f"vectors:{tmp_path}/v.npy", 25, np.delete(np.arange(25), 3))


def test_a_vectors_file_that_is_missing_or_broken_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        targets.checked_own_vectors(tmp_path / "v.npy", 25)
    for content in (b"", b"\x93NUMPY\x01\x00", b"text"):
        (tmp_path / "v.npy").write_bytes(content)
        with pytest.raises(InputError, match="is not a complete .npy file"):
            targets.checked_own_vectors(tmp_path / "v.npy", 25)
