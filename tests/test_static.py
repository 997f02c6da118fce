"""Static encoders: tables of token vectors, read from and written for sentence-transformers and model2vec."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from jaxdistill.core import InputError
from jaxdistill.encoders.architecture import Dense, EncoderDefinition
from jaxdistill.models.checkpoints import static
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import SentenceModel, load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.models.students.static import Static, add_words, initial_table
from jaxdistill.training.export import export

from tiny_models import tiny_tokenizer

TEXTS = ["the cat sleeps", "the dog 茶 sleeps in the rain", "", "茶", "rain, " * 40]
UNKNOWN = 1
LINEAR = Dense(in_features=16, out_features=8, bias=False, activation="identity")


def table_model(folder, *, dropped=UNKNOWN, normalize=True, dense=()):
    tokenizer = static.without_special_tokens(tiny_tokenizer(folder))
    draw = np.random.default_rng(0)
    table = draw.normal(size=(tokenizer.get_vocab_size(), 16)).astype(np.float32)
    definition = EncoderDefinition(
        architecture=static.architecture_of(table, dropped),
        pooling=static.POOLING, normalize=normalize, dense=dense,
    )  # fmt: skip
    kernels = {f"dense/{i}/kernel": draw.normal(size=(16, 8)).astype(np.float32) for i in range(len(dense))}
    return SentenceModel(
        definition=definition, params={static.TABLE: table} | kernels, tokenizer=tokenizer,
        max_length=static.MAX_LENGTH, prompts={}, default_prompt=None, source="tiny", tokenizer_folder=folder,
    )  # fmt: skip


def by_hand(model, text):
    """The mean of the rows of a text's known tokens, of unit length."""
    table = model.params[static.TABLE] @ model.params.get("dense/0/kernel", np.eye(16))
    rows = [table[i] for i in model.tokenizer.encode(text, add_special_tokens=False).ids if i != UNKNOWN]
    mean = np.mean(rows, axis=0) if rows else np.zeros(table.shape[1])
    return mean / max(np.linalg.norm(mean), 1e-12)


@pytest.mark.parametrize("dense", [(), (LINEAR,)])
def test_an_export_gives_the_same_vectors_in_both_packages(tmp_path, dense):
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer

    model = table_model(tmp_path / "tokenizer", dense=dense)
    folder = export(model, tmp_path / "out")
    expected = np.stack([by_hand(model, text) for text in TEXTS])
    for vectors in (
        Embedder(model).encode(TEXTS),
        Embedder(load_model(str(folder))).encode(TEXTS),
        SentenceTransformer(str(folder), device="cpu").encode(TEXTS),
    ):
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
    np.testing.assert_allclose(StaticModel.from_pretrained(folder).encode(TEXTS), expected, atol=1e-6)
    count = sum(tensor.size for tensor in safetensors.numpy.load_file(folder / "model.safetensors").values())
    assert model.parameter_count == load_model(str(folder)).parameter_count == count
    assert f"| Parameters | {count:,} |" in (folder / "README.md").read_text()


def test_listed_words_are_tokens_and_clustered_tokens_share_rows_in_both_packages(tmp_path):
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer

    model = table_model(tmp_path / "tokenizer")
    before = [model.tokenizer.encode(text).ids for text in ("catdog", "rain, cat")]
    words = add_words(model.tokenizer, ["catdog", "rain, cat", "cat", ""])
    assert list(words.values()) == before and min(words) == len(model.params[static.TABLE])
    assert model.tokenizer.encode("the Catdog sleeps").ids[1] == min(words)
    assert model.tokenizer.encode("the rain, cat").ids[1:] == [max(words)]
    assert model.tokenizer.encode("catdogs").ids[: len(before[0])] == before[0]
    table = np.random.default_rng(0).normal(size=(max(words) + 1, 16)).astype(np.float32)
    definition = EncoderDefinition(
        architecture=static.architecture_of(table, UNKNOWN), pooling=static.POOLING, normalize=True
    )
    shared = Static(clusters=4).exported(
        dataclasses.replace(model, definition=definition, params={static.TABLE: table})
    )
    expected = np.stack([by_hand(shared, text) for text in (*TEXTS, "catdog sleeps")])
    folder = export(shared, tmp_path / "out")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    assert tensors["embeddings"].shape == (5, 16) and len(tensors["mapping"]) == len(table)  # and the unknown token's
    for vectors in (
        SentenceTransformer(str(folder), device="cpu").encode([*TEXTS, "catdog sleeps"]),
        StaticModel.from_pretrained(folder).encode([*TEXTS, "catdog sleeps"]),
    ):
        np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_a_table_that_counts_unknown_tokens_is_exported_for_sentence_transformers(tmp_path):
    from sentence_transformers import SentenceTransformer

    model = table_model(tmp_path / "tokenizer", dropped=-1, normalize=False)
    folder = export(model, tmp_path / "out")
    assert not (folder / "config.json").exists()
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS[:4])
    np.testing.assert_allclose(Embedder(load_model(str(folder))).encode(TEXTS[:4]), expected, atol=1e-6)


