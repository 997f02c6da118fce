"""Settings of a checkpoint that would change its vectors, and are not implemented, are refused by name."""

import shutil

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as parts

from jaxdistill.core import InputError
from jaxdistill.models.checkpoints.model import load_model

import encoder_cases as cases

CONFIG, GENERAL, TRANSFORMER = "config.json", "config_sentence_transformers.json", "sentence_bert_config.json"
DENSE, POOLING, LAYERS = "3_Dense/config.json", "2_Pooling/config.json", "1_WeightedLayerPooling/config.json"
REFUSED = [
    (CONFIG, "position_embedding_type", "relative_key"),
    (CONFIG, "is_decoder", True),
    (CONFIG, "quantization_config", {"quant_method": "gptq"}),
    (CONFIG, "hidden_act", "mish"),
    (GENERAL, "truncate_dim", 8),
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
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    cases.write_encoder(folder / "bert", "bert")
    transformer = parts.Transformer(str(folder / "bert"), config_kwargs={"output_hidden_states": True})
    chain = [transformer, parts.WeightedLayerPooling(32, num_hidden_layers=4, layer_start=1), parts.Pooling(32)]
    chain += [parts.Dense(32, 32), parts.LayerNorm(32), parts.Dropout(), parts.Normalize()]
    SentenceTransformer(modules=chain, device="cpu").save(str(folder / "model"))
    return folder / "model"


def test_what_sentence_transformers_saves_is_read(model):
    definition = load_model(str(model)).definition
    assert definition.pooling.layers == "last4" and len(definition.dense) == 2 and definition.normalize


@pytest.mark.parametrize(("file", "key", "value"), REFUSED)
def test_a_setting_that_would_change_vectors_is_refused(model, tmp_path, file, key, value):
    folder = shutil.copytree(model, tmp_path / "model")
    cases.edit_json(folder / file, **{key: value})
    with pytest.raises(InputError, match=f"{key}|pooling .*(from layer 2 on|cls.mean).* does not exist"):
        load_model(str(folder))
