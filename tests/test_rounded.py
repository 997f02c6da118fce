"""`student.vectors`: the objective sees vectors as an index stores them, and its gradient passes the rounding."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import quantize_embeddings

from jaxdistill.core import Encoded, InputError
from jaxdistill.evals import dev_metric
from jaxdistill.evals.beir import RetrievalSet
from jaxdistill.evals.pairs import GradedPairs
from jaxdistill.evals.small_forms import calibration
from jaxdistill.objectives.ckd import CKD
from jaxdistill.objectives.embedding import Embedding
from jaxdistill.objectives.parts.nested import Nested
from jaxdistill.objectives.parts.rounded import rounded
from jaxdistill.ops.small_vectors import STEPS, Form, as_read, ranges_of
from jaxdistill.students.cut import Cut
from jaxdistill.training.setup import dev

from objective_cases import CKD_OPTIONS, EMBEDDING, encoded, start, value_and_gradient

PLAIN = Embedding(**EMBEDDING | dict(third="none", second_view=""))


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize("form, precision", [("int8", "int8"), ("binary", "ubinary")])
def test_the_objective_sees_what_the_stored_bytes_stand_for(form, precision):
    vectors = np.random.default_rng(0).standard_normal((12, 2, 16)).astype(np.float32)
    lengths, rows = np.linalg.norm(vectors, axis=-1, keepdims=True), unit(vectors).reshape(-1, 16)
    ranges = np.stack([rows.min(axis=0), rows.max(axis=0)])
    codes = quantize_embeddings(rows, precision=precision, ranges=ranges)
    steps = (ranges[1] - ranges[0]) / STEPS["int8"]
    if form == "binary":
        expected, apart = (np.unpackbits(codes, axis=1) * 2.0 - 1.0) / 4, 0.0
    else:
        expected, apart = ranges[0] + (codes.astype(np.float32) + 128.5) * steps, steps
    seen = np.asarray(rounded(vectors, form)) / lengths
    differences = np.abs(seen - expected.reshape(vectors.shape))
    assert np.all(differences <= apart + 1e-6)
    assert (
        np.mean(differences < 1e-6) > 0.9
    )  # sentence-transformers may give the highest number of a dimension a step of its own
    assert np.abs(seen - unit(vectors)).max() > 0.4 * steps.min()


def test_centred_vectors_are_those_that_an_index_of_the_batch_reads():
    vectors = np.random.default_rng(0).standard_normal((12, 2, 16)).astype(np.float32) + 1  # in a cone
    rows = vectors.reshape(-1, 16)
    form = Form(dims=16, dtype="centred", ranges=ranges_of(rows, 16, "centred"))
    seen = np.asarray(rounded(vectors, "centred")) / np.linalg.norm(vectors, axis=-1, keepdims=True)
    np.testing.assert_allclose(seen.reshape(-1, 16), as_read(form, rows), atol=1e-6)


def test_a_zero_vector_stays_zero():
    assert not np.any(rounded(np.zeros((2, 1, 4), np.float32), "binary"))


@pytest.mark.parametrize("form", ["int8", "binary", "centred"])
@pytest.mark.parametrize("targets", ["truncated", "projected"])
def test_each_nested_width_is_rounded_by_itself_and_the_gradient_goes_straight_through(form, targets, mesh):
    student, teacher = encoded(np.random.default_rng(1), PLAIN)
    small = Nested(objective=PLAIN, dims=(4,), targets=targets, vectors=form)
    params, state = start(small, mesh)
    losses, (gradient, _) = value_and_gradient(small, mesh, student, teacher, params, state)
    wanted, total, by_hand = torch.tensor(teacher.sentences[:, 0]), 0.0, np.zeros_like(student.sentences)
    for dim in (4, 8):
        cut = student.sentences[..., :dim]
        seen = torch.tensor(np.asarray(rounded(cut, form))).requires_grad_()
        through = seen[:, 0]
        if targets == "projected" and dim == 4:
            through = through @ torch.tensor(np.asarray(params["nested/4/kernel"]))
        aim = wanted[:, : through.shape[-1]]
        each = (F.normalize(through, dim=-1) - F.normalize(aim, dim=-1)).square().mean(dim=-1) / 2
        each.mean().backward()
        by_hand[..., :dim] += seen.grad.numpy()
        total = total + each.detach().numpy()
    np.testing.assert_allclose(losses, total, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient, by_hand, atol=1e-5)
    assert np.all(np.abs(by_hand).max(axis=(0, 1)) > 1e-4)


def test_without_nested_widths_the_loss_is_the_objective_on_the_rounded_vectors_alone(mesh):
    """With a queue, which has the teacher's vectors as they are."""
    inner = CKD(**CKD_OPTIONS)
    student, teacher = encoded(np.random.default_rng(2), inner)
    small = Nested(objective=inner, dims=(), targets="projected", vectors="binary")
    params, state = start(small, mesh)
    losses, queues, _ = small(params, state, student, teacher, mesh=mesh)
    signs = Encoded(np.where(student.sentences > 0, 1.0, -1.0).astype(np.float32))
    expected, queue, _ = inner(params, state["whole"], signs, teacher, mesh=mesh)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    np.testing.assert_array_equal(queues["whole"].ring, queue.ring)


