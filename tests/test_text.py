"""Text sources: every format gives the same rows, and every fault one line that names the place."""

import bz2
import gzip
import json
import lzma
import os
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from jaxdistill.core import InputError
from jaxdistill.data.sources import content_digest, is_plain, source_files, split_specs
from jaxdistill.data.text import read

ROWS = [("The cat sleeps.", "Die Katze schläft."), ('He said "no", twice', "Er sagte nein"), ("a\u2028b", "c\x0bd")]
COLUMNS = {"text": "en", "translation": "de"}
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
    if name.endswith(".jsonl"):
        return write(path, "".join(json.dumps({"de": de, "n": 1, "en": en}) + "\n" for en, de in ROWS))
    buffer = pyarrow.BufferOutputStream()
    columns = {"en": [en for en, _ in ROWS], "n": [1, 2, 3], "de": [de for _, de in ROWS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return write(path, buffer.getvalue().to_pybytes())


@pytest.mark.parametrize(
    "name", [*(f"{end}{packed}" for end in ("tsv", "csv", "jsonl") for packed in ("", *PACK)), "parquet"]
)
def test_every_table_format_gives_the_same_rows(tmp_path, name):
    spec = table(tmp_path / f"rows.{name}")
    assert list(read([spec], COLUMNS)) == ROWS
    assert list(read([spec], {"translation": "de", "text": "en"})) == [(de, en) for en, de in ROWS]
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
    for spec, columns, said in (
        (documents, ("text", "second"), "files:docs has no column 'second'; it has 'text', '_id'"),
        ("files:docs/x*", ("text",), "no file matches docs/x"),
        ("docs", ("text",), "docs is a folder; .* or files:docs for one text per file"),
        ("files:docs/.hidden", ("text",), "cannot read docs/.hidden: 'utf-8' codec can't decode byte 0xff"),
        ("files:image", ("text",), "cannot read image: 'utf-8' codec"),
    ):
        with pytest.raises(InputError, match=said):
            list(read([spec], columns))
    assert list(read([documents], ("_id", "text")))[1] == ("docs/b.txt", "Rain.")


@pytest.mark.parametrize("zipped", ["", ".gz", ".bz2", ".xz"])
def test_txt_has_a_sentence_a_line_and_keeps_empty_lines(tmp_path, zipped):
    spec = write(tmp_path / f"a.txt{zipped}", "\ufeffone\r\n\ntwo \" 'tis\nla\u2028st")
    assert list(read([spec])) == [("one",), ("",), ("two \" 'tis",), ("la\u2028st",)]


def test_the_only_column_of_a_table_serves_as_text(tmp_path):
    specs = [write(tmp_path / "a.tsv", "sentence\nx y\n"), write(tmp_path / "b.jsonl", '{"s": "z"}\n\n{"s": null}\n')]
    assert list(read(specs)) == [("x y",), ("z",), ("",)]


def test_joined_columns_leave_out_empty_cells_and_need_all_columns(tmp_path):
    spec = write(tmp_path / "a.csv", "a,b,a+c\nx, y ,1\n,z,2\nx,,3\n,,4\n")
    assert list(read([spec], {"text": "a+b"})) == [("x y",), ("z",), ("x",), ("",)]
    assert [text for (text,) in read([spec], {"text": "a+c"})] == list("1234"), "a column of that name"
    with pytest.raises(InputError, match=r"has no column 'b\+d'; it has 'a', 'b', 'a\+c'"):
        list(read([spec], {"text": "b+d"}))


def test_a_glob_is_read_in_the_order_of_names(tmp_path):
    for name in ("b", "a", "c"):
        write(tmp_path / f"{name}.txt.gz", f"{name}\n")
    write(tmp_path / "d.csv", "text\nd\n")
    assert list(read([str(tmp_path / "*.txt.gz"), str(tmp_path / "d.csv")])) == [("a",), ("b",), ("c",), ("d",)]
    write(tmp_path / "b.txt.gz", b"caf\xe9\n")
    with pytest.raises(InputError, match="cannot read [^,]*/b.txt.gz: 'utf-8' codec"):
        list(read([str(tmp_path / "*.txt.gz")]))


def test_each_file_is_read_by_the_first_column_that_it_has(tmp_path):
    specs = [write(tmp_path / "sts.tsv", "sentence1\tpremise\na\tb\n"), write(tmp_path / "nli.csv", "premise,x\nc,d\n")]
    specs.append(write(tmp_path / "odd.jsonl", '{"sentence1|premise": "e", "premise": "f"}\n'))
    assert list(read(specs, {"text": "sentence1|premise"})) == [("a",), ("c",), ("e",)]
    with pytest.raises(InputError, match=r"no column 'one\|two'; it has 'premise', 'x'"):
        list(read(specs[1:2], {"text": "one|two"}))


def test_a_file_of_the_data_folder_can_be_named(tmp_path, monkeypatch):
    (tmp_path / "sts").mkdir()
    for name in "ab":
        write(tmp_path / "sts" / f"{name}.txt", f"{name}\n")
    monkeypatch.setenv("JAXDISTILL_DATA", str(tmp_path))
    assert list(read(["data:sts/*.txt", "data:sts/a.txt"])) == [("a",), ("b",), ("a",)]
    with pytest.raises(InputError, match="no file matches .*nli"):
        source_files("data:nli/*.txt")
    monkeypatch.delenv("JAXDISTILL_DATA")
    with pytest.raises(InputError, match="data:sts/a.txt is in the data folder; set JAXDISTILL_DATA"):
        source_files("data:sts/a.txt")


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    assert list(read([write(tmp_path / "a[1].txt", "x\n")])) == [("x",)]


def test_a_path_with_commas_is_one_spec_if_it_exists(tmp_path):
    both = write(tmp_path / "cats,dogs.txt", "x\n")
    assert split_specs(f"{both}, b.txt,,c.txt") == [str(both), "b.txt", "c.txt"]
    assert split_specs(f"b.txt,{both}") == ["b.txt", str(both)]
    assert split_specs(f"{tmp_path},{tmp_path}/birds.txt") == [str(tmp_path), f"{tmp_path}/birds.txt"]


def test_a_file_of_an_installed_package_can_be_named(tmp_path, monkeypatch):
    (tmp_path / "someones_text").mkdir()
    write(tmp_path / "someones_text" / "a.txt", "x\n")
    write(tmp_path / "someones_text" / "__init__.py", "")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(read(["package:someones_text/a.txt"])) == [("x",)]
    with pytest.raises(InputError, match="b.txt does not exist in that package"):
        list(read(["package:someones_text/b.txt"]))
    with pytest.raises(InputError, match="'nobodys_text' is not installed"):
        list(read(["package:nobodys_text/b.txt"]))


FAULTS = [
    ("a.txt", b"good\ncaf\xe9\n", "cannot read .*a.txt: 'utf-8' codec can't decode byte 0xe9"),
    ("a.txt", b"", "a.txt is empty"),
    *(
        (f"a.txt{end}", pack(b"good\n" * 2000)[:-20], f"cannot read .*a.txt{end}: Compressed file ended")
        for end, pack in PACK.items()
    ),
    ("a.tsv", b"text\tn\n", "a.tsv is empty"),
    ("a.tsv", b"text\tn\nx\t1\ny\tz\t2\n", "cannot read .*a.tsv: .*Expected 2 fields in line 3, saw 3"),
    ("a.tsv", b"text\tn\nx\t1\t2\ny\tz\t2\n", "cannot read .*a.tsv: Length of header or names does not match"),
    ("a.tsv", b"A cat sleeps.\nA dog runs.\n", r"a.tsv:1 is the header .* but 'A cat sleeps.' does not look like"),
    ("a.tsv", b"text\ttext\nx\ty\n", "a.tsv has the column 'text' twice"),
    ("a.csv", b"id;text\n1;A cat\n", r"a.csv:1 .* 'id;text' does not look like .*; check the separator"),
    ("a.csv", b'n,text\n1,"x\n', "cannot read .*a.csv: .*EOF inside string"),
    ("a.csv", b"n,m\n1,x\n", r"a.csv has no column 'text'; it has 'n', 'm'.*data.columns="),
    ("a.jsonl", b"\n", "a.jsonl"),
    ("a.jsonl", b'{"text": "x"}\n{"text": \n', "cannot read .*a.jsonl: JSON parse error"),
    ("a.jsonl", b'{"text": "x"}\n["text"]\n', "cannot read .*a.jsonl: JSON parse error"),
    ("a.jsonl", b'{"text": 3}\n', "a.jsonl: column 'text' holds int64, not text"),
    ("a.jsonl", b'{"text": ["x"]}\n', "a.jsonl: column 'text' holds list, not text"),
    ("a.parquet", b"PAR1 no PAR1", "cannot read .*a.parquet: Parquet"),
    ("a.doc", b"x", "a.doc has an unknown format; use .txt, .tsv, .csv, .jsonl, .json, .parquet"),
]


@pytest.mark.parametrize(("name", "data", "message"), FAULTS, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(FAULTS)])
def test_a_fault_is_named_with_its_file_and_line(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message) as raised:
        list(read([str(tmp_path / name)]))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("packed", PACK)
def test_a_compressed_file_may_have_several_members(tmp_path, packed):
    path = tmp_path / f"a.txt{packed}"
    path.write_bytes(PACK[packed](b"a\nb") + PACK[packed](b"c\n" * 2000))
    assert list(read([str(path)])) == [("a",), ("bc",), *[("c",)] * 1999]


def test_cells_stay_what_they_are(tmp_path):
    """Not numbers, dates or missing values, and rows keep their place; a row that lacks cells has empty ones."""
    cells = ["NA", "null", "007", "1e5", "2020-01-01", "true", " x "]
    for kind, comma in (("csv", ","), ("tsv", "\t")):
        spec = write(
            tmp_path / f"a.{kind}", f"text{comma}n\n" + "".join(f"{cell}{comma}1\n" for cell in cells) + "\nb\n"
        )
        assert [text for (text,) in read([spec])] == [*cells, "", "b"]
    spec = write(tmp_path / "a.jsonl", "".join(json.dumps({"text": cell}) + "\n" for cell in cells))
    assert [text for (text,) in read([spec])] == cells


def test_a_file_with_the_same_time_but_other_content_is_read_again(tmp_path):
    spec = write(tmp_path / "a.txt", "one\n")
    assert list(read([spec])) == [("one",)]
    state = os.stat(spec)
    write(tmp_path / "b.txt", "two\n")
    os.utime(tmp_path / "b.txt", ns=(state.st_atime_ns, state.st_mtime_ns))
    (tmp_path / "b.txt").rename(spec)
    assert list(read([spec])) == [("two",)]


def test_every_kind_of_line_end_ends_a_sentence(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"old Mac\rWindows\r\n\rUnix\nlast")
    assert list(read([str(tmp_path / "a.txt")])) == [("old Mac",), ("Windows",), ("",), ("Unix",), ("last",)]
    (tmp_path / "a.csv").write_bytes(b'text\r"two\rlines"\r')
    assert list(read([str(tmp_path / "a.csv")])) == [("two\rlines",)]


def test_missing_files_globs_and_folders_are_told_apart(tmp_path):
    for spec, message in [("a.txt", "does not exist"), ("*.txt", "no file matches"), ("", "is a folder; name a file")]:
        with pytest.raises(InputError, match=message):
            list(read([f"{tmp_path}/{spec}"]))


def test_the_content_digest_follows_bytes_and_order_but_not_names(tmp_path):
    named = [("a.txt", "x\n"), ("b.txt", "y\n"), ("c.txt", "x\n")]
    a, b, again = (write(tmp_path / name, text) for name, text in named)
    digest = content_digest
    assert digest([a]) == digest([again])
    assert len({digest([a]), digest([b]), digest([a, b]), digest([b, a]), digest([a, a])}) == 5


@pytest.mark.parametrize("offline", [True, False], ids=["loaded", "streamed"])
def test_hub_sets_are_read_through_datasets_and_only_the_columns_that_are_named_are_kept(
    tmp_path, monkeypatch, offline
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    spec, path = f"hf:{tmp_path}/set:train", tmp_path / "set" / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"premise": ["x", "y"], "label": ["1", "2"]}), path)
    assert list(read([f"{spec}:premise"])) == [("x",), ("y",)]
    (kept,) = (tmp_path / "cache" / "texts").iterdir()
    assert pyarrow.parquet.read_schema(kept).names == ["premise"]
    with pytest.raises(InputError, match="has no column 'text'; it has 'premise', 'label'. End the spec with one of"):
        list(read([f"{spec}:text"]))
    assert content_digest([f"{spec}:premise"])
    assert list(read([f"hf:{tmp_path}/set:train[:1]:premise"])) == [("x",)]
    pyarrow.parquet.write_table(pyarrow.table({"premise": ["x"], "label": ["one"]}), path)
    assert list(read([f"{spec}:premise+label"])) == [("x one",)]


def test_a_hub_set_that_cannot_be_had_says_how_to_use_a_copy():
    with pytest.raises(InputError, match="cannot be loaded .* HF_HUB_OFFLINE=1") as raised:
        list(read(["hf:nobody/no-such-set:train:text"]))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("spec", ["hf:name", "hf::train:text", "tfds:name:train", "tfds:a:b:c:d", "hf:a:b:c:d:e"])
def test_a_malformed_hub_spec_is_answered_with_the_form(spec):
    with pytest.raises(InputError, match=r"is malformed; write hf:NAME"):
        list(read([spec]))


def test_tfds_sets_in_array_record_are_read_without_tensorflow(tmp_path):
    path = tfds_set(tmp_path, "array_record")
    assert list(read([f"tfds:{path}:train:sentence"])) == [("x é",), ("y",)]
    with pytest.raises(InputError, match="has no split 'test'; it has train"):
        list(read([f"tfds:{path}:test:sentence"]))
    assert "tensorflow" not in sys.modules


def test_without_the_extra_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(InputError, match=r"run: pip install 'jaxdistill\[tfds\]'"):
        list(read(["tfds:name:train:text"]))


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
