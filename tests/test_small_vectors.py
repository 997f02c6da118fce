"""Vectors of fewer numbers and fewer bits: to the byte what sentence-transformers writes, and scored by `evaluate`."""

import numpy as np
import pytest

from jaxdistill import evaluate
from jaxdistill.checkpoints.folder import save
from jaxdistill.core import InputError
from jaxdistill.evals.beir import RetrievalSet
from jaxdistill.evals.documents import ranked_by_vectors, scored
from jaxdistill.evals.similarity import spearman
from jaxdistill.evals.small_forms import calibration
from jaxdistill.inference import load
from jaxdistill.ops.small_vectors import Form, as_ranges, as_read, as_stored, cut, floats, ranges_of

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


def test_evaluate_scores_stored_vectors_against_their_bytes(model, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
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
    ("option", "said"),
    [
        ("--dims=8,x", "--dims=8,x must be positive numbers, separated by commas"),
        ("--dtypes=int4", "dtype 'int4' is unknown"),
        ("--dims=17", "dims=17 must be from 1 to 16"),
    ],
)
def test_what_cannot_be_is_one_line(model, tmp_path, capsys, option, said):
    (tmp_path / "pairs.csv").write_text("score,sentence1,sentence2\n1,a,b\n2,c,d\n")
    given = [f"--pairs={tmp_path / 'pairs.csv'}", "--tasks=pairs", f"--out={tmp_path}/", option]
    assert said in refused(evaluate, [f"--model={model}", *given], capsys)
