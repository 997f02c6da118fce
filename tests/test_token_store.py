"""Token stores on disk: damaged, half-written, or read by several runs."""

import pytest

from jaxdistill.core import InputError
from jaxdistill.data import token_parts, tokenize

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


def test_ids_beyond_16_bits_survive(tmp_path):
    tokenizer = word_piece(more_words=70_000)
    store = store_of(tmp_path, ["extra69999 the"], tokenizer=tokenizer)
    assert store.ids("text", 0)[1] == tokenizer.token_to_id("extra69999") > 1 << 16
