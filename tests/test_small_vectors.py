"""Vectors of fewer numbers and fewer bits: to the byte what sentence-transformers writes, stored, and searched."""

import re

import numpy as np
import pytest

from jaxdistill import encode, evaluate, search
from jaxdistill.checkpoints.folder import save
from jaxdistill.core import InputError
from jaxdistill.data import vectors
from jaxdistill.evals.beir import RetrievalSet
from jaxdistill.evals.documents import ranked_by_vectors, scored
from jaxdistill.evals.similarity import spearman
from jaxdistill.evals.small_forms import calibration
from jaxdistill.inference import load, to_file
from jaxdistill.inference.index import nearest_stored
from jaxdistill.ops.small_vectors import STEPS, Form, as_ranges, as_read, as_stored, cut, floats, ranges_of

from program import refused
from tiny_models import saved_tiny_model, tiny_model
from tiny_text import made_up

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(50, 24)).astype(np.float32) * RNG.uniform(0.5, 2.0, size=24).astype(np.float32)


def form_of_rows(dims: int, dtype) -> Form:
    return Form(dims=dims, dtype=dtype, ranges=ranges_of(ROWS, dims, dtype))


def test_int8_and_binary_are_those_of_sentence_transformers():
    quantization = pytest.importorskip("sentence_transformers.util.quantization")
    unit = cut(ROWS, 16)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    ranges = np.stack([unit.min(axis=0), unit.max(axis=0)])
    for dtype, theirs in (("int8", "int8"), ("binary", "ubinary")):
        expected = quantization.quantize_embeddings(unit, theirs, ranges=ranges)
        ours = as_stored(form_of_rows(16, dtype), ROWS)
        assert ours.dtype == expected.dtype
        np.testing.assert_array_equal(ours, expected)


def test_a_case_by_hand():
    rows = np.array([[4.0, -3.0, 9.0], [0.0, 0.0, 1.0], [-5.0, 12.0, 0.0]])
    np.testing.assert_allclose(cut(rows, 2), [[0.8, -0.6], [0, 0], [-5 / 13, 12 / 13]], atol=1e-6)
    form = Form(dims=2, dtype="int8", ranges=((-1.0, 0.0), (1.0, 0.0)))
    np.testing.assert_array_equal(
        as_stored(form, rows), [[101, -128], [-1, -128], [-50, -128]]
    )  # floor((v + 1) / 2 * 255)
    np.testing.assert_allclose(floats(form, as_stored(form, rows))[:, 1], 0)  # a dimension without a range
    bits = as_stored(Form(dims=8, dtype="binary"), np.array([[1, -1, 1, 0, 0, -2, 3, 4.0, 9]]))
    np.testing.assert_array_equal(bits, [[0b10100011]])
    np.testing.assert_array_equal(floats(Form(dims=8, dtype="binary"), bits), [[1, -1, 1, -1, -1, -1, 1, 1]])


def test_centred_bits_by_hand():
    rows = np.tile([[0.6, 0.8, 0, 0], [0.8, 0.6, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0.0]], 2) / 2**0.5
    form = Form(dims=8, dtype="centred", ranges=ranges_of(rows, 8, "centred"))
    assert form.ranges is not None
    # The means of the first two dimensions are 0.6 / 2**0.5, the mean absolute deviations 0.3 / 2**0.5.
    np.testing.assert_allclose(np.array(form.ranges) * 2**0.5, [[0, 0, 0, 0] * 2, [1.2, 1.2, 0, 0] * 2], atol=1e-6)
    above = np.array([[0.5, 0.7, 0, 1], [0.7, 0.5, 0, -1]])
    rows = np.tile(above, 2) / np.linalg.norm(above, axis=1)[:, None] * 2**0.5
    bits = as_stored(form, rows)
    np.testing.assert_array_equal(bits, [[0b00010001], [0b00000000]])


