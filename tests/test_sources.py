"""Text sources: every format gives the same rows, and every fault one line that names the place."""

import bz2
import gzip
import json
import lzma
import os
import sys
import tracemalloc

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from jaxdistill.checkpoints.locate import locate
from jaxdistill.core import InputError
from jaxdistill.data import sources
from jaxdistill.files import parts, reading

ROWS = [("The cat sleeps.", "Die Katze schläft."), ('He said "no", twice', "Er sagte nein"), ("a\u2028b", "c\x0bd")]
COLUMNS = {"text": "en", "translation": "de"}


def write(path, text: str | bytes):
    data = text if isinstance(text, bytes) else text.encode()
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(data))
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


@pytest.mark.parametrize("zipped", ["", ".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl", "parquet"])
def test_every_table_format_gives_the_same_rows(tmp_path, suffix, zipped):
    spec = table(tmp_path / f"rows.{suffix}{zipped}")
    assert list(sources.read([spec], COLUMNS)) == ROWS
    assert list(sources.read([spec], {"translation": "de", "text": "en"})) == [(de, en) for en, de in ROWS]
    assert list(sources.read([spec], {"text": "title|en+de|de", "de": "de"})) == [(f"{en} {de}", de) for en, de in ROWS]


@pytest.mark.parametrize("zipped", ["", ".gz", ".bz2", ".xz"])
def test_txt_has_a_sentence_a_line_and_keeps_empty_lines(tmp_path, zipped):
    spec = write(tmp_path / f"a.txt{zipped}", "\ufeffone\r\n\ntwo \" 'tis\nla\u2028st")
    assert list(sources.read([spec])) == [("one",), ("",), ("two \" 'tis",), ("la\u2028st",)]


def test_tsv_has_no_quoting_and_csv_has(tmp_path):
    tsv = write(tmp_path / "a.tsv", 'text\tn\n"half quoted\t1\n')
    csv = write(tmp_path / "a.csv", 'text,n\n"two\nlines, one ""cell""",1\n')
    assert list(sources.read([tsv, csv])) == [('"half quoted',), ('two\nlines, one "cell"',)]


def test_a_very_long_cell_is_read(tmp_path):
    assert list(sources.read([write(tmp_path / "a.csv", f"text\n{'word ' * 50_000}\n")])) == [("word " * 50_000,)]


def test_the_only_column_of_a_table_serves_as_text(tmp_path):
    specs = [write(tmp_path / "a.tsv", "sentence\nx y\n"), write(tmp_path / "b.jsonl", '{"s": "z"}\n\n{"s": null}\n')]
    assert list(sources.read(specs)) == [("x y",), ("z",), ("",)]


def test_joined_columns_leave_out_empty_cells_and_need_all_columns(tmp_path):
    spec = write(tmp_path / "a.csv", "a,b,a+c\nx, y ,1\n,z,2\nx,,3\n,,4\n")
    assert list(sources.read([spec], {"text": "a+b"})) == [("x y",), ("z",), ("x",), ("",)]
    assert [text for (text,) in sources.read([spec], {"text": "a+c"})] == list("1234"), "a column of that name"
    with pytest.raises(InputError, match=r"has no column 'b\+d'; it has 'a', 'b', 'a\+c'"):
        list(sources.read([spec], {"text": "b+d"}))


def test_a_glob_is_read_in_the_order_of_names(tmp_path):
    for name in ("b", "a", "c"):
        write(tmp_path / f"{name}.txt.gz", f"{name}\n")
    write(tmp_path / "d.csv", "text\nd\n")
    assert list(sources.read([str(tmp_path / "*.txt.gz"), str(tmp_path / "d.csv")])) == [("a",), ("b",), ("c",), ("d",)]


def test_each_file_is_read_by_the_first_column_that_it_has(tmp_path):
    specs = [write(tmp_path / "sts.tsv", "sentence1\tpremise\na\tb\n"), write(tmp_path / "nli.csv", "premise,x\nc,d\n")]
    specs.append(write(tmp_path / "odd.jsonl", '{"sentence1|premise": "e", "premise": "f"}\n'))
    assert list(sources.read(specs, {"text": "sentence1|premise"})) == [("a",), ("c",), ("e",)]
    with pytest.raises(InputError, match=r"no column 'one\|two'; it has 'premise', 'x'"):
        list(sources.read(specs[1:2], {"text": "one|two"}))


