"""Cross-encoders: parity with transformers and sentence-transformers on the same weights, there and back."""

import jax
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers
from sentence_transformers import CrossEncoder

from jaxdistill.core import InputError
from jaxdistill.data.packing import Ragged, Shape, filled, first_slots, pad
from jaxdistill.models import surgery
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder

import encoder_cases as cases
from encoder_cases import jitted_embed
from tiny_models import tiny_model

PAIRS = [
    ("w1 w2 w3", "w4"),
    ("w4", "w1 w2 w3"),
    ("w5 w6 w7 w8 w9", "w5 w6 w7 w8 w9"),
    ("w1 " * 40, "w2 w3"),
    ("w2 w3", "w1 " * 40),
    ("w1 " * 40, "w2 " * 41),
]
FIRST, SECOND = ([pair[side] for pair in PAIRS] for side in (0, 1))


def torch_and_jax(folder, family):
    """A torch classifier of one label, and the model loaded from its folder."""
    return cases.write_cross_encoder(folder, family), load_model(str(folder))


@pytest.fixture(scope="module", params=["bert", "roberta"])
def pair(request, tmp_path_factory):
    """A head on BERT's pooler, and one with a dense layer of its own."""
    return torch_and_jax(tmp_path_factory.mktemp(request.param), request.param)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def torch_logits(torch_model, model, pairs=PAIRS):
    """One pair at a time, without padding."""
    model.tokenizer.enable_truncation(model.max_length, strategy="longest_first")
    logits = []
    for encoding in model.tokenizer.encode_batch(pairs):
        types = {"token_type_ids": torch.as_tensor(encoding.type_ids)[None]}
        if getattr(torch_model.config, "type_vocab_size", 0) != 2:
            types = {}
        with torch.no_grad():
            logits.append(torch_model(input_ids=torch.as_tensor(encoding.ids)[None], **types).logits[0, 0].item())
    return np.array(logits)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "mpnet", "electra", "distilbert"])
def test_every_family_equals_transformers_and_survives_a_round_trip(family, tmp_path):
    torch_model, model = torch_and_jax(tmp_path / "torch", family)
    assert model.definition.reads_pairs and model.definition.embedding_width == 1
    expected = torch_logits(torch_model, model)
    assert np.abs(Embedder(model).score(FIRST, SECOND) - sigmoid(expected)).max() <= 1e-5
    save(model, tmp_path / "out")
    reloaded, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert reloaded.config.num_labels == 1
    torch_model = CrossEncoder(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(torch_model.predict(PAIRS), Embedder(model).score(FIRST, SECOND), atol=1e-5)
    np.testing.assert_allclose(torch_logits(reloaded.eval(), model), expected, atol=1e-6)
    assert load_model(str(tmp_path / "out")).digest() == model.digest()


def test_packed_pairs_equal_padded_ones(pair):
    _, model = pair
    encodings = model.tokenizer.encode_batch(PAIRS)
    ids = [np.asarray(encoding.ids) for encoding in encodings]
    firsts = np.array([encoding.type_ids.count(0) for encoding in encodings])
    padded = pad(ids, length=40, count=len(ids), pad_id=0, firsts=firsts)
    lengths = np.array([len(i) for i in ids])
    first = first_slots(lengths.reshape(2, -1), Shape(3, 64))
    packed = filled(Ragged(np.concatenate(ids), lengths, firsts), first, Shape(3, 64), pad_id=0)
    actual = [np.asarray(jitted_embed(model.definition, model.params, tokens)).ravel() for tokens in (padded, packed)]
    np.testing.assert_allclose(*actual, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_input_names": ["input_ids", "attention_mask"]},
        {"model_input_names": "removed"},
        {"model_input_names": "removed", "tokenizer_class": "BertTokenizer"},
    ],
)
def test_token_types_are_those_that_tokenizer_config_json_gives(tmp_path, changes, caplog):
    """Without names, transformers' generic class gives none and BERT's gives them."""
    torch_model = cases.write_cross_encoder(tmp_path / "torch", "bert")
    with_types = torch_logits(torch_model, load_model(str(tmp_path / "torch")))
    cases.edit_json(tmp_path / "torch" / "tokenizer_config.json", **changes)
    model = load_model(str(tmp_path / "torch"))
    scores = Embedder(model).score(FIRST, SECOND)
    np.testing.assert_allclose(CrossEncoder(str(tmp_path / "torch"), device="cpu").predict(PAIRS), scores, atol=1e-5)
    untyped = "tokenizer_class" not in changes
    assert (np.abs(scores - sigmoid(with_types)).max() > 0.01) == untyped == ("token type 0" in caplog.text)
    save(model, tmp_path / "out")
    np.testing.assert_allclose(CrossEncoder(str(tmp_path / "out"), device="cpu").predict(PAIRS), scores, atol=1e-5)