def test_int8_and_centred_take_their_ranges_from_the_whole_batch():
    assert Nested(objective=PLAIN, dims=(), targets="projected", vectors="int8").couples_examples
    assert Nested(objective=PLAIN, dims=(), targets="projected", vectors="centred").couples_examples
    assert not Nested(objective=PLAIN, dims=(), targets="projected", vectors="binary").couples_examples


@pytest.mark.parametrize("form", ["float", "int8", "binary", "centred"])
def test_dev_evaluations_score_the_vectors_as_they_are_stored(monkeypatch, form):
    rng, known = np.random.default_rng(3), {}

    def embed(sentences, *, role=""):
        return np.stack([known.setdefault((one, role), rng.standard_normal(16) + 1) for one in sentences])

    texts = [f"text {row}" for row in range(20)]
    asked, found = {f"q{row}": f"question {row}" for row in range(10)}, dict(zip(texts, texts, strict=True))
    judged = {f"q{row}": {f"text {row}": 1} for row in range(10)}
    retrieval = RetrievalSet(name="own", split="dev", queries=asked, documents=found, judged=judged, also_documents=())
    graded = GradedPairs(name="own", first=tuple(texts[:10]), second=tuple(texts[10:]), scores=np.arange(10.0))
    own = dev.DevSets(named={}, pairs=graded, retrieval=[retrieval], entities=[])
    options = SimpleNamespace(evals=SimpleNamespace(best=""), student=SimpleNamespace(vectors=form))
    judge = dev.make_dev(options, own, None)
    dtype = "float32" if form == "float" else form
    sample = embed(calibration()) if dtype in STEPS else np.empty((0, 16))
    stored = Form(dims=16, dtype=dtype, ranges=ranges_of(sample, 16, dtype))
    expected, calibrated = {}, []
    for task in dev_metric.available_tasks(
        named={}, graded=own.pairs, agreement_task=None, retrieval=own.retrieval
    ).values():
        expected |= task(lambda sentences, **roles: as_read(stored, embed(sentences, **roles)))

    def counted(sentences, **roles):
        calibrated.extend(["once"] * (list(sentences) == calibration()))
        return embed(sentences, **roles)

    assert judge.scores(counted) == pytest.approx(expected)
    assert len(judge.tasks) > 1 and len(calibrated) == (dtype in STEPS)


def test_bits_and_widths_that_no_vector_has_are_refused_with_the_student():
    model = SimpleNamespace(definition=SimpleNamespace(embedding_width=12))
    with pytest.raises(
        InputError, match="student.vectors=binary packs 8 numbers .* 12 is not a multiple of 8; set --config"
    ):
        Cut(head="none", vectors="binary").with_head(None, model)
    with pytest.raises(InputError, match=r"student.dims=\(8, 16\) goes beyond the student's vectors of 12"):
        Cut(head="none", dims=(8, 16)).with_head(None, model)
    assert Cut(head="none", dims=(10,), vectors="int8").with_head(None, model) is model
