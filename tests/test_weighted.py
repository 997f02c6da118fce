"""Several objectives on one forward pass: their sum, their own parameters, options in a config, and what cannot be summed."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from jaxdistill.config import defaults, nested, parse_config, set_options
from jaxdistill.core import Encoded, InputError
from jaxdistill.core.cluster.mesh import make_mesh
from jaxdistill.objectives.weighted import Term, Weighted, selected, terms_of_sources
from jaxdistill.training.build import checked_setup

from objective_cases import CASES, SEVERAL, encoded, start
from program import config_of


@pytest.fixture(autouse=True)
def one_device():
    with jax.set_mesh(make_mesh(devices=jax.devices()[:1])):
        yield


def test_the_loss_is_the_weighted_sum_and_each_objective_reads_its_own_views():
    objective = SEVERAL["several"]
    assert objective.student_views == ("text", "delete_words", "text") and objective.teacher_views == ("text",)
    student, teacher = encoded(np.random.default_rng(0), objective)
    params, state = start(objective)
    losses, states, metrics = jax.jit(objective)(params, state, student, teacher)
    total, views = 0.0, {"congen": (0, 1), "embedding": (0,), "simcse": (0, 2)}
    for term in objective.terms:
        inputs = student._replace(sentences=student.sentences[:, list(views[term.name])])
        term_params = {"log_scale": params["simcse/log_scale"]} if term.name == "simcse" else {}
        term_losses, term_state, scalars = jax.jit(term.objective)(
            term_params, state[term.name], inputs, teacher if term.objective.teacher_views else None
        )
        total = total + term.weight * term_losses
        np.testing.assert_allclose(metrics[f"loss/{term.name}"], term_losses.mean(), rtol=1e-6)
        for name, value in scalars.items():
            np.testing.assert_allclose(metrics[f"{term.name}/{name}"], value, rtol=1e-5)
        jax.tree.map(np.testing.assert_array_equal, states[term.name], term_state)
    np.testing.assert_allclose(losses, total, rtol=1e-6)


def test_keys_go_with_their_views():
    encoded, texts = (np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.arange(12, dtype=np.uint32).reshape(2, 3, 2))
    selection = selected(Encoded(encoded, keys=texts), ("text", "other", "text"), ("other", "text"))
    np.testing.assert_array_equal(selection.sentences, encoded[:, [1, 0]])
    np.testing.assert_array_equal(selection.keys, texts[:, [1, 0]])


def test_a_config_names_them_with_their_options():
    config: Any = defaults(objective="embedding+gram")
    set_options(config, {"objectives.gram.weight": 0.5, "objectives.embedding.distance": "cosine"})
    config.objectives.own = {"kind": "gist", "margin": 0.1, "views": ("text", "positive")}
    parsed: Any = parse_config(config)
    weights = {term.name: (term.kind, term.weight) for term in parsed.objective.terms}
    assert weights == {"embedding": ("embedding", 1.0), "gram": ("gram", 0.5), "own": ("gist", 1.0)}
    assert parsed.objective.terms[0].objective.distance == "cosine"
    assert parse_config(nested(parsed)) == parsed
    with pytest.raises(InputError, match="objectives.gram.alpha is unknown"):
        parse_config({"objectives": {"gram": {"alpha": 1.0}}})
    with pytest.raises(InputError, match="leave one of them out"):
        parse_config({"objective": {"kind": "gram"}, "objectives": {"gram": {}}})


@pytest.mark.parametrize(
    ("names", "words"),
    [(("cosent", "congen"), "scores of pairs"), (("simtde", "congen"), "different views"), (("trans_encoder", "listwise"), "score different")],
)  # fmt: skip
def test_objectives_that_cannot_share_a_batch_are_refused(names, words):
    with pytest.raises(InputError, match=words):
        Weighted(terms=tuple(Term(dataclasses.replace(CASES[name])) for name in names))


def test_a_batch_of_a_source_that_does_not_train_an_objective_leaves_it_unchanged():
    objective = SEVERAL["several"]
    sources = terms_of_sources(objective, ["embedding+simcse", "congen", ""])
    assert sources == [([0, 1, 1], [{1}, set()]), ([1, 0, 0], [{2}, set()]), ([1, 1, 1], [set(), set()])]
    assert terms_of_sources(objective, ["congen+embedding", "simcse"])[1].unread == [{1}, {0}]
    assert terms_of_sources(CASES["congen"], ["", ""]) == [([], [set(), set()])] * 2
    student, teacher = encoded(np.random.default_rng(0), objective)
    params, state = start(objective)
    expected = jax.jit(objective)(params, state, student, teacher)
    for (source, _), (inactive, active) in zip(
        sources, (("congen", "embedding"), ("embedding", "congen")), strict=False
    ):
        of_source = student._replace(active=np.tile(np.float32(source), (8, 1)))
        losses, states, metrics = jax.jit(objective)(params, state, of_source, teacher)
        terms = [term for term, is_active in zip(objective.terms, source, strict=True) if is_active]
        np.testing.assert_allclose(
            losses.mean(), sum(term.weight * expected[2][f"loss/{term.name}"] for term in terms), rtol=1e-6
        )
        jax.tree.map(np.testing.assert_array_equal, states[inactive], state[inactive])
        jax.tree.map(np.testing.assert_array_equal, states[active], expected[1][active])
        assert np.isnan(metrics[f"loss/{inactive}"])
        np.testing.assert_allclose(metrics[f"loss/{active}"], expected[2][f"loss/{active}"], rtol=1e-6)
    config = config_of(
        "configs/l2.py:tiny", {"objective.kind": "embedding+gram", "data.objectives": ("embedding", "gram")}
    )
    with pytest.raises(InputError, match="for 1 source; name the objectives of each source"):
        checked_setup(config)
    with pytest.raises(InputError, match="names congen, gram, but config.objectives has congen, embedding, simcse"):
        terms_of_sources(objective, ["congen+gram", "congen"])
