"""Text and numbers are read as they were written, or refused in one line: nothing is left out or made up without a word."""

import csv

import pandas
import pytest

from jaxdistill.core import InputError
from jaxdistill.data import sources
from jaxdistill.evals.pairs import read_pairs

CELLS = ['He said "no".', "two\nlines", "a\ttab", "plain", 'one, "two"', "", "last"]
RAW = ['"Yes," she said, "I know."', '"Yes."', 'a 5" pipe', '"half quoted', "no quotes, but a comma"]


def write_excel(path, cells):
    """As Excel saves a sheet as text: it also quotes cells with a comma."""
    rows = ['"' + cell.replace('"', '""') + '"' if set(cell) & set('",\n\t') else cell for cell in cells]
    path.write_text("n\ttext\r\n" + "".join(f"{n}\t{row}\r\n" for n, row in enumerate(rows)), newline="")


def texts(spec):
    return [text for (text,) in sources.read([str(spec)])]


@pytest.mark.parametrize(
    "write",
    [
        lambda path, cells: pandas.DataFrame({"n": 1, "text": cells}).to_csv(path, sep="\t"),
        lambda path, cells: pandas.DataFrame({"text": cells}).to_csv(path, sep="\t", quoting=csv.QUOTE_ALL),
        write_excel,
    ],
    ids=["pandas", "all quoted", "Excel"],
)
@pytest.mark.parametrize("cells", [CELLS, ["x"] * 3000 + CELLS, ["a, b", "c, d", "e"]], ids=["mixed", "late", "commas"])
def test_quoted_cells_of_a_tsv_are_read_without_their_quotes(tmp_path, caplog, write, cells):
    write(tmp_path / "a.tsv", cells)
    assert texts(tmp_path / "a.tsv") == texts(f"quoted:{tmp_path}/*.tsv") == cells
    said = [record.message for record in caplog.records]
    assert said == [
        f"{tmp_path}/a.tsv: its cells are quoted; to keep quotes as they are, write raw:{tmp_path}/a.tsv"
    ] * ('"' in (tmp_path / "a.tsv").read_text())


def test_quotes_of_a_raw_tsv_are_text_and_the_prefix_decides(tmp_path, caplog):
    for name, cells in {"raw": RAW, "few": ['"Yes."', "no"]}.items():
        (tmp_path / f"{name}.tsv").write_text("text\n" + "".join(f"{cell}\n" for cell in cells))
        assert texts(tmp_path / f"{name}.tsv") == texts(f"raw:{tmp_path / name}.tsv") == cells
    assert not caplog.records
    assert texts(f"quoted:{tmp_path}/few.tsv") == ["Yes.", "no"]
    (tmp_path / "quoted.tsv").write_text('text\n"a ""b"""\n')
    assert texts(f"raw:{tmp_path}/quoted.tsv") == ['"a ""b"""'] and texts(tmp_path / "quoted.tsv") == ['a "b"']
    digests = {sources.content_digest([f"{prefix}{tmp_path}/few.tsv"]) for prefix in ("", "raw:", "quoted:")}
    assert len(digests) == 3
    with pytest.raises(InputError, match="raw.tsv:2 is not valid CSV: .*; check the quotes, or write raw:.*raw.tsv if"):
        texts(f"quoted:{tmp_path}/raw.tsv")
    (tmp_path / "a.csv").write_text("text\na\n")
    with pytest.raises(InputError, match="a.csv is not a .tsv file; leave out raw: before its name"):
        texts(f"raw:{tmp_path}/a.csv")
    with pytest.raises(InputError, match="--pairs: raw:x.tsv: raw: is for sources of text"):
        sources.file_of("--pairs", "raw:x.tsv")


def test_quoted_cells_of_graded_pairs_are_read_without_their_quotes(tmp_path):
    table = {"score": [1, 2, 3], "sentence1": CELLS[:3], "sentence2": CELLS[3:5] + ["b"]}
    pandas.DataFrame(table).to_csv(tmp_path / "p.tsv", sep="\t", index=False)
    assert read_pairs(tmp_path / "p.tsv").first == tuple(CELLS[:3])
