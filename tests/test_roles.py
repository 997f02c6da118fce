"""Roles of sentences: their prompts, from the text to the export."""

import dataclasses
import json

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from jaxdistill.core import InputError
from jaxdistill.data import views
from jaxdistill.data.text import parse_roles
from jaxdistill.data.tokens import build_store
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.training import build as build_module

import program
from tiny_models import tiny_model
from tiny_text import made_up

PROMPTS = {"query": "the cat ", "passage": "rain. "}
INSTRUCTION = "Instruct: sleeps?\nQuery: "
QUERIES, DOCUMENTS = made_up(40, seed=1), made_up(60, seed=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A teacher with the prompts `query` and `passage`, and two sources that share a sentence."""
    folder = tmp_path_factory.mktemp("roles")
    model = dataclasses.replace(tiny_model(folder / "tokenizer", max_length=32), prompts=PROMPTS, default_prompt=None)
    save(model, folder / "model")
    (folder / "queries.txt").write_text("\n".join([*QUERIES, "the same"]) + "\n")
    (folder / "documents.txt").write_text("\n".join(["the same", *DOCUMENTS]) + "\n")
    return folder


def options_of(folder, **changed):
    """Options of the tiny preset of L2 on both sources, with changed ones such as `data__roles`."""
    return {
        "data.text": f"{folder / 'queries.txt'},{folder / 'documents.txt'}", "data.roles": "query,document",
        "data.cache_folder": str(folder / "cache"), "data.batch_size": 16, "data.pack_groups": 2,
        "teacher.model": str(folder / "model"), "student.layers": "0", "evals.pairs": "",
        "evals.best": "agreement/spearman", "evals.every": 4, "run.precision": "float32", "run.steps": 4,
    } | {name.replace("__", "."): value for name, value in changed.items()}  # fmt: skip


def built(folder, **changed):
    return build_module.build(
        program.config_of("configs/l2.py:tiny", options_of(folder, **changed)), folder / "w", progress=False
    )


def test_each_sentence_follows_the_prompt_of_its_role_and_views_keep_it(folder):
    tokenizer = tiny_model(folder / "tokenizer", max_length=64).tokenizer
    store = build_store(
        [str(folder / "queries.txt"), str(folder / "documents.txt")], tokenizer=tokenizer, max_length=64, dedupe=True,
        cache_folder=folder / "cache", prompts={"": "no: ", "query": "the cat ", "document": ""},
        roles=parse_roles("query,document", columns=("text",), sources=2),
    )  # fmt: skip
    assert store.rows == len(QUERIES) + len(DOCUMENTS) + 2  # "the same" is there in both roles
    rows = np.array([0, 40, 41, 42])
    texts = [QUERIES[0], "the same", "the same", DOCUMENTS[0]]
    prompts = ["the cat ", "the cat ", "", ""]
    assert store.roles("text", rows) == ["query", "query", "document", "document"]
    for row, prompt, text in zip(rows, prompts, texts, strict=True):
        assert store.gather("text", [row]).ids.tolist() == tokenizer.encode(prompt + text).ids
        assert store.text("text", row) == text
    assert store.texts("text", {"query": "q: ", "document": "d: "})[40:42] == ["q: the same", "d: the same"]
    rewritten = store.tokenised("text", rows, texts)
    assert np.array_equal(rewritten.ids, np.concatenate([store.gather("text", [row]).ids for row in rows]))
    crop = views.viewed(views.parse_view("crop:0.9", store.columns), store, rows, lambda: np.zeros((4, 64)))
    begins = np.cumsum(crop.lengths) - crop.lengths
    prompt = tokenizer.encode("the cat", add_special_tokens=False).ids
    assert [crop.ids[begin + 1 : begin + 3].tolist() == prompt for begin in begins] == [True, True, False, False]


def test_stored_targets_are_the_teachers_for_each_role_under_a_digest_of_roles_and_prompts(folder, tmp_path):
    """The teacher reads `query` and `passage` by their names; another role or prompt is another folder of targets."""
    changes = [
        {},
        {"data__roles": "document,query"},
        {"teacher__query_prompt": "dog "},
        {"teacher__query_prompt": INSTRUCTION.replace("\n", r"\n"), "teacher__document_prompt": "none"},
    ]
    expected = [("the cat ", "rain. "), ("rain. ", "the cat "), ("dog ", "rain. "), (INSTRUCTION, "")]
    cache = {"teacher__kind": "stored", "data__cache_folder": str(tmp_path)}
    plain = Embedder(load_model(str(folder / "model")))
    for change, prompts in zip(changes, expected, strict=True):
        run = built(folder, **cache, **change)
        sentences = [prompts[0] + QUERIES[3], prompts[1] + DOCUMENTS[3]]
        np.testing.assert_allclose(run.batches._targets[0][np.array([3, 45])], plain.encode(sentences), atol=1e-6)
    assert len(list((tmp_path / "targets").iterdir())) == len(changes)
    built(folder, **cache)
    assert len(list((tmp_path / "targets").iterdir())) == len(changes)


def test_the_export_has_the_students_prompts_and_sentence_transformers_reads_alike(folder):
    options = options_of(folder, student__query_prompt=INSTRUCTION)
    arguments = program.arguments_of("configs/l2.py:tiny", options)
    out, _ = program.run("main", [*arguments, f"--workdir={folder / 'run'}"])
    export = folder / "run" / "export"
    assert "teacher: the prompt of a query is 'the cat '" in out
    assert "student: the prompt of a document is 'rain. '" in out
    settings = json.loads((export / "config_sentence_transformers.json").read_text())
    assert settings["default_prompt_name"] is None
    assert settings["prompts"] == {"query": INSTRUCTION, "passage": "rain. ", "document": "rain. "}
    reference, model = SentenceTransformer(str(export), device="cpu"), Embedder(load_model(str(export)))
    texts = ["the cat sleeps", "rain", "a dog?"]
    for name in ("encode", "encode_query", "encode_document"):
        np.testing.assert_allclose(getattr(model, name)(texts), getattr(reference, name)(texts), atol=1e-5)
    np.testing.assert_array_equal(model.encode_query(texts), model.encode(texts, role="query"))
    mixed = model.encode(texts[:2], role=["document", ""])
    np.testing.assert_allclose(mixed, [model.encode_document(texts[:1])[0], model.encode(texts[1:2])[0]], atol=1e-6)
    np.testing.assert_allclose(model.encode([INSTRUCTION + texts[0]]), model.encode_query(texts[:1]), atol=1e-6)


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"data.roles": "question,document"}, "'question,document' does not fit .*query, document, none"),
        ({"data.roles": "query,document,query"}, "does not fit 2 sources.*--config.data.roles"),
        ({"data.roles": "text=query,title=document"}, "does not fit .* columns text; .*--config.data.roles"),
        ({"data.roles": "document", "teacher.query_prompt": "q: "}, "teacher.query_prompt='q: '.*--config.data.roles=query"),
        ({"data.roles": "none", "student.document_prompt": "d: "}, "reads none; leave it empty, or set --config.data.roles=document"),
    ],
)  # fmt: skip
def test_roles_and_prompts_that_do_not_fit_are_refused_in_one_line(folder, changed, words):
    with pytest.raises(InputError, match=words) as error:
        built(folder, **{name.replace(".", "__"): value for name, value in changed.items()})
    assert "\n" not in str(error.value)