def test_a_file_of_the_data_folder_can_be_named(tmp_path, monkeypatch):
    (tmp_path / "sts").mkdir()
    for name in "ab":
        write(tmp_path / "sts" / f"{name}.txt", f"{name}\n")
    monkeypatch.setenv("JAXDISTILL_DATA", str(tmp_path))
    assert list(sources.read(["data:sts/*.txt", "data:sts/a.txt"])) == [("a",), ("b",), ("a",)]
    with pytest.raises(InputError, match="no file matches .*nli"):
        sources.source_files("data:nli/*.txt")
    monkeypatch.delenv("JAXDISTILL_DATA")
    with pytest.raises(InputError, match="data:sts/a.txt is in the data folder; set JAXDISTILL_DATA"):
        sources.source_files("data:sts/a.txt")


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    assert list(sources.read([write(tmp_path / "a[1].txt", "x\n")])) == [("x",)]


def test_a_path_with_commas_is_one_spec_if_it_exists(tmp_path):
    both = write(tmp_path / "cats,dogs.txt", "x\n")
    assert sources.split_specs(f"{both}, b.txt,,c.txt") == [str(both), "b.txt", "c.txt"]
    assert sources.split_specs(f"b.txt,{both}") == ["b.txt", str(both)]
    assert sources.split_specs(f"{tmp_path},{tmp_path}/birds.txt") == [str(tmp_path), f"{tmp_path}/birds.txt"]


def test_a_file_of_an_installed_package_can_be_named(tmp_path, monkeypatch):
    (tmp_path / "someones_text").mkdir()
    write(tmp_path / "someones_text" / "a.txt", "x\n")
    write(tmp_path / "someones_text" / "__init__.py", "")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(sources.read(["package:someones_text/a.txt"])) == [("x",)]
    with pytest.raises(InputError, match="b.txt does not exist in that package"):
        list(sources.read(["package:someones_text/b.txt"]))
    with pytest.raises(InputError, match="'nobodys_text' is not installed"):
        list(sources.read(["package:nobodys_text/b.txt"]))


