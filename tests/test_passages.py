"""Long text in use: whole files as texts."""

import pytest

from jaxdistill.core import InputError
from jaxdistill.data import sources
from jaxdistill.paths import public_name

LONG = "  The cat sleeps. The dog sleeps, and rain. A cat in may?\n\nRain and a dog. The cat and a dog in rain.\n"
TEXTS = {"a.md": LONG, "b.txt": "Rain.", "c/d.rst": "", "c/e.txt": "A dog. The rain in may. " * 3}


@pytest.fixture
def documents(tmp_path, monkeypatch):
    """A folder of files, the working directory is the one above."""
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name, text in TEXTS.items():
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    (tmp_path / "docs" / ".hidden").write_bytes(b"\xff")
    return "files:docs"


def test_each_file_of_a_folder_is_one_text_as_python_reads_it(documents):
    assert list(sources.read([documents])) == [(text,) for text in TEXTS.values()]
    assert list(sources.read(["files:docs/**/*.txt"])) == [(TEXTS["b.txt"],), (TEXTS["c/e.txt"],)]
    digests = {sources.content_digest([spec]) for spec in ("files:docs/b.txt", "docs/b.txt")}
    assert len(digests) == 2 and sources.is_plain(documents)
    assert public_name("files:/home/me/docs/*.md") == "files:*.md"
    for spec, columns, said in (
        (documents, ("text", "second"), "a.md has no column 'second': a whole file is one text"),
        ("files:docs/x*", ("text",), "no file matches docs/x"),
        ("docs", ("text",), "docs is a folder; .* or files:docs for one text a file"),
        ("files:docs/.hidden", ("text",), "hidden:1 is not UTF-8"),
    ):
        with pytest.raises(InputError, match=said):
            list(sources.read([spec], columns))
    with pytest.raises(InputError, match="a.md is longer than 70 bytes"):
        list(sources.read(["files:docs/a.md"], line_bytes=70))