def test_what_is_read_back_is_half_a_step_away_at_most():
    form = form_of_rows(24, "int8")
    assert form.ranges is not None
    step = (np.array(form.ranges[1]) - form.ranges[0]) / 255
    assert (np.abs(floats(form, as_stored(form, ROWS)) - cut(ROWS, 24)) <= step * 0.501).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Form(dims=12, dtype="binary"), "dims=12 must be a multiple of 8"),
        (lambda: Form(dims=12, dtype="centred", ranges=ranges_of(ROWS, 12, "centred")), "centred packs 8 dimensions"),
        (
            lambda: Form(dims=8, dtype="int4"),
            "dtype 'int4' is unknown; allowed: float32, float16, int8, binary, centred.",
        ),
        (lambda: Form(dims=8, dtype="int8"), "ranges= must be given for int8 and centred vectors"),
        (lambda: Form(dims=8, dtype="binary", ranges=ranges_of(ROWS, 8, "int8")), "and only for them"),
        (lambda: Form(dims=8, dtype="int8", ranges=ranges_of(ROWS, 16, "int8")), "the ranges are not for 8 dimensions"),
        (lambda: ranges_of(ROWS[:1], 8, "int8"), "2 or more vectors; got 1"),
        (lambda: as_ranges([[0.0, 1.0], [1.0, -1.0]]), r"ranges\[:, 1\] is 1.0 to -1.0; the lowest value comes first"),
        (lambda: as_ranges([[np.nan], [1.0]]), r"ranges\[:, 0\] is nan to 1.0"),
    ],
)
def test_a_form_that_cannot_be_is_one_line(make, said):
    with pytest.raises(InputError, match=said):
        make()


SENTENCES = made_up(30, words=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES) + "\n")
    return str(tmp_path / "text.txt")


def written(model, text, output, *options):
    encode.main(
        [f"--model={model}", f"--input={text}", f"--output={output}", "--precision=float32", "--quiet", *options]
    )
    return output


@pytest.mark.parametrize("dtype", ["float16", "int8", "binary", "centred"])
def test_files_tables_and_the_python_api_hold_the_same_bytes(model, text, tmp_path, dtype):
    options = [f"--dtype={dtype}", "--dims=8"]
    embedder = load(model, precision="float32")
    places = [tmp_path / "v.npy", tmp_path / "v.parquet", f"{tmp_path}/parts/"]
    for output in places:
        written(model, text, output, *options)
    read = [np.concatenate([*vectors.stored_blocks(to_file.local(output, "output"))]) for output in places]
    ranges = np.load(tmp_path / "v.ranges.npy") if dtype in STEPS else None
    if ranges is not None:
        unit = cut(embedder.encode(SENTENCES), 8)
        mean = unit.mean(axis=0)
        away = 2 * np.abs(unit - mean).mean(axis=0)
        expected = [unit.min(axis=0), unit.max(axis=0)] if dtype == "int8" else [mean - away, mean + away]
        np.testing.assert_allclose(ranges, expected, atol=1e-6)
    direct = embedder.encode(SENTENCES, dims=8, dtype=dtype, ranges=ranges)
    np.testing.assert_array_equal(embedder.encode_document(SENTENCES, dims=8, dtype=dtype, ranges=ranges), direct)
    for one in read:
        assert one.dtype == direct.dtype
        assert (one == direct).mean() > 0.99  # another batch may round a number over the edge of its step
        np.testing.assert_array_equal(one, read[0])
    form = vectors.form_of(tmp_path / "v.parquet")
    assert (form.dims, form.dtype) == (8, dtype) and vectors.shape(tmp_path / "v.npy") == (30, 8)
    first = next(vectors.blocks(tmp_path / "v.npy"))
    np.testing.assert_array_equal(first, next(vectors.blocks(tmp_path / "v.parquet")))
    called = encode(model, SENTENCES, dims=8, dtype=dtype, output=tmp_path / "w.npy", precision="float32")
    np.testing.assert_array_equal(called, read[0])


@pytest.mark.parametrize("rows", [99, 100])
def test_plain_bits_that_say_little_are_advised_against(model, tmp_path, capsys, rows):
    sentences = made_up(rows, words=3)
    (tmp_path / "text.txt").write_text("\n".join(sentences) + "\n")
    above = np.mean(load(model, precision="float32").encode(sentences) > 0, axis=0)
    share = np.mean((above < 0.1) | (above > 0.9))
    assert share > 0.2  # a random model's vectors lie in a cone
    for dtype in ("binary", "centred"):
        written(model, tmp_path / "text.txt", tmp_path / f"{dtype}.npy", f"--dtype={dtype}")
        said = f"{share:.0%} of the numbers have the same sign in nine of ten texts" in capsys.readouterr().out
        assert said == (dtype == "binary" and rows == 100)


def test_new_bits_never_lie_beside_the_ranges_of_old_ones(model, text, tmp_path):
    for dtype in ("centred", "binary", "int8", "binary"):
        (tmp_path / "v.npy").unlink(missing_ok=True)
        written(model, text, tmp_path / "v.npy", f"--dtype={dtype}")
        assert vectors.form_of(tmp_path / "v.npy").dtype == dtype
        assert (tmp_path / "v.ranges.npy").exists() == (dtype in STEPS)