FAULTS = [
    ("a.txt", b"good\ncaf\xe9\n", r"a.txt:2 is not UTF-8 \(byte 0xe9 at 3\).*iconv -f latin1"),
    ("a.txt", "café\n".encode("utf-16"), r"a.txt:1 is not UTF-8 \(byte 0xff at 0\).*iconv -f utf-16"),
    ("a.txt", "cafe\n".encode("utf-16-le"), "a.txt:1 has a NUL in every other byte, .*iconv -f utf-16le"),
    ("a.tsv", "text\ncafe\n".encode("utf-16-be"), "a.tsv:1 has a NUL in every other byte, .*iconv -f utf-16be"),
    ("a.txt", gzip.compress(b"good\n" * 2000), "a.txt is not text but gzip: add .gz to its name"),
    ("a.csv", b"PAR1\x15\x04\x00\xff", "a.csv is not text but Parquet: let its name end in .parquet"),
    ("a.txt.gz", gzip.compress(b"good\n" * 2000)[:-20], "a.txt.gz is not a complete gzip file"),
    ("b.txt.gz", b"no gzip at all", "b.txt.gz is not a complete gzip file"),
    ("a.txt", bz2.compress(b"good\n" * 2000), "a.txt is not text but bzip2: add .bz2 to its name"),
    ("a.txt.bz2", bz2.compress(b"good\n" * 2000)[:-20], "a.txt.bz2 is not a complete bzip2 file"),
    ("b.txt.bz2", b"no bzip2 at all", "b.txt.bz2 is not a complete bzip2 file"),
    ("a.txt", lzma.compress(b"good\n" * 2000), "a.txt is not text but xz: add .xz to its name"),
    ("a.txt.xz", lzma.compress(b"good\n" * 2000)[:-20], "a.txt.xz is not a complete xz file"),
    ("b.txt.xz", b"no xz at all", "b.txt.xz is not a complete xz file"),
    ("c.txt.gz", gzip.compress(b"good\n") + b"no gzip", "c.txt.gz is not a complete gzip file"),
    (
        "c.txt.bz2",
        bz2.compress(b"good\n") + b"BZH91AY" + bz2.compress(b"lost\n")[7:],
        "c.txt.bz2 is not a complete bzip2 file",
    ),
    ("d.txt.bz2", bz2.compress(b"good\n") + b"BZ", "d.txt.bz2 is not a complete bzip2 file .it ends within a member"),
    (
        "c.txt.xz",
        lzma.compress(b"good\n") + b"\xfe" + lzma.compress(b"lost\n")[1:],
        "c.txt.xz is not a complete xz file",
    ),
    ("a.txt", b"", "a.txt is empty"),
    ("a.tsv", b"text\tn\n", "a.tsv is empty"),
    ("a.tsv", b"n\ttext\n1\tx\n2\n", r"a.tsv:3 has 1 fields, too few for column 'text'"),
    ("a.tsv", b"text\tn\nx\t1\ny\tz\t2\n", r"a.tsv:3 has 3 fields, but the header has 2"),
    ("a.tsv", b"A cat sleeps.\nA dog runs.\n", r"a.tsv:1 is the header .* but 'A cat sleeps.' does not look like"),
    ("a.csv", b"id;text\n1;A cat\n", r"a.csv:1 .* 'id;text' does not look like .*; check the separator"),
    (
        "a.jsonl",
        b'{"text": "a", "n": "1"}\n{"n": "2"}\n',
        r"a.jsonl:2 has no column 'text', unlike the first row; it has 'n'",
    ),
    ("a.csv", b"text\nyes, no\n", r"a.csv:2 has 2 fields, but the header has 1"),
    ("a.csv", b'n,text\n1,"x\n', r"a.csv:2 is not valid CSV"),
    (
        "a.csv",
        b"n,m\n1,x\n",
        r"a.csv:1 \(header\) has no column 'text'; it has 'n', 'm'.*data.columns=\(\(\"text\", \"COLUMN\"\),\) in a training",
    ),
    ("a.jsonl", b'{"text": "x"}\n{"text": \n', "a.jsonl:2 is not valid JSON"),
    ("a.jsonl", b'{"text": "x"}\n["text"]\n', "a.jsonl:2 is list, not an object"),
    ("a.jsonl", b'{"text": "x", "n": 1}\n{"n": 2, "m": 3}\n', "a.jsonl:2 has no column 'text'"),
    ("a.jsonl", b'{"text": 3}\n', "a.jsonl:1: column 'text' holds int 3, not text"),
    ("a.jsonl", b'{"text": "\\ud83d"}\n', "a.jsonl:1: column 'text' holds an unpaired surrogate"),
    ("a.jsonl", b'{"text": "x", "n": ' + b"1" * 5000 + b"}\n", "a.jsonl:1 is not valid JSON .*4300 digits"),
    ("a.jsonl", b'{"text": ' + b"[" * 100_000, "a.jsonl:1 is not readable JSON: it is nested too deeply"),
    ("a.tsv", b"text\ttext\nx\ty\n", r"a.tsv:1 \(header\) has the column 'text' twice"),
    ("a.parquet", b"PAR1 no PAR1", "a.parquet is not a complete Parquet file"),
    ("a.doc", b"x", "a.doc has an unknown format; use .txt, .tsv, .csv, .jsonl, .parquet"),
]


@pytest.mark.parametrize(("name", "data", "message"), FAULTS, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(FAULTS)])
def test_a_fault_is_named_with_its_file_and_line(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message) as raised:
        list(sources.read([str(tmp_path / name)]))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
@pytest.mark.parametrize("block", [3, 1 << 20])
def test_a_compressed_file_may_have_several_members(tmp_path, monkeypatch, suffix, pack, block):
    monkeypatch.setattr(reading, "BLOCK_BYTES", block)
    path = tmp_path / f"a.txt.{suffix}"
    path.write_bytes(pack(b"a\nb") + pack(b"") + pack(b"c\n" * 2000) + b"\0" * 8)
    assert list(sources.read([str(path)])) == [("a",), ("bc",), *[("c",)] * 1999]