def test_a_table_reads_its_tokenizer_file_alone_with_its_length(tmp_path):
    """As both packages do: the settings of tokenizer_config.json would lower-case, and a longer text is cut."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)
    tokenizer.enable_truncation(8)
    chain = [StaticEmbedding(tokenizer, embedding_dim=6), Normalize()]
    SentenceTransformer(modules=chain, device="cpu").save(str(tmp_path / "saved"))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (tmp_path / "saved" / "tokenizer_config.json").write_text(json.dumps(settings))
    texts = ["The Cat sleeps", "the cat sleeps " * 5]
    expected = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(texts)
    model = load_model(str(tmp_path / "saved"))
    assert model.max_length == 8
    np.testing.assert_allclose(Embedder(model).encode(texts), expected, atol=1e-6)
    save(load_model(str(tmp_path / "saved"), max_length=3), tmp_path / "short")
    shortened = SentenceTransformer(str(tmp_path / "short"), device="cpu").encode(texts)
    np.testing.assert_allclose(Embedder(load_model(str(tmp_path / "short"))).encode(texts), shortened, atol=1e-6)
    assert not np.allclose(shortened[1], expected[1])


def write_model2vec(folder, tensors, **config):
    tiny_tokenizer(folder)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    stated = {key: value for key, value in ({"model_type": "model2vec"} | config).items() if value != "removed"}
    (folder / "config.json").write_text(json.dumps(stated))


def test_weights_and_a_mapping_of_model2vec_are_applied_token_by_token(tmp_path):
    tokens = tiny_tokenizer(tmp_path / "tokenizer").get_vocab_size()
    draw = np.random.default_rng(1)
    rows, mapping = draw.normal(size=(9, 4)).astype(np.float16), draw.integers(0, 9, tokens)
    weights = draw.uniform(size=tokens)
    write_model2vec(tmp_path, {"embeddings": rows, "mapping": mapping, "weights": weights}, normalize=False)
    model = load_model(str(tmp_path))
    assert model.max_length == 512 and not model.definition.normalize
    ids = [i for i in model.tokenizer.encode(TEXTS[1]).ids if i != UNKNOWN]
    expected = np.mean(rows[mapping[ids]].astype(np.float64) * weights[ids, None], axis=0)
    np.testing.assert_allclose(Embedder(model).encode(TEXTS[1:2])[0], expected, atol=1e-6)
    rows[mapping[5]] = np.nan
    write_model2vec(tmp_path / "nan", {"embeddings": rows, "mapping": mapping})
    with pytest.raises(InputError, match="tensor embeddings has NaN or infinite values"):
        load_model(str(tmp_path / "nan"))


@pytest.mark.parametrize(
    "stated", [{}, {"max_length": 40}, {"max_length": None}, {"model_type": "removed", "seq_length": 9}]
)
def test_model2vec_takes_the_length_of_config_json_alone(tmp_path, stated):
    """Its earlier versions left the original model's truncation in tokenizer.json, and before December 2024 named no type."""
    from model2vec import StaticModel

    rows = np.random.default_rng(2).normal(size=(tiny_tokenizer(tmp_path).get_vocab_size(), 4)).astype(np.float32)
    write_model2vec(tmp_path, {"embeddings": rows}, normalize=False, **stated)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = ["the cat 茶 sleeps " * 5, "z" * 100]  # letters are tokens; model2vec also cuts at three characters a token
    expected = StaticModel.from_pretrained(str(tmp_path)).encode(texts)
    np.testing.assert_allclose(Embedder(load_model(str(tmp_path))).encode(texts), expected, atol=1e-6)


def test_the_start_has_principal_components_smaller_for_frequent_tokens():
    draw = np.random.default_rng(2)
    vectors = draw.normal(size=(50, 6)) * [9.0, 5.0, 0.1, 0.1, 0.1, 0.1] + 3.0
    share = np.full(50, 0.02)
    share[7] = 0.5
    table = initial_table(vectors, share, 2, 3)
    assert table.shape == (50, 2) and not table[3].any()
    plain = initial_table(vectors, np.full(50, 0.02), 2, 3)
    lengths = np.linalg.norm(table, axis=1), np.linalg.norm(plain, axis=1)
    ratio = np.delete(lengths[0], 3) / np.delete(lengths[1], 3)
    assert np.argmin(ratio) == 6  # token 7, after row 3 is gone
    wide = (vectors - vectors.mean(axis=0))[:, :2]
    similar = np.corrcoef((plain @ plain.T)[9], (wide @ wide.T)[9])[0, 1]
    assert similar > 0.95
