"""Labels of pairs: how a pair is read, what labellers of each form give, scores of the user's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdistill.config.options import Config, RunOptions
from jaxdistill.core import InputError
from jaxdistill.data import views
from jaxdistill.data.options import Data
from jaxdistill.data.tokens import build_store
from jaxdistill.models import surgery
from jaxdistill.models.inference import Embedder
from jaxdistill.models.teacher import TargetInputs
from jaxdistill.models.teachers import Labels, Scores
from jaxdistill.objectives.cosent import CoSENT
from jaxdistill.training.build import Targets, context_of

from tiny_models import tiny_model
from tiny_text import COLUMNS, made_up, write_pairs


def store_of_pairs(folder, pairs, tokenizer, max_length, *, dedupe=False):
    path = write_pairs(folder / "pairs.tsv", pairs)
    options = dict(max_length=max_length, cache_folder=folder / "cache", columns=COLUMNS, dedupe=dedupe)
    return build_store([str(path)], tokenizer=tokenizer, **options)


@pytest.mark.parametrize("view", ["pair", "pair:reversed"])
def test_a_pair_has_the_tokens_that_the_tokenizer_gives(view, tmp_path):
    """If both are longer than the text's longest sentence, either may keep the odd token."""
    words = ["cat", "dog", "sleeps", "rain"] * 3
    pairs = [(" ".join(words[:first]), " ".join(words[-second:])) for first in (1, 5, 12) for second in (1, 6, 11)]
    model = tiny_model(tmp_path / "model", max_length=16)
    store = store_of_pairs(tmp_path, pairs, model.tokenizer, 16)
    ragged = views.viewed(
        views.parse_view(view, store.columns), store, np.arange(len(pairs)), lambda: pytest.fail("random")
    )
    model.tokenizer.enable_truncation(16, strategy="longest_first")
    sequences = np.split(ragged.ids, np.cumsum(ragged.lengths)[:-1])
    for sequence, first, pair in zip(sequences, ragged.firsts, pairs, strict=True):
        expected = model.tokenizer.encode(*(pair[::-1] if view == "pair:reversed" else pair))
        assert sequence.tolist() == expected.ids
        assert (np.arange(len(sequence)) >= first).astype(int).tolist() == expected.type_ids


@pytest.fixture
def pairs():
    sentences = made_up(12, words=4)
    return [(sentences[i], sentences[(5 * i + 3) % 12]) for i in range(12)] + [(sentences[0], sentences[1])]


def stored_labels(labellers, store, folder):
    inputs = TargetInputs(store, Data(cache_folder=str(folder)), CoSENT(), (), labellers, jnp.float32, progress=False)
    return Labels().stored(inputs)[0]


def test_labels_are_the_mean_of_cosines_or_of_sigmoids(pairs, tmp_path):
    bis = [tiny_model(tmp_path / "model", seed=seed) for seed in (0, 1)]
    store = store_of_pairs(tmp_path, pairs, bis[0].tokenizer, 16)
    first, second = zip(*pairs, strict=True)
    for labellers in (bis, [surgery.cross_encoder(bi, key=jax.random.key(0)) for bi in bis]):
        scores = [Embedder(labeller).score(first, second) for labeller in labellers]
        labels = stored_labels(labellers, store, tmp_path / "labels")
        np.testing.assert_allclose(labels[:, 0], np.mean(scores, axis=0), atol=1e-6)
        np.testing.assert_allclose(stored_labels(labellers[:1], store, tmp_path / "labels")[:, 0], scores[0], atol=1e-6)


def test_a_users_scores_stay_with_their_pairs(tmp_path):
    pairs = [("the cat", "the dog"), ("the dog", "the cat"), ("the cat", "rain"), ("rain", "the dog")]
    store = store_of_pairs(tmp_path, pairs, tiny_model(tmp_path / "model").tokenizer, 16, dedupe=True)

    def targets_of(scores):
        np.save(tmp_path / "scores.npy", scores)
        teacher = Scores(file=str(tmp_path / "scores.npy"))
        config = Config(objective=CoSENT(), teacher=teacher, run=RunOptions(precision="float32"))
        labellers = config.teacher.labellers(context_of(config, tmp_path))
        return Targets(config, CoSENT(), teachers=(), labellers=labellers, store=store, progress=False)

    targets = targets_of(np.float32([[0.9], [0.8], [0.1], [0.3]]))
    np.testing.assert_allclose(targets.at(np.arange(3))[:, 0], [0.9, 0.1, 0.3])  # the second pair is the first
    assert targets.width == 0
    with pytest.raises(InputError, match=r"2 numbers per row, .* one score per pair"):
        targets_of(np.zeros((4, 2), np.float32))
