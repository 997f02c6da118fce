"""Text: every format, hub and object in memory gives the same rows, and every fault one line that names the source."""

import bz2
import gzip
import json
import lzma
import sys
from pathlib import Path

import datasets
import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest

from jaxdistill.core import InputError
from jaxdistill.data.text import columns_of, content_digest, is_plain, read, source_files, sources_of

ROWS = [("The cat sleeps.", "Die Katze schläft."), ('He said "no", twice', "Er sagte nein"), ("a\u2028b", "c\x0bd")]
COLUMNS = {"text": "en", "translation": "de"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))


PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def write(path, text: str | bytes):
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(PACK.get(path.suffix, bytes)(data))
    return str(path)


def table(path):
    name = path.name.removesuffix(".gz").removesuffix(".bz2").removesuffix(".xz")
    if name.endswith(".tsv"):
        return write(path, "id\ten\tde\n" + "".join(f"{i}\t{en}\t{de}\n" for i, (en, de) in enumerate(ROWS)))
    if name.endswith(".csv"):
        quoted = ("".join('"' + cell.replace('"', '""') + '",' for cell in row) + "x\r\n" for row in ROWS)
        return write(path, "en,de,more\r\n" + "".join(quoted))
    if ".json" in name:
        rows = [json.dumps({"de": de, "n": 1, "en": en}) for en, de in ROWS]
        return write(path, "\n".join(rows) if name.endswith("l") else f"[{', '.join(rows)}]")
    buffer = pyarrow.BufferOutputStream()
    columns = {"en": [en for en, _ in ROWS], "n": [1, 2, 3], "de": [de for _, de in ROWS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return write(path, buffer.getvalue().to_pybytes())


@pytest.mark.parametrize("name", ["tsv", "csv", "json", "jsonl", "parquet", "tsv.gz", "csv.bz2", "jsonl.xz"])
def test_every_table_format_gives_the_same_rows(tmp_path, name):
    spec = table(tmp_path / f"rows.{name}")
    assert list(read([spec], COLUMNS)) == ROWS
    assert list(read([spec], {"text": "title|en+de|de", "de": "de"})) == [(f"{en} {de}", de) for en, de in ROWS]


def test_each_file_of_a_folder_is_one_text_as_python_reads_it(tmp_path, monkeypatch):
    documents = "files:docs"
    texts = {"a.md": "  The cat sleeps.\n\nRain.\n", "b.txt": "Rain.", "c/d.rst": "", "c/e.txt": "A dog."}
    monkeypatch.chdir(tmp_path)
    for name, text in texts.items():
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    (tmp_path / "docs" / ".hidden").write_bytes(b"\xff")
    assert list(read([documents])) == [(text,) for text in texts.values()]
    assert list(read(["files:docs/**/*.txt"])) == [(texts["b.txt"],), (texts["c/e.txt"],)]
    digests = {content_digest([spec]) for spec in ("files:docs/b.txt", "docs/b.txt")}
    assert len(digests) == 2 and is_plain(documents)
    Path("image").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    for spec, columns, message in (
        (documents, ("text", "second"), "files:docs has no column 'second'; it has 'text'"),
        ("files:docs/x*", ("text",), "files:docs/x\\* matches nothing"),
        ("docs", ("text",), "docs is a folder; .* files:FOLDER for one text per file"),
        ("files:docs/.hidden", ("text",), "cannot read docs/.hidden \\('utf-8' codec can't decode byte 0xff"),
        ("files:image", ("text",), "cannot read image \\('utf-8' codec .*; text must be in UTF-8"),
    ):
        with pytest.raises(InputError, match=message):
            list(read([spec], columns))


@pytest.mark.parametrize("zipped", ["", ".gz", ".bz2", ".xz"])
def test_txt_has_a_sentence_a_line_and_keeps_empty_lines(tmp_path, zipped):
    spec = write(tmp_path / f"a.txt{zipped}", "one\r\n\ntwo \" 'tis\rold Mac\nla\u2028st")
    assert list(read([spec])) == [("one",), ("",), ("two \" 'tis",), ("old Mac",), ("la\u2028st",)]


def test_files_of_a_glob_are_sorted_part_by_part_and_a_faulty_one_is_named(tmp_path):
    for name in ("a-b.txt.gz", "a/b.txt.gz", "a/.hidden.txt.gz", "a.txt.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, f"{name}\n")
    assert [text for (text,) in read([f"{tmp_path}/**/*.txt.gz"])] == ["a/b.txt.gz", "a-b.txt.gz", "a.txt.gz"]
    write(tmp_path / "a.txt.gz", b"caf\xe9\n")
    with pytest.raises(InputError, match=r"cannot read [^,]*/a.txt.gz \('utf-8' codec"):
        list(read([f"{tmp_path}/*.txt.gz"]))
    for spec, message in [("a.txt", "does not exist"), ("*.csv", "matches nothing"), ("", "is a folder; name a file")]:
        with pytest.raises(InputError, match=message):
            list(read([f"{tmp_path}/{spec}"]))


def test_each_file_is_read_by_the_first_column_that_it_has(tmp_path):
    assert columns_of("body") == {"text": "body"}
    assert columns_of(["text", "second"]) == {"text": "text", "second": "second"}
    specs = [write(tmp_path / "sts.tsv", "sentence1\tpremise\na\tb\n"), write(tmp_path / "nli.csv", "premise,x\nc,d\n")]
    specs.append(write(tmp_path / "odd.jsonl", '{"sentence1|premise": "e", "premise": "f"}\n'))
    assert list(read(specs, {"text": "sentence1|premise"})) == [("a",), ("c",), ("e",)]
    write(tmp_path / "plain.txt", "g\n")
    assert list(read([f"{tmp_path}/*"], {"text": "sentence1|premise|text"})) == [("c",), ("f",), ("g",), ("a",)]
    with pytest.raises(InputError, match=r"no column 'one\|two'; it has 'premise', 'x'"):
        list(read(specs[1:2], {"text": "one|two"}))


def test_files_of_the_data_folder_and_of_packages_can_be_named(tmp_path, monkeypatch):
    (tmp_path / "someones_text").mkdir()
    for name in ("a.txt", "b.txt", "__init__.py"):
        write(tmp_path / "someones_text" / name, f"# {name}\n")
    monkeypatch.setenv("JAXDISTILL_DATA", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    specs = ["data:someones_text/*.txt", "package:someones_text/a.txt"]
    assert list(read(specs)) == [("# a.txt",), ("# b.txt",), ("# a.txt",)]
    monkeypatch.delenv("JAXDISTILL_DATA")
    for spec, message in (
        ("data:sts/a.txt", "data:sts/a.txt is in the data folder; set JAXDISTILL_DATA"),
        ("package:someones_text/c.txt", "c.txt does not exist"),
        ("package:nobodys_text/b.txt", "'nobodys_text' is not installed"),
    ):
        with pytest.raises(InputError, match=message):
            source_files(spec)


FAULTS = [
    (
        "a.txt",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "a.txt only points to .*git lfs pull",
    ),
    ("a.txt", b"/annex/objects/SHA256-s9--0\n", "a.txt only points to .*git annex get"),
    ("a.tsv", b"text\tn\n", "a.tsv is empty"),
    ("a.tsv", b"text\tn\nx\t1\ny\tz\t2\n", "cannot read .*a.tsv .*Expected 2 fields in line 3, saw 3"),
    ("a.tsv", b"text\tn\nx\t1\t2\ny\tz\t2\n", "cannot read .*a.tsv .Length of header or names does not match"),
    ("a.tsv", b"A cat sleeps.\nA dog runs.\n", r"a.tsv:1 is the header .* but 'A cat sleeps.' does not look like"),
    ("a.tsv", b"text\ttext\nx\ty\n", "a.tsv has no column 'text'; it has 'column 0', 'column 1'"),
    ("a.csv", b"id;text\n1;A cat\n", r"a.csv:1 .* 'id;text' does not look like .*; check the separator"),
    ("a.csv", b'n,text\n1,"x\n', "a.csv: .* quotes are neither closed nor doubled; .*unexpected end of data"),
    ("a.csv", b"", "a.csv is empty"),
    ("a.json", b"", "a.json is empty"),
    ("a.jsonl", b'{"text": "a"}\n{"text": NaN}\n', "a.jsonl: column 'text' holds mixed values, not text"),
    ("a.jsonl", b'{"text": "a"}\n' * 800_000 + b'{"text": NaN}\n', "a.jsonl .*text. changed from string to number"),
    ("a.jsonl", b'{"text": "a"}\n' * 800_000 + b'{"text": "a", "n": 1}\n', "a field that is not in the first 10 MB"),
    ("a.csv", b"text\ncaf\xe9\n", "cannot read .*a.csv .'utf-8' codec .*; text must be in UTF-8"),
    ("a.jsonl", b'{"text": "caf\xe9"}\n', "cannot read .*a.jsonl .'utf-8' codec .*; text must be in UTF-8"),
    ("a.jsonl", b"\n", "a.jsonl"),
    ("a.jsonl", b'{"text": "x"}\n{"text": \n', "cannot read .*a.jsonl .JSON parse error"),
    ("a.parquet", b"PAR1 no PAR1", "cannot read .*a.parquet .Parquet"),
    ("a.doc", b"x", "a.doc has an unknown format; use .txt, .tsv, .csv, .jsonl, .json, .parquet"),
]


@pytest.mark.parametrize(("name", "data", "message"), FAULTS, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(FAULTS)])
def test_a_fault_is_named_with_its_file_and_line(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message) as raised:
        list(read([str(tmp_path / name)]))
    assert "\n" not in str(raised.value)


def test_cells_stay_unchanged(tmp_path):
    """Not numbers, dates or missing values, and rows keep their place; a row that lacks cells has empty ones."""
    cells = ["NA", "null", "007", "1e5", "2020-01-01", "true", " x "]
    for kind, comma in (("csv", ","), ("tsv", "\t")):
        spec = write(
            tmp_path / f"a.{kind}", f"text{comma}n\n" + "".join(f"{cell}{comma}1\n" for cell in cells) + "\nb\n"
        )
        assert [text for (text,) in read([spec])] == [*cells, "", "b"]
    spec = write(tmp_path / "a.jsonl", "".join(json.dumps({"text": cell}) + "\n" for cell in cells))
    assert [text for (text,) in read([spec])] == cells


def test_the_content_digest_follows_bytes_and_order_but_not_names(tmp_path):
    a, b, copy = (write(tmp_path / name, text) for name, text in (("a.txt", "x"), ("b.txt", "y"), ("c.txt", "x")))
    assert content_digest([a]) == content_digest([copy])
    assert len({content_digest(specs) for specs in ([a], [b], [a, b], [b, a], [a, a])}) == 5


def test_hub_sets_are_read_through_datasets(tmp_path, monkeypatch):
    (tmp_path / "set").mkdir()
    spec, path = f"hf:{tmp_path}/set:train", tmp_path / "set" / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"premise": ["x", "y"], "label": ["1", "2"]}), path)
    assert list(read([f"{spec}:premise"])) == [("x",), ("y",)] and source_files(f"{spec}:premise") == []
    assert list(read([f"{spec}:premise+label"], ("text", "label"))) == [("x 1", "1"), ("y 2", "2")]
    assert list(read([f"{spec}[:1]:premise"])) == [("x",)]
    words = "has no column 'text'; it has 'premise', 'label'. .* the last part of the spec"
    with pytest.raises(InputError, match=words):
        list(read([f"{spec}:text"]))
    assert content_digest([f"{spec}:premise"]) != content_digest([f"{spec}[:1]:premise"])
    with pytest.raises(InputError, match="cannot be loaded .* HF_HUB_OFFLINE=1"):
        list(read(["hf:nobody/no-such-set:train:text"]))
    with pytest.raises(InputError, match="cannot be loaded as tfds:NAME:SPLIT:COLUMN"):
        list(read(["tfds:a:b:c:d"]))


