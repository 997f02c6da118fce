"""Teachers that run outside of JAX: a user's function, and models of sentence-transformers on torch."""

import sys

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers

import jaxdistill
from jaxdistill import mine
from jaxdistill.config.options import Config, RunOptions
from jaxdistill.core import InputError
from jaxdistill.data.options import Data
from jaxdistill.models import outside
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.inference import load
from jaxdistill.models.model_text import tokenised_text
from jaxdistill.models.teachers import Function, SentenceTransformers
from jaxdistill.models.teachers import outside as outside_teachers
from jaxdistill.models.teachers.labels import Labels
from jaxdistill.objectives.cosent import CoSENT
from jaxdistill.objectives.embedding import Embedding
from jaxdistill.training.build import Targets, context_of

from encoder_cases import DECODER, write_cross_encoder, write_tokenizer
from program import write_teacher
from tiny_models import tiny_model
from tiny_text import COLUMNS, made_up, write_pairs

pytestmark = pytest.mark.usefixtures("one_device")

TEXTS = made_up(25, words=6)


def stored(kind, folder, *, objective=None, **options):
    """A teacher's targets of `TEXTS`, or of the data that `options` name."""
    (folder / "text.txt").write_text("\n".join(TEXTS) + "\n")
    objective = objective or Embedding()
    data = Data(**{"text": str(folder / "text.txt"), "cache_folder": str(folder / "cache"), **options})
    config = Config(objective=objective, teacher=kind, data=data, run=RunOptions(precision="float32"))
    context, student = context_of(config, folder), tiny_model(folder / "student")
    assert not kind.load(context)  # no model of this package
    store = tokenised_text(data, student, objective.student_views, length=16, progress=False, chunking=None)
    targets = Targets(config, objective, store, (), kind.labellers(context), progress=False)
    return targets.at(np.arange(store.rows))


def lengths(texts):
    return np.array([[len(text), text.count("a") + 1] for text in texts], np.float64)


def test_a_function_is_not_asked_again_for_finished_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(outside_teachers, "BLOCK_ROWS", 10)
    requested, fails_after = [], 20

    def embed(texts, role):
        assert len(texts) <= 4 and role == "query"
        if len(requested) >= fails_after:
            raise TimeoutError("the service is busy")
        requested.extend(texts)
        return lengths(texts)

    def targets():
        return stored(Function.of(embed, name="counted", dims=2, batch_size=4), tmp_path, roles="query")

    with pytest.raises(InputError, match=r"teacher.function=counted failed at row 21 .*the service is busy"):
        targets()
    assert requested == TEXTS[:20]
    fails_after = 25
    np.testing.assert_array_equal(targets(), lengths(TEXTS))
    assert requested == TEXTS
    np.testing.assert_array_equal(targets(), lengths(TEXTS))
    assert requested == TEXTS
    with pytest.raises(InputError, match=r"gives \[4, 2\] numbers, not \[4, 3\]"):
        stored(Function.of(lengths, name="wider", dims=3, batch_size=4), tmp_path)


def test_functions_of_a_file_and_of_python_are_teachers_of_distill(tmp_path):
    service = tmp_path / "service.py"
    service.write_text("def embed(texts):\n    return [[len(text), text.count('a') + 1] for text in texts]\n")
    options = dict(
        student=jaxdistill.students.Cut(write_teacher(tmp_path), layers="even:1", head="linear"), steps=2, batch_size=8,
        options={"evals.best": "last", "data.cache_folder": str(tmp_path / "cache")},
    )  # fmt: skip
    for kind in (Function(f"{service}:embed", dims=2), Function.of(lengths, name="lengths", dims=2)):
        result = jaxdistill.distill(kind, made_up(90), workdir=tmp_path / kind.function[-7:], **options)
        assert result.model.encode("a cat").shape == (2,)
    np.testing.assert_array_equal(*map(np.load, tmp_path.glob("cache/targets/*/vectors.npy")))
    with open(service, "a") as file:
        file.write("# changed\n")
    with pytest.raises(InputError, match="content of teacher"):
        jaxdistill.distill(Function(f"{service}:embed", dims=2), made_up(90), workdir=tmp_path / "y:embed", **options)
    with pytest.raises(InputError, match="teacher.dims=0: give the width"):
        jaxdistill.distill(Function("lengths"), made_up(90), workdir=tmp_path / "none", **options)


