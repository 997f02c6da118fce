"""GGUF files say what llama.cpp needs, and models that it cannot hold are refused; tests/test_runtimes.py runs a file in llama.cpp."""

import dataclasses

import numpy as np
import pytest
from test_static import table_model

from jaxdistill import export as export_command
from jaxdistill import exports
from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.encoders.architecture import Pooling
from jaxdistill.exports import gguf as form

import encoder_cases as cases
import program
from tiny_models import tiny_model

reader = pytest.importorskip("gguf")


@pytest.fixture
def written(tmp_path):
    """(model, readers of its two files by their names)."""
    model = tiny_model(tmp_path / "tokenizer")
    return model, {file.name: reader.GGUFReader(file) for file in form.write(model, tmp_path)}


def value(read, key):
    return read.get_field(key).contents()


def test_weights_lie_under_the_names_of_llama_cpp(written):
    model, files = written
    tensors = {tensor.name: tensor.data for tensor in files["model.gguf"].tensors}
    np.testing.assert_array_equal(
        tensors["blk.0.ffn_up.weight"], model.params["transformer/layers/0/intermediate/kernel"].T
    )
    np.testing.assert_array_equal(
        tensors["position_embd.weight"],
        model.params["transformer/embeddings/position/embedding"][: model.max_length],
    )
    assert tensors.keys() >= {"token_embd.weight", "token_types.weight", "token_embd_norm.bias", "blk.0.attn_q.weight"}
    stored = [path for path in model.params if path.startswith("transformer/") and "pooler" not in path]
    assert len(tensors) == len(stored)
    half = {tensor.name: tensor.data.dtype for tensor in files["model_f16.gguf"].tensors}
    assert half["blk.0.ffn_up.weight"] == np.float16
    assert half["blk.0.ffn_up.bias"] == half["position_embd.weight"] == np.float32


def test_words_of_the_vocabulary_start_with_a_mark_instead_of_pieces_with_two_hashes(written):
    model, files = written
    read = files["model.gguf"]
    tokens = value(read, "tokenizer.ggml.tokens")
    assert len(tokens) == model.definition.architecture.vocab_size
    assert [tokens[model.tokenizer.token_to_id(token)] for token in ("cat", "##a", "a", "[CLS]")] == [
        "▁cat", "a", "▁a", "[CLS]",
    ]  # fmt: skip
    assert value(read, "tokenizer.ggml.model") == "bert"
    assert value(read, "tokenizer.ggml.cls_token_id") == 2 and value(read, "tokenizer.ggml.seperator_token_id") == 3
    assert value(read, "bert.context_length") == model.max_length
    assert value(read, "bert.pooling_type") == reader.PoolingType.MEAN
    assert value(read, "bert.attention.causal") is False


def test_positions_of_roberta_begin_after_its_padding(tmp_path):
    cases.write_encoder(tmp_path / "in", "roberta")
    roberta = load_model(str(tmp_path / "in"), pooling="cls")
    model = dataclasses.replace(
        tiny_model(tmp_path / "tokenizer"), definition=roberta.definition, params=roberta.params
    )
    read = reader.GGUFReader(form.write(model, tmp_path)[0])
    (positions,) = [tensor.data for tensor in read.tensors if tensor.name == "position_embd.weight"]
    want = roberta.params["transformer/embeddings/position/embedding"]
    np.testing.assert_array_equal(positions, want[2 : 2 + model.max_length])
    assert value(read, "bert.pooling_type") == reader.PoolingType.CLS


@pytest.mark.parametrize("family", ["mpnet", "qwen3", "albert", "modernbert"])
def test_families_without_a_graph_are_refused_by_name(tmp_path, family):
    cases.write_encoder(tmp_path / "in", family)
    reason = form.refusal(load_model(str(tmp_path / "in"), pooling="mean"))
    assert f"this {family}" in reason and "BERT, RoBERTa, DistilBERT and NomicBERT" in reason


def test_heads_poolings_and_tokenizers_that_it_lacks_are_refused(tmp_path):
    model = tiny_model(tmp_path / "tokenizer")
    assert form.refusal(model) == ""
    pooled = lambda text: dataclasses.replace(  # noqa: E731
        model, definition=dataclasses.replace(model.definition, pooling=Pooling.parse(text))
    )
    assert "no pooling max; use mean, cls, last" in form.refusal(pooled("max"))
    assert "no pooling mean:last2" in form.refusal(pooled("mean:last2"))
    assert "layers after pooling" in form.refusal(tiny_model(tmp_path / "tokenizer", head=8))
    assert "this static" in form.refusal(table_model(tmp_path))
    cases.write_encoder(tmp_path / "words", "bert")
    assert "WordLevel" in form.refusal(load_model(str(tmp_path / "words"), pooling="mean"))
    assert "layers after pooling" in form.refusal(load_model(str(tmp_path / "words"), pooling="pooler"))
    cases.write_cross_encoder(tmp_path / "pairs", "bert")
    assert "cross-encoder" in form.refusal(load_model(str(tmp_path / "pairs")))


def test_the_command_refuses_such_a_model_in_one_line_before_it_writes(tmp_path, monkeypatch, capsys):
    save(tiny_model(tmp_path / "tokenizer", head=8), tmp_path / "in")
    given = [f"--model={tmp_path / 'in'}", f"--out={tmp_path / 'out'}", "--to=gguf"]
    monkeypatch.setattr(form, "NEEDS", ("gguf",))
    line = program.refused(export_command, given, capsys)
    assert "gguf cannot hold this model: llama.cpp leaves out layers after pooling" in line
    monkeypatch.setattr(form, "NEEDS", ("no_such_package",))
    line = program.refused(export_command, given, capsys)
    assert "--to=gguf needs the package no_such_package; run: pip install 'jaxdistill[gguf]'" in line
    assert not (tmp_path / "out").exists()


def test_every_graph_is_found(tmp_path):
    for family, graph in {"bert": "bert", "roberta": "bert", "distilbert": "bert", "nomic-bert": "nomic-bert"}.items():
        cases.write_encoder(tmp_path / family, family)
        architecture = load_model(str(tmp_path / family), pooling="mean").definition.architecture
        assert form._graph(architecture) == graph and graph in form.GRAPHS
    assert "gguf" in exports.FORMS