def test_tfds_sets_in_array_record_are_read_without_tensorflow(tmp_path):
    path = tfds_set(tmp_path, "array_record")
    assert list(read([f"tfds:{path}:train:sentence"])) == [("x é",), ("y",)]
    with pytest.raises(InputError, match="Unknown split 'test'"):
        list(read([f"tfds:{path}:test:sentence"]))
    assert "tensorflow" not in sys.modules


def tfds_set(folder, form):
    """A small prepared set; returns its folder."""
    import tensorflow_datasets as tfds

    class Little(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = folder

        def _info(self):
            features = tfds.features.FeaturesDict({"sentence": tfds.features.Text()})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for key, sentence in enumerate(["x é", "y"]):
                yield key, {"sentence": sentence}

    builder = Little(data_dir=str(folder), file_format=form)
    builder.download_and_prepare()
    return type(folder)(str(builder.data_dir))


RAW = ['"Yes," she said, "I know."', '"Yes."', 'a 5" pipe', '"half quoted', "no quotes, but a comma"]
CELLS = ['He said "no".', "two\nlines", "a\ttab", "plain", 'one, "two"', "", "last"]


def write_excel(path, cells):
    """As Excel saves a sheet as text: it also quotes cells with a comma."""
    rows = ['"' + cell.replace('"', '""') + '"' if set(cell) & set('",\n\t') else cell for cell in cells]
    path.write_text("n\ttext\r\n" + "".join(f"{n}\t{row}\r\n" for n, row in enumerate(rows)), newline="")


def write_pandas(path, cells):
    pandas.DataFrame({"n": 1, "text": cells}).to_csv(path, sep="\t")


@pytest.mark.parametrize("save", [write_pandas, write_excel])
def test_quoted_cells_of_a_tsv_are_read_without_their_quotes(tmp_path, caplog, save):
    for number, cells in enumerate((["x"] * 3000 + CELLS, ["a, b", "c, d", "e"])):
        path = tmp_path / f"{number}.tsv"
        save(path, cells)
        for spec in (path, f"quoted:{path}"):
            assert [text for (text,) in read([str(spec)])] == cells
        assert (str(path) in caplog.text) == ('"' in path.read_text())


def test_quotes_of_a_raw_tsv_are_text_and_the_prefix_decides(tmp_path, caplog):
    for name, cells in {"raw": RAW, "few": ['"Yes."', "no"], "quoted": ['"a ""b"""']}.items():
        spec = write(tmp_path / f"{name}.tsv", "text\n" + "".join(f"{cell}\n" for cell in cells))
        assert [text for (text,) in read([f"raw:{spec}"])] == cells
        assert list(read([spec])) == ([('a "b"',)] if name == "quoted" else [(cell,) for cell in cells])
    speech = write(tmp_path / "speech.tsv", 'n\ttext\n1\t"We slept.\n2\tAll of us."\n')  # one quote a row
    assert list(read([speech])) == [('"We slept.',), ('All of us."',)]
    assert list(read([f"quoted:{tmp_path}/few.tsv"])) == [("Yes.",), ("no",)]
    assert len({content_digest([f"{prefix}{tmp_path}/few.tsv"]) for prefix in ("", "raw:", "quoted:")}) == 3


def test_a_table_whose_quotes_change_their_meaning_is_refused(tmp_path):
    spec = write(tmp_path / "a.tsv", "text\tn\n" + '"a, b"\t1\n' * 300 + '"c" d\t1\n"e\t1\nf"\t1\n')
    for path in (write(tmp_path / "a.csv", 'text\n"Wait\nfoo\n"Stop\nbar\n'), spec):
        with pytest.raises(InputError, match=f"some quotes are neither closed nor doubled; write raw:{path} if"):
            list(read([path]))
    assert [len(list(read([f"{prefix}{spec}"]))) for prefix in ("raw:", "quoted:")] == [303, 302]


SENTENCES = ["The cat sleeps.", "", 'He said "no"\n\u2028twice', "Überraschung"]
PAIRS = {"q": ["a", "b", None], "n": [1, 2, 3], "d": ["c", "d", "e"]}
NAMED = {"text": "q", "second": "d"}


def name_of(value):
    return type(value).__module__.partition(".")[0] + type(value).__name__


@pytest.mark.parametrize(
    "text",
    [
        iter(SENTENCES),
        [(sentence,) for sentence in SENTENCES],
        [{"sentence": sentence} for sentence in SENTENCES],
        np.array(SENTENCES),
        pandas.Series(SENTENCES, index=[7, 7, 8, 9], dtype="category"),
        polars.Series(SENTENCES),
        pyarrow.chunked_array([SENTENCES[:2], SENTENCES[2:]]),
        {"text": SENTENCES, "id": [1, 2, 3, 4]},
    ],
    ids=name_of,
)
def test_sentences_of_every_form_are_the_same_text(text):
    (source,) = sources_of(text, {})
    assert [row for (row,) in read([source])] == SENTENCES


@pytest.mark.parametrize(
    "text",
    [
        pandas.DataFrame(PAIRS),
        polars.LazyFrame(PAIRS),
        pyarrow.table(PAIRS),
        datasets.Dataset.from_dict(PAIRS),
        datasets.Dataset.from_dict(PAIRS).to_iterable_dataset(),
        pyarrow.table(PAIRS).to_pylist(),
        list(zip(PAIRS["q"], PAIRS["d"], strict=True)),
    ],
    ids=name_of,
)
def test_columns_of_every_table_are_the_same_rows(text):
    assert list(read(sources_of(text, NAMED), NAMED)) == [("a", "c"), ("b", "d"), ("", "e")]


def test_missing_values_are_empty_sentences_and_numbers_stay_numbers():
    for missing in (None, float("nan"), pandas.NA, pandas.NaT):
        assert list(read(sources_of(["a", missing], {}))) == [("a",), ("",)]
    (source,) = sources_of(polars.DataFrame({"text": ["a", "b"], "score": [1.0, 0.5]}), {}, numbers=["score"])
    assert list(read([source], ["text", "score"], numbers=True)) == [("a", "1.0"), ("b", "0.5")]


def test_paths_and_sources_stay_unchanged(tmp_path):
    path = Path(write(tmp_path / "a.txt", "x\n"))
    assert sources_of("hf:a:b:c", {}) == ["hf:a:b:c"] and sources_of([path], {}) == sources_of(path, {}) == [str(path)]
    with pytest.raises(InputError, match=r"text is a list of file names.*give \[pathlib.Path\("):
        sources_of([str(path)], {})


TREE = {"id": [1, 2], "translation": [{"en": "a", "x": {"de": "b"}}, {"en": "c", "x": {"de": None}}]}
TREE |= {"plain.name": ["own", "own"]}
FIELDS = {"text": "no.column|translation.en", "second": "translation.x.de", "third": "plain.name"}


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "hub", "memory"])
def test_fields_of_structs_are_columns_with_a_dot(tmp_path, kind):
    table, spec = pyarrow.table(TREE), str(tmp_path / f"train.{kind}")
    if kind == "memory":
        (spec,) = sources_of(table, FIELDS)
    elif kind == "jsonl":
        Path(spec).write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
        spec = f"hf:{tmp_path}:train:translation.en" if kind == "hub" else spec
    assert list(read([spec], FIELDS)) == [("a", "b", "own"), ("c", "", "own")]
    with pytest.raises(InputError, match="has no column 'translation.fr'; it has .*'translation.en'"):
        list(read([spec.replace(".en", ".fr")], {"text": "translation.fr"}))