def test_every_kind_of_line_end_ends_a_sentence(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"old Mac\rWindows\r\n\rUnix\nlast")
    assert list(sources.read([str(tmp_path / "a.txt")])) == [("old Mac",), ("Windows",), ("",), ("Unix",), ("last",)]
    (tmp_path / "a.csv").write_bytes(b'text\r"two\rlines"\r')
    assert list(sources.read([str(tmp_path / "a.csv")])) == [("two\rlines",)]


def test_line_ends_may_fall_on_the_edge_of_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_BYTES", 4)
    (tmp_path / "a.txt").write_bytes(b"abc\r\nd\nefghijklm\r\nno")
    assert list(sources.read([str(tmp_path / "a.txt")])) == [("abc",), ("d",), ("efghijklm",), ("no",)]


@pytest.mark.parametrize("name", ["a.txt.gz", "a.tsv.gz", "a.csv.gz", "a.jsonl.gz"])
def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(tmp_path, name):
    with gzip.open(tmp_path / name, "wb", compresslevel=1) as file:
        file.write(b"text\n" if name[2] in "tc" and name != "a.txt.gz" else b"x\n")
        for _ in range(40):
            file.write(b"a" * (1 << 20))
    tracemalloc.start()
    limits = {"line_bytes": 1 << 20}
    with pytest.raises(InputError, match="longer than 1,048,576 bytes.*max_line_bytes|not valid JSON"):
        list(sources.read([str(tmp_path / name)], **limits))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_a_cell_of_many_lines_is_bounded(tmp_path):
    write(tmp_path / "a.csv", 'text\n"' + "ab\n" * 1000)
    with pytest.raises(InputError, match="a.csv:.* field larger than field limit"):
        list(sources.read([str(tmp_path / "a.csv")], line_bytes=1000))


def test_a_parquet_dictionary_is_not_spelled_out(tmp_path):
    long = "a" * (1 << 14)
    pyarrow.parquet.write_table(pyarrow.table({"text": [long] * 3000, "n": [1] * 3000}), tmp_path / "a.parquet")
    rows = sources.read([str(tmp_path / "a.parquet")], ["text"])
    first, second = next(rows), next(rows)
    assert first == second == (long,) and first[0] is second[0]
    with pytest.raises(InputError, match="a.parquet row 1 is longer than 1,000 bytes"):
        list(sources.read([str(tmp_path / "a.parquet")], line_bytes=1000))


def test_pipes_devices_and_the_kernels_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "zero.txt").symlink_to("/dev/zero")
    (tmp_path / "environment.txt").symlink_to("/proc/self/environ")
    for name, kind in [("pipe", "a pipe"), ("zero", "a device"), ("environment", "a file of the kernel")]:
        for use in (lambda spec: list(sources.read([spec])), lambda spec: sources.content_digest([spec])):
            with pytest.raises(InputError, match=f"{name}.txt is {kind}; only regular files can be read"):
                use(str(tmp_path / f"{name}.txt"))
    with pytest.raises(InputError, match="NUL"):
        list(sources.read([f"{tmp_path}/a\0.txt"]))


def test_missing_files_globs_and_folders_are_told_apart(tmp_path):
    for spec, message in [("a.txt", "does not exist"), ("*.txt", "no file matches"), ("", "is a folder; name a file")]:
        with pytest.raises(InputError, match=message):
            list(sources.read([f"{tmp_path}/{spec}"]))


def test_a_txt_file_has_no_second_column(tmp_path):
    with pytest.raises(InputError, match="has no column 'translation': a .txt file has only 'text'"):
        list(sources.read([write(tmp_path / "a.txt", "x\n")], ["text", "translation"]))


def test_the_content_digest_follows_bytes_and_order_but_not_names(tmp_path):
    named = [("a.txt", "x\n"), ("b.txt", "y\n"), ("c.txt", "x\n")]
    a, b, again = (write(tmp_path / name, text) for name, text in named)
    digest = sources.content_digest
    assert digest([a]) == digest([again])
    assert len({digest([a]), digest([b]), digest([a, b]), digest([b, a]), digest([a, a])}) == 5


