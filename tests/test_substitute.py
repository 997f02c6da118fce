"""Words drawn from a masked language model: its logits beside transformers', and what is replaced."""

import random
import re

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tokenizers import AddedToken

from jaxdistill.augmentation import substitute
from jaxdistill.augmentation.substitute import Substituter, sampled, word_table
from jaxdistill.checkpoints import masked_lm
from jaxdistill.core import InputError
from jaxdistill.encoders.families import head_in

import encoder_cases as cases
from augment_cases import words_of, write_masked_lm
from tiny_text import SENTENCES, byte_level, sentence_piece


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    return str(folder), write_masked_lm(folder)


@pytest.mark.parametrize("family", sorted(cases.BERTS))
def test_logits_are_those_of_transformers(family, tmp_path):
    model = write_masked_lm(tmp_path, family)
    ours = masked_lm.load_masked_lm(str(tmp_path))
    sequences = cases.random_sequences()
    slots = np.concatenate([row * 32 + np.arange(len(ids)) for row, ids in enumerate(sequences)])
    logits = masked_lm.word_logits(
        ours.model.definition, ours.params, cases.padded(sequences), jnp.asarray(slots, jnp.int32)
    )
    with torch.no_grad():
        theirs = np.concatenate([model(input_ids=torch.as_tensor(ids)[None]).logits[0].numpy() for ids in sequences])
    assert theirs.std() > 0.3
    # float32 sums in another order, through 4 layers and a head
    np.testing.assert_allclose(np.asarray(logits), theirs, rtol=0, atol=2e-5)


def test_an_output_layer_of_its_own_is_read(tmp_path):
    model = write_masked_lm(tmp_path, "bert", tie_word_embeddings=False)
    ours = masked_lm.load_masked_lm(str(tmp_path))
    decoder = model.cls.predictions.decoder
    np.testing.assert_array_equal(ours.params["head/output/embedding"], decoder.weight.detach().numpy())
    np.testing.assert_array_equal(ours.params["head/output/bias"], decoder.bias.detach().numpy())


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_a_checkpoint_without_a_head_is_refused_by_its_tensor(family, tmp_path):
    cases.write_encoder(tmp_path, family)
    with pytest.raises(InputError, match=rf"tensor {head_in(family, 'WORD_HEAD').dense}.weight is missing"):
        masked_lm.load_masked_lm(str(tmp_path))


def test_the_likeliest_other_word_is_taken_where_top_k_is_one(bert):
    folder, model = bert
    sentence = [f"w{index}" for index in (5, 17, 40, 8, 61, 33)]
    substituter = Substituter(masked_lm.load_masked_lm(folder), rate=0.5, top_k=1, batch_size=4)
    (new,) = substituter([" ".join(sentence)], [random.Random(4)], lambda count: None)
    changed = [place for place, word in enumerate(new.split()) if word != sentence[place]]
    ids = torch.tensor([2, *(6 + int(word[1:]) for word in sentence), 3])
    original = ids.clone()
    for place in changed:
        ids[place + 1] = cases.SPECIAL_IDS["[MASK]"]
    with torch.no_grad():
        logits = model(input_ids=ids[None]).logits[0]
    assert 0 < len(changed) < 6
    for place in changed:
        logits[place + 1, :6] = -torch.inf
        logits[place + 1, original[place + 1]] = -torch.inf
        assert new.split()[place] == f"w{int(logits[place + 1].argmax()) - 6}"


def test_the_rate_is_the_share_of_tokens_replaced_by_others(bert):
    texts = words_of(np.random.default_rng(1), 200)
    substituter = Substituter(masked_lm.load_masked_lm(bert[0]), rate=0.15, top_k=10, batch_size=16)
    done = []
    new = substituter(texts, [random.Random(row) for row in range(200)], done.append)
    pairs = [
        pair for one, other in zip(texts, new, strict=True) for pair in zip(one.split(), other.split(), strict=True)
    ]
    share = np.mean([one != other for one, other in pairs])
    assert abs(share - 0.15) < 4 * (0.15 * 0.85 / len(pairs)) ** 0.5
    assert sum(done) == 200


@pytest.mark.parametrize("kind", [byte_level, sentence_piece])
def test_only_words_change_whatever_the_tokenizer(kind, tmp_path):
    tokenizer = kind()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    write_masked_lm(tmp_path, "roberta", tokenizer=tokenizer, vocab_size=tokenizer.get_vocab_size())
    substituter = Substituter(masked_lm.load_masked_lm(str(tmp_path)), rate=0.9, top_k=5, batch_size=16)
    new = substituter(SENTENCES, [random.Random(row) for row in range(len(SENTENCES))], lambda count: None)
    assert sum(one != other for one, other in zip(SENTENCES, new, strict=True)) >= 5
    for one, other in zip(SENTENCES, new, strict=True):
        assert re.sub(r"\w+", "x", other) == re.sub(r"\w+", "x", one)


def test_a_word_piece_is_replaced_by_one_of_its_kind(tmp_path):
    from tiny_models import tiny_tokenizer

    words, kinds = word_table(tiny_tokenizer(tmp_path), 100)
    ids = {word + str(kind): id for id, (word, kind) in enumerate(zip(words, kinds, strict=True))}
    assert f"a{substitute.CONTINUES}" in ids and f"a{substitute.OTHER}" in ids and f"rain{substitute.OTHER}" in ids
    assert {"[MASK]", "?", "##?", "."}.isdisjoint(words)


def test_words_are_drawn_in_proportion_to_their_probabilities():
    logits = np.log(np.array([0.6, 0.3, 0.1], np.float32))
    assert [sampled(logits, draw) for draw in (0.0, 0.59, 0.61, 0.89, 0.91, 1.0)] == [0, 0, 1, 1, 2, 2]
    assert sampled(np.array([1.0, -np.inf], np.float32), 0.999) == 0