def test_a_killed_int8_run_goes_on_with_the_same_ranges(model, text, tmp_path, monkeypatch):
    monkeypatch.setattr(to_file, "CALIBRATED", 20)
    embedder = load(model, precision="float32")
    options = {"dtype": "int8", "progress": False, "part_rows": 8}
    to_file.encode_file(embedder, [text], tmp_path / "whole.npy", **options)
    with monkeypatch.context() as broken:
        made = to_file._part

        def fails_later(*arguments):
            if arguments[-3].start >= 16:
                raise KeyboardInterrupt
            return made(*arguments)

        broken.setattr(to_file, "_part", fails_later)
        with pytest.raises(KeyboardInterrupt):
            to_file.encode_file(embedder, [text], tmp_path / "killed.npy", **options)
    assert len([*(tmp_path / ".killed.npy.parts").glob("part-*")]) == 2
    monkeypatch.setattr(to_file, "_sampled_vectors", None)  # another device might round them otherwise
    written = []
    keep = vectors.write_part
    monkeypatch.setattr(to_file, "write_part", lambda path, **given: written.append(path) or keep(path, **given))
    to_file.encode_file(embedder, [text], tmp_path / "killed.npy", **options)
    assert len(written) == 2  # the other two were there
    for name in ("{}.npy", "{}.ranges.npy"):
        assert (tmp_path / name.format("killed")).read_bytes() == (tmp_path / name.format("whole")).read_bytes()


def test_the_first_process_alone_computes_the_ranges_of_int8(model, text, tmp_path, monkeypatch):
    monkeypatch.setattr(to_file, "_sampled_vectors", None)
    monkeypatch.setattr(to_file.processes, "is_first", lambda: False)
    ranges = [[-1.0] * 16, [1.0] * 16]
    monkeypatch.setattr(to_file.processes, "gathered", lambda own: [ranges if own is None else own])
    embedder = load(model, precision="float32")
    to_file.encode_file(embedder, [text], tmp_path / "v.npy", dtype="int8", progress=False)
    np.testing.assert_array_equal(np.load(tmp_path / "v.ranges.npy"), ranges)


def test_another_text_may_give_the_ranges(model, text, tmp_path):
    (tmp_path / "sample.txt").write_text("\n".join(SENTENCES[:5]) + "\n")
    written(model, text, tmp_path / "v.npy", "--dtype=int8", f"--calibrate={tmp_path}/sample.txt")
    unit = cut(load(model, precision="float32").encode(SENTENCES[:5]), 16)
    np.testing.assert_allclose(np.load(tmp_path / "v.ranges.npy"), [unit.min(axis=0), unit.max(axis=0)], atol=1e-6)


def stored_file(path, rows, form):
    vectors.write_part(path, {}, rows, form)
    return path


@pytest.mark.parametrize("dims", [16, 24])
def test_binary_candidates_are_those_of_least_hamming_distance_and_the_query_orders_them(tmp_path, dims, monkeypatch):
    monkeypatch.setattr(vectors, "BLOCK_ROWS", 7)
    form, queries = Form(dims=dims, dtype="binary"), RNG.normal(size=(4, 24))
    path = stored_file(tmp_path / "bits.parquet", ROWS, form)
    signs, asked = np.sign(ROWS[:, :dims]), queries[:, :dims]
    distances = (np.sign(asked)[:, None] != signs[None]).sum(axis=2)
    by_distance = np.argsort(distances, axis=1, kind="stable")
    scores, rows = nearest_stored(queries, path, count=5, rescore=0)
    np.testing.assert_array_equal(rows, by_distance[:, :5])
    np.testing.assert_allclose(scores, 1 - 2 * np.take_along_axis(distances, rows, axis=1) / dims, atol=1e-6)
    scores, rows = nearest_stored(queries, path, count=5, rescore=3)
    for query, candidates, found, score in zip(asked, by_distance[:, :15], rows, scores, strict=True):
        exact = signs[candidates] @ query / np.linalg.norm(query) / dims**0.5
        np.testing.assert_array_equal(found, candidates[np.argsort(-exact)[:5]])
        np.testing.assert_allclose(score, np.sort(exact)[::-1][:5], atol=1e-6)


