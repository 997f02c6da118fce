"""Reading checkpoints: every file form gives the same weights; what is damaged, or would change vectors, is refused."""

import json
import re
import shutil
from collections import OrderedDict

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as parts

from jaxdistill.core import InputError
from jaxdistill.core.cluster.mesh import place_frozen
from jaxdistill.encoders.sentence import embed
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.checkpoints.tokenizer import length_limit

import encoder_cases as cases


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    model = cases.write_encoder(folder, "bert")
    return folder, model.state_dict(), load_model(str(folder), pooling="mean")


@pytest.fixture
def copy(original, tmp_path):
    """A folder with everything but the weights."""
    shutil.copytree(original[0], tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    return tmp_path / "model"


def assert_same_weights(folder, original):
    params = load_model(str(folder), pooling="mean").params
    assert params.keys() == original[2].params.keys()
    assert all(np.array_equal(params[path], original[2].params[path]) for path in params)


def rewritten(original, folder, change):
    """Writes the weights after `change` of the dictionary of tensors."""
    tensors = {name: tensor.clone() for name, tensor in original[1].items()}
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    return str(folder)


@pytest.mark.parametrize("prefix", ["", "bert.", "0.auto_model.", "module.bert."])
def test_torch_files_with_all_prefixes_are_read(original, copy, prefix):
    state = OrderedDict((prefix + name, tensor) for name, tensor in original[1].items())
    state["cls.predictions.bias"] = torch.zeros(99)
    torch.save(state, copy / "pytorch_model.bin")
    assert_same_weights(copy, original)


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_shards_are_read_through_their_index(original, copy, tmp_path, form):
    names = sorted(original[1])
    files = {"a." + form: names[::2], "b." + form: names[1::2]}
    for file, part in files.items():
        save = safetensors.torch.save_file if form == "safetensors" else torch.save
        save({name: original[1][name].contiguous() for name in part}, copy / file)
    index = "model.safetensors.index.json" if form == "safetensors" else "pytorch_model.bin.index.json"
    (copy / index).write_text(json.dumps({"weight_map": {n: file for file, part in files.items() for n in part}}))
    (tmp_path / "blobs").mkdir()
    for file in files:  # the hub's cache holds links to files elsewhere
        (copy / file).symlink_to((copy / file).rename(tmp_path / "blobs" / file))
    assert_same_weights(copy, original)


def test_an_index_cannot_name_files_elsewhere(copy):
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../../secret"}}))
    with pytest.raises(InputError, match="leads out of the model's folder"):
        load_model(str(copy), pooling="mean")


def test_a_frozen_model_keeps_bfloat16(original, copy):
    def halve(tensors):
        tensors |= {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items() if "LayerNorm" not in name}

    folder = rewritten(original, copy, halve)
    frozen, full_precision = load_model(folder, pooling="mean", frozen=True), load_model(folder, pooling="mean")
    kernel = frozen.params["transformer/layers/0/output/kernel"]
    assert kernel.dtype == ml_dtypes.bfloat16
    assert frozen.params["transformer/embeddings/norm/scale"].dtype == np.float32
    assert frozen.digest() == full_precision.digest()
    tokens = cases.padded(cases.random_sequences(4))
    vectors = jax.jit(lambda params: embed(frozen.definition, params, tokens, compute_dtype="float32"))
    assert np.array_equal(vectors(frozen.params), vectors(full_precision.params))
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = place_frozen(frozen.params, dict.fromkeys(frozen.params, sharding), "float32")
    assert placed["transformer/layers/0/output/kernel"].dtype == ml_dtypes.bfloat16


def test_a_lora_adapter_is_refused_with_the_lines_that_merge_it(original, copy):
    rewritten(original, copy, lambda tensors: None)
    (copy / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 3}')
    merge = r"has a LoRA adapter; .*merge_and_unload\(\); model\.save_pretrained\(FOLDER\)$"
    with pytest.raises(InputError, match=merge):
        load_model(str(copy), pooling="mean")
    (copy / "config.json").unlink()  # an adapter without its base model
    with pytest.raises(InputError, match=merge):
        load_model(str(copy), pooling="mean")


def test_gamma_and_beta_of_old_checkpoints_are_understood(original, copy):
    old = {"Norm.weight": "Norm.gamma", "Norm.bias": "Norm.beta"}
    state = {re.sub("Norm.(weight|bias)", lambda m: old[m[0]], name): t for name, t in original[1].items()}
    torch.save(state, copy / "pytorch_model.bin")
    assert_same_weights(copy, original)


WORD = "embeddings.word_embeddings.weight"
BROKEN = {
    "integer": (
        lambda t: t.update({WORD: t[WORD].to(torch.int8)}),
        f"tensor {WORD} has int8 numbers .* dequantize",
    ),
    "unknown": (
        lambda t: t.update({"adapter.weight": torch.ones(1)}),
        r"tensor adapter.weight is missing from .* what config.json describes \(1 such\)",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_weights_that_do_not_fit_are_refused_by_name(original, copy, case):
    change, message = BROKEN[case]
    with pytest.raises(InputError, match=message):
        load_model(rewritten(original, copy, change), pooling="mean")


def test_pooling_is_asked_for_when_the_checkpoint_does_not_say_it(original):
    with pytest.raises(InputError, match="does not say how to pool token vectors; set .* or --pooling: cls, pooler"):
        load_model(str(original[0]))


def test_a_tokenizer_of_another_model_is_refused(copy):
    cases.write_tokenizer(copy, extra_words=3)
    with pytest.raises(InputError, match="the tokenizer has ids up to 101 .*, but the word embeddings have 99 rows"):
        load_model(str(copy), pooling="mean")
    no_words = {"type": "Replace", "pattern": {"Regex": r"\w"}, "content": "~"}
    cases.edit_json(copy / "tokenizer.json", normalizer=no_words)
    cases.edit_json(copy / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    with pytest.raises(InputError, match="the tokenizer knows 0 of .* words of its own vocabulary"):
        load_model(str(copy), pooling="mean")


def test_a_length_beyond_the_positions_and_truncation_at_the_left_are_refused(original, copy):
    assert load_model(str(original[0]), pooling="mean", max_length=70).max_length == 70
    with pytest.raises(InputError, match="max_length=71 must be from 3 to 70, the tokens"):
        load_model(str(original[0]), pooling="mean", max_length=71)
    cases.edit_json(copy / "tokenizer_config.json", model_max_length="removed", max_len=39)  # its older name
    assert length_limit(copy) == 39
    left = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    cases.edit_json(copy / "tokenizer.json", truncation=left)
    with pytest.raises(InputError, match='tokenizer.json has direction="left"; only "right"'):
        load_model(str(copy), pooling="mean")


def test_a_hub_name_without_network_says_what_to_set():
    with pytest.raises(InputError, match="set HF_HOME to a cache that holds it, with HF_HUB_OFFLINE=1") as error:
        load_model("no-such-organisation/no-such-model")
    assert "\n" not in str(error.value)


def test_digest_changes_with_weights_prompt_and_length(original):
    model = original[2]
    changed = dict(model.params)
    changed["transformer/layers/0/norm/bias"] = changed["transformer/layers/0/norm/bias"] + 1e-6
    changed_models = [model.with_params(changed), *(load_model(str(original[0]), pooling=p, prompt=q, max_length=n) for p, q, n in
              (("cls", "", 0), ("mean", "query: ", 0), ("mean", "", 39)))]  # fmt: skip
    assert len({model.digest(), *(other.digest() for other in changed_models)}) == 5
    assert load_model(str(original[0]), pooling="mean").digest() == model.digest()


CONFIG, GENERAL, TRANSFORMER = "config.json", "config_sentence_transformers.json", "sentence_bert_config.json"
DENSE, POOLING, LAYERS = "3_Dense/config.json", "2_Pooling/config.json", "1_WeightedLayerPooling/config.json"
REFUSED = [
    (CONFIG, "position_embedding_type", "relative_key"),
    (CONFIG, "is_decoder", True),
    (CONFIG, "quantization_config", {"quant_method": "gptq"}),
    (CONFIG, "hidden_act", "mish"),
    (GENERAL, "truncate_dim", 8),
    (GENERAL, "default_prompt_name", "absent"),
    (GENERAL, "similarity_fn_name", "euclidean"),
    (TRANSFORMER, "transformer_task", "fill-mask"),
    (TRANSFORMER, "tokenizer_args", {"do_lower_case": True}),
    (POOLING, "include_prompt", False),
    (POOLING, "pooling_mode", ["cls", "mean"]),
    (LAYERS, "layer_start", 2),
    (DENSE, "use_residual", True),
    (DENSE, "activation_function", "torch.nn.modules.activation.Mish"),
    (DENSE, "module_input_name", "other"),
    ("tokenizer_config.json", "split_special_tokens", True),
    ("tokenizer_config.json", "truncation_side", "left"),
]


@pytest.fixture(scope="module")
def with_modules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    cases.write_encoder(folder / "bert", "bert")
    transformer = parts.Transformer(str(folder / "bert"), config_kwargs={"output_hidden_states": True})
    chain = [transformer, parts.WeightedLayerPooling(32, num_hidden_layers=4, layer_start=1), parts.Pooling(32)]
    chain += [parts.Dense(32, 32), parts.LayerNorm(32), parts.Dropout(), parts.Normalize()]
    SentenceTransformer(modules=chain, device="cpu").save(str(folder / "model"))
    return folder / "model"


def test_what_sentence_transformers_saves_is_read(with_modules):
    definition = load_model(str(with_modules)).definition
    assert definition.pooling.layers == "last4" and len(definition.dense) == 2 and definition.normalize


@pytest.mark.parametrize(("file", "key", "value"), REFUSED)
def test_a_setting_that_would_change_vectors_is_refused(with_modules, tmp_path, file, key, value):
    folder = shutil.copytree(with_modules, tmp_path / "model")
    cases.edit_json(folder / file, **{key: value})
    with pytest.raises(InputError, match=f"{key}|pooling .*(from layer 2 on|cls.mean).* does not exist"):
        load_model(str(folder))
