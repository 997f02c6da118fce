"""Saved models: sentence-transformers and AutoModel load them, and the vectors are the same."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jaxdistill.core import InputError
from jaxdistill.data.options import Data
from jaxdistill.encoders.architecture import SentenceNorm
from jaxdistill.models import surgery
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.checkpoints.modules import read_modules
from jaxdistill.models.teacher import ModelContext
from jaxdistill.models.teachers import Live

import encoder_cases as cases
from encoder_cases import jitted_embed, loading_report

TOLERANCE = 1e-5
TEXTS = ["w1 w2 w3", "w4", "", "w5 unknown w7 " * 9, "w1 " * 60]


def tokens_of(model, texts):
    return cases.padded([np.asarray(e.ids) for e in model.tokenizer.encode_batch(texts)], length=64)


def jax_vectors(model, texts=TEXTS):
    definition = dataclasses.replace(model.definition, normalize=True)
    return np.asarray(jitted_embed(definition, model.params, tokens_of(model, texts)))[:, 0]


def reference_vectors(folder, texts=TEXTS):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return model.encode(texts, normalize_embeddings=True)


@pytest.mark.parametrize("family", [name for name in cases.CONFIGS if ":" not in name])
def test_every_family_survives_a_round_trip(tmp_path, family):
    cases.write_encoder(tmp_path / "in", family)
    model = load_model(str(tmp_path / "in"), pooling="mean")
    model = surgery.add_head(surgery.from_layers(model, "even:2"), 24, key=jax.random.key(0))
    save(model, tmp_path / "out")
    reloaded = load_model(str(tmp_path / "out"))
    assert reloaded.definition == model.definition and reloaded.max_length == model.max_length
    assert all(np.array_equal(reloaded.params[path], model.params[path]) for path in model.params)
    assert not loading_report(tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.get("num_hidden_layers", config.get("n_layers")) == 2


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    cases.write_encoder(folder, "bert")
    return folder


@pytest.mark.parametrize("pooling", ["cls", "pooler", "mean:last2", "mean:first_last", "max:last4"])
def test_poolings_that_the_format_can_express_give_the_same_vectors(tmp_path, bert_folder, pooling):
    model = surgery.add_head(load_model(str(bert_folder), pooling=pooling), 24, key=jax.random.key(0))
    model = dataclasses.replace(model, definition=dataclasses.replace(model.definition, normalize=True))
    save(model, tmp_path)
    assert np.abs(reference_vectors(tmp_path) - jax_vectors(model)).max() <= TOLERANCE
    assert np.abs(jax_vectors(load_model(str(tmp_path))) - jax_vectors(model)).max() <= TOLERANCE
    assert not loading_report(tmp_path)


@pytest.mark.parametrize(
    ("family", "pooling", "side"),
    [("qwen3", "last", "left"), ("qwen3", "last", "right"), ("gemma3-text", "weightedmean", "left"),
     ("modernbert", "mean_sqrt_len", "right")],
)  # fmt: skip
def test_poolings_of_decoders_and_several_modules_after_them(tmp_path, family, pooling, side):
    cases.write_encoder(tmp_path / "in", family)
    cases.edit_json(tmp_path / "in" / "tokenizer_config.json", padding_side=side)
    model = load_model(str(tmp_path / "in"), pooling=pooling)
    model = surgery.add_head(model, 48, key=jax.random.key(0), activation="identity")
    norm = {f"dense/1/{part}": np.linspace(0.5, 1.5, 48, dtype=np.float32) for part in ("scale", "bias")}
    dense = (*model.definition.dense, SentenceNorm(width=48))
    definition = dataclasses.replace(model.definition, dense=dense, normalize=True)
    model = dataclasses.replace(model, definition=definition, params=model.params | norm)
    model = surgery.add_head(model, 24, key=jax.random.key(1))
    save(model, tmp_path / "out")
    assert np.abs(reference_vectors(tmp_path / "out") - jax_vectors(model)).max() <= TOLERANCE
    reloaded = load_model(str(tmp_path / "out"))
    assert reloaded.definition == model.definition
    assert all(np.array_equal(reloaded.params[path], model.params[path]) for path in model.params)


@pytest.mark.parametrize("head", [True, False])
def test_the_first_numbers_of_a_nested_model_are_its_own_model(tmp_path, bert_folder, head):
    model = load_model(str(bert_folder), pooling="mean")
    model = surgery.add_head(model, 24, key=jax.random.key(0)) if head else model
    narrow = surgery.truncated(model, 8)
    assert narrow.digest() != model.digest() and narrow.definition.embedding_width == 8
    vectors = np.asarray(jitted_embed(model.definition, model.params, tokens_of(model, TEXTS)))[:, 0, :8]
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.abs(jax_vectors(narrow) - expected).max() <= TOLERANCE
    save(narrow, tmp_path)
    assert np.abs(reference_vectors(tmp_path) - expected).max() <= TOLERANCE
    context = ModelContext(data=Data(), student_views=("text",))
    (teacher,) = Live(model=str(tmp_path), dims=4).load(context)
    assert teacher.definition.embedding_width == 4
    with pytest.raises(InputError, match=f"dims=40 must be from 1 to {24 if head else 32}, "):
        surgery.truncated(model, 40)


@pytest.mark.parametrize("pooling", ["mean:last4:max", "cls:last2:concat", "mean:second_to_last"])
def test_poolings_that_sentence_transformers_lacks_are_read_by_this_project_alone(tmp_path, bert_folder, pooling):
    model = surgery.add_head(load_model(str(bert_folder), pooling=pooling), 24, key=jax.random.key(0))
    save(model, tmp_path)
    reloaded = load_model(str(tmp_path))
    assert str(reloaded.definition.pooling) == pooling
    assert np.abs(jax_vectors(reloaded) - jax_vectors(model)).max() <= TOLERANCE
    with pytest.raises((ValueError, ImportError), match="jaxdistill.LayerPooling"):
        reference_vectors(tmp_path)
    assert not loading_report(tmp_path)


def test_prompts_and_their_default_are_kept(tmp_path, bert_folder):
    from sentence_transformers import SentenceTransformer

    model = load_model(str(bert_folder), pooling="mean", prompt="w9 w8 ")
    assert model.prompt == "w9 w8 "
    save(model, tmp_path)
    reloaded = load_model(str(tmp_path))
    assert (reloaded.prompts, reloaded.default_prompt) == (model.prompts, "prompt")
    texts = ["w1 w2", "w3"]
    reference = SentenceTransformer(str(tmp_path), device="cpu").encode(texts, normalize_embeddings=True)
    assert np.abs(reference - jax_vectors(model, [model.prompt + text for text in texts])).max() <= TOLERANCE
    assert load_model(str(tmp_path), prompt="prompt").default_prompt == "prompt"


def saved(tmp_path, bert_folder):
    save(surgery.add_head(load_model(str(bert_folder), pooling="mean"), 12, key=jax.random.key(0)), tmp_path)
    return tmp_path


def test_modules_of_an_unknown_type_or_order_are_refused(tmp_path, bert_folder):
    path = saved(tmp_path, bert_folder) / "modules.json"
    text, modules = path.read_text(), json.loads(path.read_text())
    swapped = json.dumps([modules[index] for index in (0, 2, 1)])
    for changed, words in (
        (text.replace("models.Dense", "models.LSTM"), "has the modules Transformer, Pooling, LSTM; Transformer or"),
        (swapped, "has the modules Transformer, Dense on tokens, Pooling; Transformer or"),
    ):
        path.write_text(changed)
        with pytest.raises(InputError, match=words):
            load_model(str(tmp_path))


def test_dropout_among_the_modules_changes_no_vector_and_only_sentences_are_normalised(tmp_path, bert_folder):
    model = load_model(str(saved(tmp_path, bert_folder)))
    modules = json.loads((tmp_path / "modules.json").read_text())
    for index, kind in ((2, "Dropout"), (4, "Normalize")):
        modules.insert(index, {"path": f"{index}_{kind}", "type": f"sentence_transformers.models.{kind}"})
        (tmp_path / f"{index}_{kind}").mkdir()
        (tmp_path / f"{index}_{kind}" / "config.json").write_text("{}")
    modules = [module | {"idx": index, "name": str(index)} for index, module in enumerate(modules)]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    reloaded = load_model(str(tmp_path))
    assert reloaded.definition == dataclasses.replace(model.definition, normalize=True)
    assert np.abs(jax_vectors(reloaded) - reference_vectors(tmp_path)).max() <= TOLERANCE
    (tmp_path / "4_Normalize" / "config.json").write_text('{"module_input_name": "token_embeddings"}')
    with pytest.raises(InputError, match='module_input_name="token_embeddings"; only "sentence_embedding" can be read'):
        load_model(str(tmp_path))


def test_a_classifier_behind_a_pooling_is_a_sentence_encoder(tmp_path, bert_folder):
    for labels in ({"0": "a"}, {"0": "a", "1": "b"}):
        kind = {"architectures": ["BertForSequenceClassification"], "id2label": labels}
        cases.edit_json(saved(tmp_path, bert_folder) / "config.json", **kind)
        model = load_model(str(tmp_path))
        assert not model.definition.reads_pairs and str(model.definition.pooling) == "mean"
        assert read_modules(tmp_path).labels == 0


def test_null_counts_as_absent_where_published_models_have_it(tmp_path, bert_folder):
    model = load_model(str(saved(tmp_path, bert_folder)))
    cases.edit_json(tmp_path / "sentence_bert_config.json", max_seq_length=None, do_lower_case=None)
    cases.edit_json(
        tmp_path / "config_sentence_transformers.json", prompts={"query": None}, default_prompt_name="query"
    )
    cases.edit_json(tmp_path / "config.json", pad_token_id=None, architectures=None)
    reloaded = load_model(str(tmp_path))
    assert (reloaded.max_length, reloaded.prompt) == (model.max_length, "")
    cases.edit_json(tmp_path / "config_sentence_transformers.json", default_prompt_name="document")
    assert load_model(str(tmp_path)).prompt == ""  # sentence-transformers has both roles, empty


def test_layers_are_averaged_only_if_the_transformer_gives_them(tmp_path, bert_folder):
    """As in sentence-transformers, which passes the last layer on otherwise."""
    save(load_model(str(bert_folder), pooling="mean:first_last"), tmp_path)
    assert load_model(str(tmp_path)).definition.pooling.layers == "first_last"
    cases.edit_json(tmp_path / "config.json", output_hidden_states=False)
    assert load_model(str(tmp_path)).definition.pooling.layers == "last"


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "weightedmean", "mean:last2", "max"])
def test_linear_heads_act_on_tokens_where_pooling_takes_a_mean(tmp_path, bert_folder, pooling):
    """Every runtime that takes a mean then gets them right."""
    model = surgery.add_head(load_model(str(bert_folder), pooling=pooling), 12, key=jax.random.key(0))
    model = surgery.add_head(model, 8, key=jax.random.key(1))
    linear = tuple(dataclasses.replace(part, activation="identity") for part in model.definition.dense)
    model = dataclasses.replace(model, definition=dataclasses.replace(model.definition, dense=linear, normalize=True))
    save(model, tmp_path)
    paths = [module["path"] for module in json.loads((tmp_path / "modules.json").read_text())]
    assert load_model(str(tmp_path)).definition == model.definition
    assert np.abs(reference_vectors(tmp_path) - jax_vectors(model)).max() <= TOLERANCE
    position = 2 if pooling == "mean:last2" else 1  # WeightedLayerPooling comes first
    offset = 0 if pooling == "max" else 2
    assert paths[position + offset] == f"{position + offset}_Pooling"
    assert paths[-1] == f"{position + 3}_Normalize"