def test_a_hint_keeps_the_columns_that_are_named_and_no_column_is_named_in_vain(tmp_path):
    write(tmp_path / "a.tsv", "en\tfr\nx\ty\n")
    write(tmp_path / "a.txt", "x\n")
    with pytest.raises(
        InputError, match=r'data.columns=\(\("text", "en"\), \("translation", "COLUMN"\)\) in a training'
    ):
        list(sources.read([str(tmp_path / "a.tsv")], {"text": "en", "translation": "de"}))
    for spec in (str(tmp_path / "a.txt"), "hf:o/s:train:a"):
        with pytest.raises(InputError, match=f"--column=body has no effect on {spec}"):
            sources.refuse_unread("body", [spec], "--column")
        sources.refuse_unread("body", [spec, str(tmp_path / "a.tsv")], "--column")
        sources.refuse_unread("text", [spec], "--column")


@pytest.mark.parametrize("find", [sources.source_files, locate, parts.load_module])
def test_a_home_that_does_not_exist_is_one_line(find):
    with pytest.raises(InputError, match="~nosuchuser/x.py'? does not exist"):
        find("~nosuchuser/x.py")


def test_hub_sets_are_read_through_datasets(tmp_path):
    write(tmp_path / "train.csv", "premise,label\nx,1\ny,2\n")
    assert list(sources.read([f"hf:{tmp_path}:train:premise"])) == [("x",), ("y",)]
    with pytest.raises(InputError, match="has no column 'text'; it has 'premise', 'label'. End the spec with one of"):
        list(sources.read([f"hf:{tmp_path}:train:text"]))
    assert sources.content_digest([f"hf:{tmp_path}:train:premise"])
    assert list(sources.read([f"hf:{tmp_path}:train[:1]:premise"])) == [("x",)]
    write(tmp_path / "train.csv", "premise,label\nx,one\n")
    assert list(sources.read([f"hf:{tmp_path}:train:premise+label"])) == [("x one",)]


def test_no_other_column_of_a_hub_set_is_decoded(monkeypatch):
    table = datasets.Dataset.from_dict({"a": ["x", "y"], "b": ["1", "2"], "image": [b"not one", b"nor this"]})
    table = table.cast_column("image", datasets.Image())
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, split: table)
    rows = list(sources.read(["hf:o/s:train:a"], {"text": "", "second": "b", "third": "a"}))
    assert rows == [("x", "1", "x"), ("y", "2", "y")]


def test_bytes_of_a_hub_set_are_text_or_one_clear_line(monkeypatch):
    table = datasets.Dataset.from_dict({"a": ["caf\u00e9".encode(), b"\xff"]})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, split: table)
    rows = sources.read(["hf:o/s:train:a"])
    assert next(rows) == ("caf\u00e9",)
    with pytest.raises(InputError, match="row 2: column 'a' has bytes that are not UTF-8"):
        next(rows)


def test_a_hub_set_that_cannot_be_had_says_how_to_use_a_copy():
    with pytest.raises(InputError, match="cannot be loaded .* HF_HUB_OFFLINE=1") as raised:
        list(sources.read(["hf:nobody/no-such-set:train:text"]))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("spec", ["hf:name", "hf::train:text", "tfds:name:train", "tfds:a:b:c:d", "hf:a:b:c:d:e"])
def test_a_malformed_hub_spec_is_answered_with_the_form(spec):
    with pytest.raises(InputError, match=r"is malformed; write hf:NAME"):
        list(sources.read([spec]))


def test_tfds_sets_in_array_record_are_read_without_tensorflow(tmp_path):
    path = tfds_set(tmp_path, "array_record")
    assert list(sources.read([f"tfds:{path}:train:sentence"])) == [("x é",), ("y",)]
    with pytest.raises(InputError, match="has no split 'test'; it has train"):
        list(sources.read([f"tfds:{path}:test:sentence"]))
    assert "tensorflow" not in sys.modules


def test_an_unknown_tfds_set_says_what_to_do():
    with pytest.raises(InputError, match="cannot be loaded .* prepare it first, or give its folder") as raised:
        list(sources.read(["tfds:nobodys_set_of_text:train:text"]))
    assert "\n" not in str(raised.value)


def test_tfds_sets_in_another_form_say_how_to_convert(tmp_path):
    path = tfds_set(tmp_path, "array_record")
    info = path / "dataset_info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"fileFormat": "tfrecord"}))
    with pytest.raises(InputError, match="is stored as tfrecord.*convert_format"):
        list(sources.read([f"tfds:{path}:train:sentence"]))


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
