"""docs/stores.md: every snippet runs as printed, and its store finds what exact search finds."""

import functools
import re
import shlex

import numpy as np
import pytest
from pyarrow import parquet

import jaxdistill
from jaxdistill import encode
from jaxdistill.data.sources import read
from jaxdistill.paths import in_package

from conftest import ROOT, TEACHER

OPENING, *SECTIONS = (ROOT / "docs" / "stores.md").read_text(encoding="utf-8").split("\n## ")
SNIPPETS = {part.split("\n")[0]: re.findall(r"^```python\n(.*?)^```", part, re.M | re.S) for part in SECTIONS}
PACKAGES = {
    "FAISS": "faiss",
    "usearch": "usearch",
    "LanceDB": "lancedb",
    "sqlite-vec": "sqlite_vec",
    "Qdrant": "qdrant_client",
    "DuckDB": "duckdb",
}
OTHER_FILES = {
    "float16": {"vectors.npy": "half.npy", "vectors.parquet": "half.parquet", "vectors/*.parquet": "half.parquet"},
    "centred": {"bits.npy": "centred.npy", "bits.parquet": "centred.parquet"},
    "folder of parts": {"vectors.parquet": "vectors/"},
    "one table": {"vectors/*.parquet": "vectors.parquet"},
}
"""Other files that the snippets for `vectors` and `bits` read."""
TOP = 5


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The folder in which the page's commands ran, the folder of parts in four parts, and the names of its first snippet."""
    folder = tmp_path_factory.mktemp("stores")
    sentences = [line for (line,) in read(["package:jaxdistill/assets/heldout.txt.bz2"])][:200]
    assert len(set(sentences)) == 200
    (folder / "sentences.txt").write_text("\n".join(sentences) + "\n")
    (folder / "runs" / "l3").mkdir(parents=True)
    (folder / "runs" / "l3" / "export").symlink_to(in_package(TEACHER))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        embedder = encode.load("runs/l3/export")
        encode_ids, known = embedder.encode_ids, {}

        def encode_once(ids, **options):
            key = tuple(row.tobytes() for row in ids)
            return known[key] if key in known else known.setdefault(key, encode_ids(ids, **options))

        patch.setattr(embedder, "encode_ids", encode_once)
        patch.setattr(encode, "load", lambda *_, **__: embedder)
        patch.setattr(encode, "encode_file", functools.partial(encode.encode_file, part_rows=64))
        commands = re.findall(r"^python -m jaxdistill.encode (.*)", OPENING, re.M)
        for command in commands:
            encode.main([*shlex.split(command), "--quiet"])
        assert len(commands) == 11 and len(list((folder / "vectors").glob("*.parquet"))) == 4
        (code,) = re.findall(r"^```python\n(.*?)^```", OPENING, re.M | re.S)
        exec(code, names := {"sentences": sentences})
    return folder, names


def distances(files, form):
    """From the query to each row, as the page says that the form is compared."""
    folder, names = files
    rows = np.load(folder / f"{form}.npy")
    if form in ("bits", "centred"):
        return np.bitwise_count(rows ^ names[form]).sum(axis=1)
    rows = rows.astype(np.float32)
    if form == "int8":
        return np.linalg.norm(rows - names["codes"], axis=1)
    return 1 - rows @ names["query"] / np.linalg.norm(rows, axis=1) / np.linalg.norm(names["query"])


def check(files, form, found):
    """The rows or sentences are the nearest ones in order; of those equally near, any."""
    sentences = files[1]["sentences"]
    rows = [sentences.index(one) if isinstance(one, str) else int(one) for one in found]
    exact = distances(files, form)
    assert len(set(rows)) == TOP
    np.testing.assert_allclose(exact[rows], np.sort(exact)[:TOP], rtol=0, atol=2e-4)


def readings():
    """Each store with the page's files, and with the others that its snippets can read."""
    for store in PACKAGES:
        yield store, "as printed"
        for name, others in OTHER_FILES.items():
            if any(f'"{file}"' in code or f"'{file}'" in code for file in others for code in SNIPPETS[store]):
                yield store, name


@pytest.mark.parametrize(("store", "read"), [*readings()])
def test_a_store_finds_what_exact_search_finds(files, tmp_path, monkeypatch, store, read):
    others = OTHER_FILES.get(read, {})
    pytest.importorskip(PACKAGES[store])
    folder, names = files
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    names = names | ({"bits": names["centred"]} if read == "centred" else {})
    for code in SNIPPETS[store]:
        form = re.search(r"(vectors|int8|bits)[./]", code)[1]
        for file, other in others.items():
            code = code.replace(file, other)
        exec(code, names)
        check(
            files,
            {("vectors", "float16"): "half", ("bits", "centred"): "centred"}.get((form, read), form),
            names["found"],
        )


def rows_of(files, monkeypatch, vectors, **options):
    folder, names = files
    monkeypatch.chdir(folder)
    [hits] = jaxdistill.search(
        "runs/l3/export", "sentences.txt", names["question"], top=TOP, vectors=vectors, **options
    )
    return [hit.row for hit in hits]


@pytest.mark.parametrize(
    ("vectors", "form"), [("vectors.npy", "vectors"), ("vectors/", "vectors"), ("half.parquet", "half")]
)
def test_search_finds_the_same(files, monkeypatch, vectors, form):
    check(files, form, rows_of(files, monkeypatch, vectors))


def test_rescoring_is_that_of_search(files, monkeypatch):
    pytest.importorskip("faiss")
    want = rows_of(files, monkeypatch, "bits.parquet", full_vectors="vectors.npy")
    (code,) = SNIPPETS["Rescoring"]
    exec(code, names := dict(files[1]))
    np.testing.assert_array_equal(names["found"], want)


def test_lancedb_refuses_the_one_form_that_the_page_says_it_does(files, tmp_path):
    lancedb = pytest.importorskip("lancedb")
    table = lancedb.connect(tmp_path).create_table("codes", parquet.read_table(files[0] / "int8.parquet"))
    with pytest.raises(ValueError, match="has element type Int8 and the query vector is Float32"):
        table.search(files[1]["codes"], vector_column_name="embedding").limit(TOP).to_list()
