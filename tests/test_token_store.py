"""Token stores on disk: damaged, half-written, or read by several runs."""

import pytest

from jaxdistill.cluster import processes
from jaxdistill.core import InputError
from jaxdistill.data import sources, token_parts, tokenize

from tiny_text import SENTENCES, store_of, word_piece


def flipped(content: bytes) -> bytes:
    """One bit of the byte in the middle changed."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def test_the_tokenizers_own_padding_and_truncation_do_not_matter(tmp_path):
    assert store_of(tmp_path, SENTENCES).digest == store_of(tmp_path, SENTENCES, tokenizer=word_piece(9)).digest


@pytest.mark.parametrize("name", ["row", "0.starts", "keys", "store.json"])
@pytest.mark.parametrize("damage", [lambda content: content[:2], flipped], ids=["cut", "flipped"])
def test_a_damaged_store_is_built_again(tmp_path, caplog, name, damage):
    file = store_of(tmp_path, SENTENCES).folder / name
    content = file.read_bytes()
    file.write_bytes(damage(content))
    store_of(tmp_path, SENTENCES)
    assert file.read_bytes() == content
    assert "is damaged; rebuilding it" in caplog.text


def test_processes_wait_for_each_other_alike_whether_their_caches_have_the_parts(tmp_path, monkeypatch):
    """Hosts with caches of their own call the same collectives, or one would read what another one means for a later call."""
    waited = []
    monkeypatch.setattr(processes, "wait", waited.append)
    store = store_of(tmp_path, SENTENCES)
    new = waited.copy()
    waited.clear()
    (store.folder / "store.json").unlink()
    store_of(tmp_path, SENTENCES)
    assert waited == new and "all parts are written" in new


def test_a_build_that_fails_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputError, match="text.txt:2 is not UTF-8"):
        (tmp_path / "text.txt").write_bytes(b"good\n\xff\n")
        options = {"tokenizer": word_piece(), "max_length": 16, "cache_folder": tmp_path / "cache"}
        tokenize.build_store([str(tmp_path / "text.txt")], **options)
    assert not (tmp_path / "cache").exists()


def test_a_text_that_changes_while_it_is_tokenised_makes_no_store(tmp_path, monkeypatch):
    tokenise = token_parts.tokenised_words

    def tokenise_and_change(*given, **options):
        (tmp_path / "text.txt").write_text("another text\n")
        return tokenise(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(token_parts, "tokenised_words", tokenise_and_change)
        with pytest.raises(InputError, match="text.txt changed while it was read"):
            store_of(tmp_path, SENTENCES)
    assert not list((tmp_path / "cache").rglob("part-*.arrow")) and not list((tmp_path / "cache").rglob("store.json"))
    assert store_of(tmp_path, SENTENCES).texts()[0] == SENTENCES[0]


def test_a_text_that_changes_before_the_store_is_written_leaves_no_part(tmp_path, monkeypatch):
    """As text of a hub, whose changes no file shows."""
    monkeypatch.setattr(sources.Watched, "check", lambda _: None)
    test_a_text_that_changes_while_it_is_tokenised_makes_no_store(tmp_path, monkeypatch)


def test_two_runs_may_build_the_same_store(tmp_path, monkeypatch):
    write = tokenize._write

    def overtaken(*arguments, **named):
        monkeypatch.setattr(tokenize, "_write", write)
        other = store_of(tmp_path, SENTENCES)
        write(*arguments, **named)
        assert other.folder.exists()

    monkeypatch.setattr(tokenize, "_write", overtaken)
    assert store_of(tmp_path, SENTENCES).rows == len(SENTENCES)
    assert len(list((tmp_path / "cache").glob("*/store.json"))) == 1


def test_a_full_disk_is_one_clear_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokenize._Files, "append", full)
    with pytest.raises(InputError, match="cannot be written in .*: No space left on device; free space"):
        store_of(tmp_path, SENTENCES)
    assert not list((tmp_path / "cache").rglob("store.json"))


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["", " "], {}, "every row has an empty sentence"),
        (["x"], {"max_length": 2}, "max_length=2 leaves no token for the text; .* is 3"),
        (["x"], {"columns": ["sentence"]}, "one of them must be 'text'"),
    ],
)
def test_what_cannot_be_tokenised_is_refused(tmp_path, lines, options, message):
    with pytest.raises(InputError, match=message):
        store_of(tmp_path, lines, **options)


def test_a_column_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="no column 'de'; it has text"):
        store_of(tmp_path, ["x"]).lengths("de")


def test_ids_beyond_16_bits_survive(tmp_path):
    tokenizer = word_piece(more_words=70_000)
    store = store_of(tmp_path, ["extra69999 the"], tokenizer=tokenizer)
    assert store.ids("text", 0)[1] == tokenizer.token_to_id("extra69999") > 1 << 16