@pytest.mark.parametrize("roles", ["", "query"])
def test_sentence_transformers_gives_the_vectors_that_the_live_teacher_gives(roles, tmp_path):
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "model")
    path = str(tmp_path / "model")
    model = load(path, precision="float32")
    vectors = stored(SentenceTransformers(path), tmp_path, roles=roles)
    np.testing.assert_allclose(vectors, model.encode(TEXTS, role=roles), atol=1e-5)
    prompt = {"query_prompt" if roles else "prompt": "rain "}
    vectors = stored(SentenceTransformers(path, **prompt, dims=4), tmp_path, roles=roles)
    np.testing.assert_allclose(vectors, model.encode(TEXTS, prompt="rain ", truncate_dim=4), atol=1e-5)
    with pytest.raises(InputError, match="document_prompt='rain ' is for sentences with the role document"):
        stored(SentenceTransformers(path, document_prompt="rain "), tmp_path, roles=roles)


def test_sentence_transformers_reads_a_family_that_this_package_does_not(tmp_path, monkeypatch):
    sizes = dict(vocab_size=99, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    transformers.DebertaV2Model(transformers.DebertaV2Config(**sizes)).save_pretrained(tmp_path / "deberta")
    write_tokenizer(tmp_path / "deberta")
    path = str(tmp_path / "deberta")
    with pytest.raises(InputError, match="As a teacher it may run on torch: the kind sentence_transformers"):
        load(path, pooling="mean")
    expected = sentence_transformers.SentenceTransformer(path, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(stored(SentenceTransformers(path), tmp_path), expected, atol=1e-5)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match="pip install sentence-transformers torch"):
        stored(SentenceTransformers(path), tmp_path)


def test_a_reranker_on_torch_labels_pairs_as_in_jax(tmp_path):
    write_cross_encoder(tmp_path / "cross", "bert")
    name, pairs = str(tmp_path / "cross"), list(zip(TEXTS, TEXTS[1:], strict=False))
    data = dict(text=str(write_pairs(tmp_path / "pairs.tsv", pairs)), columns=tuple(COLUMNS.items()))
    (first, second), reranker = zip(*pairs, strict=True), load(name, precision="float32")
    labels = stored(Labels(outside.PREFIX + name), tmp_path, objective=CoSENT(), **data)
    expected = reranker.score(first, second, logits=CoSENT().logits)
    np.testing.assert_allclose(labels[:, 0], expected, atol=1e-5)


def test_a_causal_reranker_scores_what_is_mined(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    config = transformers.Qwen3Config(**DECODER | dict(num_key_value_heads=2, head_dim=12))
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path / "causal")
    write_tokenizer(tmp_path / "causal")
    tokens = tmp_path / "causal" / "tokenizer.json"
    tokens.write_text(tokens.read_text().replace('"w80"', '"yes"').replace('"w81"', '"no"'))
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "model")
    pairs = [(f"w{index} w2", f"w{index + 9} w3") for index in range(6)]
    rows = mine.mine(
        tmp_path / "model", pairs, num_negatives=2, cross_encoder=f"{outside.PREFIX}{tmp_path}/causal", logits=True
    )
    reference = sentence_transformers.CrossEncoder(str(tmp_path / "causal"), device="cpu")
    expected = reference.predict([(row["text"], row["negative"]) for row in rows], activation_fn=torch.nn.Identity())
    np.testing.assert_allclose([row["score_negative"] for row in rows], expected, atol=1e-4)
    assert np.ptp(expected) > 0