@pytest.mark.parametrize("layout", ["whole.npy", "whole.parquet", "parts"])
def test_single_rows_are_read_from_their_parts_alone(tmp_path, monkeypatch, layout):
    monkeypatch.setattr(vectors, "BLOCK_ROWS", 7)
    path, read = tmp_path / layout, []
    if layout == "whole.npy":
        np.save(path, ROWS)
    elif layout == "parts":
        path.mkdir()
        for start in range(0, 50, 10):
            vectors.write_part(path / f"part-{start}.parquet", {}, ROWS[start : start + 10])
    else:
        vectors.write_part(path, {}, ROWS)
    blocks_of = vectors._parquet_blocks
    monkeypatch.setattr(vectors, "_parquet_blocks", lambda part: read.append(part.name) or blocks_of(part))
    for wanted in ([0], [49], [6, 7, 13, 14], [9, 10, 39], list(range(50))):
        np.testing.assert_array_equal(vectors.rows_at(path, np.array(wanted)), ROWS[wanted])
    if layout == "parts":
        assert read[:4] == ["part-0.parquet", "part-40.parquet", "part-0.parquet", "part-10.parquet"]


def test_a_damaged_row_is_named_when_it_is_read_alone(tmp_path):
    rows = ROWS.copy()
    rows[31, 2] = np.nan
    np.save(tmp_path / "v.npy", rows)
    assert len(vectors.rows_at(tmp_path / "v.npy", np.array([2, 30]))) == 2
    with pytest.raises(InputError, match="v.npy: row 31 is not finite"):
        vectors.rows_at(tmp_path / "v.npy", np.array([2, 31]))


@pytest.mark.parametrize("dtype", ["float16", "int8", "binary", "centred"])
def test_full_vectors_give_the_exact_order_where_all_rows_are_candidates(tmp_path, dtype):
    queries, full = RNG.normal(size=(3, 24)), tmp_path / "full.npy"
    np.save(full, ROWS)
    path = stored_file(tmp_path / "small.parquet", ROWS, form_of_rows(16, dtype))
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (queries, ROWS)]
    exact = unit[0] @ unit[1].T
    scores, rows = nearest_stored(queries, path, count=5, rescore=10, full=full)
    np.testing.assert_array_equal(rows, np.argsort(-exact, axis=1)[:, :5])
    np.testing.assert_allclose(scores, -np.sort(-exact, axis=1)[:, :5], atol=1e-6)
    assert not np.array_equal(rows, nearest_stored(queries, path, count=5)[1])


@pytest.mark.parametrize("dtype", ["int8", "binary", "centred"])
def test_a_sentence_finds_itself_in_small_vectors(model, text, tmp_path, capsys, dtype):
    index, full = tmp_path / "v.parquet", tmp_path / "full.npy"
    written(model, text, index, f"--dtype={dtype}", "--keep_text", "--role=document")
    written(model, text, full, "--role=document")
    capsys.readouterr()
    arguments = [f"--model={model}", f"--vectors={index}", f"--query={SENTENCES[4]}", "--top=3", "--precision=float32"]
    search.main([*arguments, f"--full_vectors={full}", "--quiet"])
    printed = capsys.readouterr()
    assert re.search(r"^ +1 +1\.0000 +5 ", printed.out, re.MULTILINE) and not printed.err


def test_passages_are_found_in_small_vectors(model, text, tmp_path):
    index = tmp_path / "v.parquet"
    written(model, text, index, "--dtype=binary", "--chunk_tokens=8", "--role=document")
    [hits] = search.search(load(model).encode([SENTENCES[4]], role="document"), index, [], top=2)
    assert hits[0].id == "5" and hits[0].span is not None


def test_evaluate_scores_stored_vectors_against_their_bytes(model, text, tmp_path):
    embedder = load(model, precision="float32")
    pairs = [(SENTENCES[row], SENTENCES[row + 9], float(row)) for row in range(8)]
    sets = {"queries": {"q": SENTENCES[0]}, "relevant_docs": {"q": ["5"]}}
    corpus = {str(number): sentence for number, sentence in enumerate(SENTENCES)}
    asked = {"dims": (8, 16), "dtypes": ("float32", "int8", "binary", "centred"), "out": f"{tmp_path}/report/"}
    found = evaluate(embedder, pairs=pairs, corpus=corpus, **sets, **asked)
    name, sample = embedder.model.source, ranges_of(embedder.encode(calibration()), 8, "int8")
    form = Form(dims=8, dtype="int8", ranges=sample)
    read = cut(
        floats(form, as_stored(form, embedder.encode([*(one for one, _, _ in pairs), *(two for _, two, _ in pairs)]))),
        8,
    )
    expected = spearman(np.arange(8.0), (read[:8] * read[8:]).sum(axis=1), what="pairs")
    scores = found.scores[f"{name} (8 int8)"]
    assert any(abs(score - expected) < 1e-6 for score in scores.values())
    rows = {row["model"]: row["vector_bytes"] for row in found.results["models"]}
    assert rows[f"{name} (16 float32)"] == 64 and rows[f"{name} (8 centred)"] == rows[f"{name} (8 binary)"] == 1
    assert len(rows) == len({tuple(scores.values()) for scores in found.scores.values()}) == 8
    assert found.report is not None and "bytes per vector" in found.report.read_text(encoding="utf-8")