def test_a_prompt_goes_before_the_first_sentence_of_a_pair(tmp_path):
    cases.write_cross_encoder(tmp_path, "bert")
    plain = Embedder(load_model(str(tmp_path)))
    CrossEncoder(str(tmp_path), device="cpu", prompts={"q": "w9 w8 "}, default_prompt_name="q").save(
        str(tmp_path / "q")
    )
    expected = CrossEncoder(str(tmp_path / "q"), device="cpu").predict(PAIRS)
    prompted = load_model(str(tmp_path / "q"))
    np.testing.assert_allclose(Embedder(prompted).score(FIRST, SECOND), expected, atol=1e-5)
    np.testing.assert_allclose(plain.score([f"w9 w8 {first}" for first in FIRST], SECOND), expected, atol=1e-5)
    embedder = Embedder(load_model(str(tmp_path), prompt="w9 w8 "))
    np.testing.assert_allclose(embedder.score(FIRST, SECOND), expected, atol=1e-5)
    assert surgery.cross_encoder(prompted, key=jax.random.key(0)).prompt == ""
    save(prompted, tmp_path / "out")
    np.testing.assert_allclose(CrossEncoder(str(tmp_path / "out"), device="cpu").predict(PAIRS), expected, atol=1e-5)
    assert load_model(str(tmp_path / "out")).digest() == prompted.digest()


@pytest.mark.parametrize("bias", [20.0, -40.0])
def test_scores_rank_as_their_logits_do(pair, bias):
    _, model = pair
    last = f"dense/{len(model.definition.dense) - 1}"
    far = model.with_params(model.params | {f"{last}/bias": np.array([bias])})
    scores, logits = Embedder(far).score(FIRST, SECOND), torch_logits(pair[0], model)
    near = model.params[f"{last}/bias"][0]
    np.testing.assert_allclose(np.log(scores) - np.log1p(-scores), logits - near + bias, atol=1e-3)
    np.testing.assert_array_equal(np.argsort(scores), np.argsort(logits))


@pytest.mark.parametrize("pooling", ["pooler", ""])
def test_an_unread_pooler_is_carried_through_an_encoder_that_does_not_read_it(tmp_path, pooling):
    """Cross-encoder, sentence encoder, cross-encoder: the pooler is the first one's, the head is new."""
    cross = surgery.cross_encoder(tiny_model(tmp_path / "m"), key=jax.random.key(0))
    save(cross, tmp_path / "cross")
    save(load_model(str(tmp_path / "cross"), pooling="cls"), tmp_path / "bi")
    restored = surgery.cross_encoder(load_model(str(tmp_path / "bi"), pooling=pooling), key=jax.random.key(1))
    for part in ("kernel", "bias"):
        np.testing.assert_array_equal(
            restored.params[f"transformer/pooler/{part}"], cross.params[f"transformer/pooler/{part}"]
        )
    assert not np.array_equal(restored.params["dense/0/kernel"], cross.params["dense/0/kernel"])


def test_a_checkpoint_without_a_pooler_makes_a_cross_encoder_with_a_new_one(tmp_path):
    """As gte-small and e5-small are."""
    save(tiny_model(tmp_path / "m"), tmp_path / "bi")
    file = tmp_path / "bi" / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    remaining = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    assert len(remaining) == len(tensors) - 2
    safetensors.numpy.save_file(remaining, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match="tensor pooler.dense.bias is missing from the weights"):
        load_model(str(tmp_path / "bi"), pooling="pooler")
    cross = surgery.cross_encoder(load_model(str(tmp_path / "bi")), key=jax.random.key(0))
    assert cross.params["transformer/pooler/kernel"].std() > 0.015


def test_the_body_of_a_cross_encoder_can_be_a_sentence_encoder(tmp_path, caplog):
    torch_model = cases.write_cross_encoder(tmp_path, "roberta")
    model = load_model(str(tmp_path), pooling="mean")
    assert ": pooling=mean instead of the checkpoint's own head of 1 label(s)" in caplog.text
    ids = np.arange(6, 16)
    with torch.no_grad():
        expected = torch_model.roberta(input_ids=torch.as_tensor(ids)[None]).last_hidden_state[0].mean(0).numpy()
    actual = np.asarray(jitted_embed(model.definition, model.params, cases.padded([ids])))[0, 0]
    np.testing.assert_allclose(actual, expected, atol=1e-5)
