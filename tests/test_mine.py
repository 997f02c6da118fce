"""Hard negatives: the choice equals sentence-transformers', and the program stores its vectors."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives

import jaxdistill
from jaxdistill import mine
from jaxdistill.core.cli import run
from jaxdistill.data.text import read
from jaxdistill.mine import hard_negatives
from jaxdistill.models import surgery
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.inference import Embedder, load

from program import refused
from tiny_models import tiny_model
from tiny_text import made_up

QUERIES, ANSWERS, MORE = made_up(30, seed=1), made_up(34, seed=2), made_up(40, seed=3)
PAIRS = [*zip(QUERIES, ANSWERS, strict=False), *zip(QUERIES[:4], ANSWERS[30:], strict=True)]
COLUMNS = ["text", "positive", "negative", "score_positive", "score_negative"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with prompts, pairs and a corpus."""
    folder = tmp_path_factory.mktemp("mine")
    save(tiny_model(folder / "tokenizer", scale=3.0), folder / "model")
    (folder / "pairs.tsv").write_text("\n".join(["text\tpositive", *("\t".join(pair) for pair in PAIRS)]) + "\n")
    (folder / "corpus.txt").write_text("\n".join(MORE) + "\n")
    return folder


@pytest.fixture(scope="module")
def reference(folder):
    """The model as sentence-transformers reads it."""
    return SentenceTransformer(str(folder / "model"), device="cpu")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))


def arguments(folder, output, *flags):
    return [
        f"--model={folder / 'model'}", f"--pairs={folder / 'pairs.tsv'}", f"--corpus={folder / 'corpus.txt'}",
        f"--output={output}", "--precision=float32", "--no_show_progress_bar", *flags,
    ]  # fmt: skip


def table(path):
    names = path.read_text().splitlines()[0].split("\t")
    return names, [tuple(row) for row in read([str(path)], names)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"relative_margin": 0.02, "num_negatives": 4, "range_max": 40},
        {"absolute_margin": 0.01, "max_score": 0.97, "min_score": 0.5, "range_max": 30},
        {"range_min": 2, "range_max": 12, "num_negatives": 5},
        {"max_score": 0.96, "output_format": "n-tuple", "range_max": 30},
    ],
)
def test_the_negatives_are_those_of_sentence_transformers(folder, reference, tmp_path, options):
    flags = [f"--{name}={value}" for name, value in options.items()]
    run(mine.main, arguments(folder, tmp_path / "out.tsv", *flags))
    names, rows = table(tmp_path / "out.tsv")
    pairs = {"text": [query for query, _ in PAIRS], "positive": [positive for _, positive in PAIRS]}
    options |= dict(corpus=MORE, output_scores=True, verbose=False)
    reference_rows = mine_hard_negatives(Dataset.from_dict(pairs), reference, **options)
    texts = [name for name in names if not name.startswith("score")]
    actual = {row[: len(texts)]: [float(score) for score in row[len(texts) :]] for row in rows}
    expected = {tuple(row[name] for name in texts): row["scores"] for row in reference_rows}
    assert len(rows) == len(reference_rows) > 10 and actual.keys() == expected.keys()
    for key, scores in expected.items():
        assert actual[key] == pytest.approx(scores, abs=2e-5)
    assert names == COLUMNS or names[2:5] == ["negative_1", "negative_2", "negative_3"]


def test_random_negatives_are_drawn_from_all_candidates_that_remain():
    scores = np.tile(np.linspace(0.9, 0.1, 20, dtype=np.float32), (300, 1))
    rows = np.tile(np.arange(20), (300, 1))
    draw = partial(hard_negatives, num_negatives=3, sampling_strategy="random", seed=1)
    limited = partial(draw, scores, rows, [[5]] * 300, [[0.7]] * 300, max_score=0.8, range_min=1, range_max=12)
    chosen, chosen_scores = limited()
    assert set(chosen.ravel()) == {4, *range(6, 16)} and (np.diff(chosen_scores, axis=1) < 0).all()
    assert np.array_equal(chosen, limited()[0])
    few, few_scores = draw(scores[:1, :3], rows[:1, :3], [[1]], [[0.7]], range_min=0, range_max=3)
    assert few[0, :2].tolist() == [0, 2] and np.isneginf(few_scores[0, 2])


def test_vectors_are_stored_once_for_each_prompt_and_a_finished_table_is_kept(
    folder, tmp_path, monkeypatch, capsys, caplog
):
    read = []
    encode = Embedder.encode
    monkeypatch.setattr(Embedder, "encode", lambda self, texts, **o: read.append(texts) or encode(self, texts, **o))
    run(mine.main, arguments(folder, tmp_path / "a.tsv"))
    assert [len(texts) for texts in read] == [30, 73] and read[0][0] == "the cat " + QUERIES[0]
    run(mine.main, arguments(folder, tmp_path / "b.tsv", "--max_score=0.97"))
    assert len(read) == 2
    run(mine.main, arguments(folder, tmp_path / "c.tsv", "--prompt_name=none"))
    assert len(read) == 3 and read[2][0] == QUERIES[0]
    before = (tmp_path / "a.tsv").stat().st_mtime_ns
    run(mine.main, arguments(folder, tmp_path / "a.tsv"))
    assert (tmp_path / "a.tsv").stat().st_mtime_ns == before and "rows; 30 queries" in caplog.text
    assert "num_negatives was 3" in refused(mine, arguments(folder, tmp_path / "a.tsv", "--num_negatives=2"), capsys)


def confident(folder):
    """A cross-encoder that is sure of every pair."""
    model = surgery.cross_encoder(tiny_model(folder / "tokenizer", scale=3.0), key=jax.random.key(0))
    head = {"dense/0/kernel": 1000 * model.params["dense/0/kernel"], "dense/0/bias": np.full(1, 25, np.float32)}
    return dataclasses.replace(model, params=model.params | head)


def test_logits_differ_where_scores_are_all_one(folder, tmp_path):
    save(confident(tmp_path), tmp_path / "cross")
    tables = {}
    for kind in ("scores", "logits"):
        flags = [f"--cross_encoder={tmp_path / 'cross'}", *["--logits"] * (kind == "logits")]
        run(mine.main, arguments(folder, tmp_path / f"{kind}.tsv", *flags))
        tables[kind] = table(tmp_path / f"{kind}.tsv")[1]
    assert {score for row in tables["scores"] for score in row[3:]} == {"1"}
    scorer = load(str(tmp_path / "cross"), precision="float32")
    for text, positive, negative, *scores in tables["logits"]:
        expected = scorer.score([text, text], [positive, negative], logits=True)
        assert [float(score) for score in scores] == pytest.approx(expected, abs=1e-3)
    assert np.ptp([float(row[3]) for row in tables["logits"]]) > 0.1


def test_a_query_and_its_positives_are_no_negatives_in_any_case_or_white_space(folder):
    """Nor where all nearest documents are of this kind."""
    pairs = [("the cat", "a dog"), ("The  CAT", "rain"), ("else", "far")]
    corpus = ["the cat ", "A dog", "a\tDOG", "snow"]
    rows = jaxdistill.mine(folder / "model", pairs, corpus=corpus, num_negatives=1, range_max=1)
    assert len(rows) == 3 and {row["negative"] for row in rows if row["text"] != "else"} <= {"snow", "far"}
