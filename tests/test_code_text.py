"""docs/code_text.py: questions and functions of Python files."""

import pytest

from conftest import docs_script

SOURCE = '''
def sort_by_length_of_word(words):
    """Sorts words by their length. Longest last."""
    return sorted(words, key=len)


def undocumented(words):
    return words


class Reader:
    async def read_all_lines(self):
        """
        Reads the file into a list

        More about it.
        """
        return [line async for line in self]


def first_of_all(words):
    """Returns the first `word` of the list."""
    return words[0]
'''


@pytest.fixture(scope="module")
def code_text():
    return docs_script("code_text")


def test_each_documented_function_is_a_row_once(code_text, tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "one.py").write_text(SOURCE)
    (tmp_path / "src" / "two.py").write_text(SOURCE)
    (tmp_path / "src" / "broken.py").write_text("def (")
    code_text.main(str(tmp_path / "code.tsv"), str(tmp_path / "src"))
    header, *rows = (line.split("\t") for line in (tmp_path / "code.tsv").read_text().splitlines())
    assert header == ["text", "positive"]
    assert rows == [
        ["sort by length of word", "def sort_by_length_of_word(words): return sorted(words, key=len)"],
        ["Returns the first word of the list.", 'def first_of_all(words): """Returns the first `word` of the list.""" return words[0]'],
        ["Reads the file into a list", "async def read_all_lines(self): return [line async for line in self]"],
    ]  # fmt: skip