@pytest.mark.parametrize("dtype", ["float32", "int8", "binary", "centred"])
def test_a_teachers_index_has_the_same_form_with_ranges_of_its_own(model, tmp_path, dtype):
    save(tiny_model(tmp_path / "tokenizer", seed=1), tmp_path / "teacher")
    student, teacher = (load(folder, precision="float32") for folder in (model, tmp_path / "teacher"))
    queries, documents = ({f"{letter}{row}": text for row, text in enumerate(SENTENCES)} for letter in "qd")
    judged = {f"q{row}": {f"d{row}": 1} for row in range(30)}
    sets = {"queries": queries, "corpus": documents, "relevant_docs": judged}
    found = evaluate(student, **sets, index_model=tmp_path / "teacher", dims=8, dtypes=dtype)
    form = Form(dims=8, dtype=dtype, ranges=ranges_of(teacher.encode(calibration()), 8, dtype))
    known = RetrievalSet(
        name="in-memory", split="test", documents=documents, queries=queries, judged=judged, also_documents=()
    )
    ranking = ranked_by_vectors(
        lambda texts: cut(student.encode(texts), 8), lambda texts: as_read(form, teacher.encode(texts)), known
    )
    expected = {f"asymmetric {name}": score for name, score in scored(ranking, known).items()}
    assert expected.items() <= found.scores[f"{student.model.source} (8 {dtype})"].items()


@pytest.mark.parametrize(
    ("program", "options", "said"),
    [
        (encode, ["--dims=17"], "dims=17 must be from 1 to 16, the width of the model's vectors."),
        (encode, ["--dtype=binary", "--dims=12"], "dims=12 must be a multiple of 8."),
        (encode, ["--dtype=int4"], "int4"),
        (encode, ["--calibrate=text.txt"], "--calibrate determines ranges, which float32 does not have"),
        (encode, ["--calibrate=text.txt", "--dtype=binary"], "omit it, or give --dtype=centred."),
        (encode, ["--dtype=int8", "--calibrate=absent.txt"], "absent.txt does not exist"),
        (encode, ["--dtype=int8", "--output=s3://bucket/v.npy"], "cannot store the ranges of int8"),
        (encode, ["--dtype=centred", "--output=s3://bucket/v.npy"], "cannot store the ranges of centred"),
        (search, ["--query=a", "--vectors={0}/lost.npy"], "lost.npy has int8 vectors, but their ranges are missing"),
        (search, ["--query=a", "--vectors={0}/cut.npy"], "cut, give the same --dims."),
        (search, ["--query=a", "--vectors={0}/cut.npy", "--dims=8", "--full_vectors={0}/cut.npy"], "but 30 of 16 are"),
        (search, ["--query=a", "--dims=8"], "--dims and --full_vectors are for stored vectors"),
        (evaluate, ["--dims=8,x"], "--dims=8,x must be positive numbers, separated by commas"),
        (evaluate, ["--dtypes=int4"], "dtype 'int4' is unknown"),
        (evaluate, ["--dims=17"], "dims=17 must be from 1 to 16"),
        (search, ["--query=a", "--rescore=-1"], "--rescore=-1 must be at least 0"),
        (
            search,
            ["--query=a", "--vectors={0}/x.npy", "--full_vectors=x", "--rescore=0"],
            "--full_vectors has no effect",
        ),
    ],
)
def test_what_cannot_be_is_one_line(model, text, tmp_path, capsys, program, options, said):
    np.save(tmp_path / "lost.npy", np.zeros((30, 16), np.int8))
    np.save(tmp_path / "cut.npy", np.ones((30, 8), np.float32))
    (tmp_path / "pairs.csv").write_text("score,sentence1,sentence2\n1,a,b\n2,c,d\n")
    of_program = {
        encode: [f"--input={text}", f"--output={tmp_path / 'v.npy'}", "--quiet"],
        search: [f"--corpus={text}", "--quiet"],
        evaluate: [f"--pairs={tmp_path / 'pairs.csv'}", "--tasks=pairs", f"--out={tmp_path}/"],
    }
    given = [option.format(tmp_path) for option in options]
    assert said in refused(program, [f"--model={model}", *of_program[program], *given], capsys)
