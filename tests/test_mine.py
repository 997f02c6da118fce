"""Hard negatives: the choice equals sentence-transformers', and the program stores, resumes and refuses."""

import dataclasses

import jax
import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives

from jaxdistill import mine
from jaxdistill.checkpoints.folder import save
from jaxdistill.cli import run
from jaxdistill.core import InputError
from jaxdistill.data import sources
from jaxdistill.data.negatives import Limits, hard_negatives
from jaxdistill.inference import Embedder, load
from jaxdistill.surgery import resizing

from eval_cases import write_set
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
    write_pairs(folder / "pairs.tsv", PAIRS)
    (folder / "corpus.txt").write_text("\n".join(MORE) + "\n")
    return folder


@pytest.fixture(scope="module")
def reference(folder):
    """The model as sentence-transformers reads it."""
    return SentenceTransformer(str(folder / "model"), device="cpu")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))


def write_pairs(path, pairs):
    path.write_text("\n".join(["text\tpositive", *("\t".join(pair) for pair in pairs)]) + "\n")
    return path


def arguments(folder, output, *more):
    return [
        f"--model={folder / 'model'}", f"--pairs={folder / 'pairs.tsv'}", f"--corpus={folder / 'corpus.txt'}",
        f"--output={output}", "--precision=float32", "--quiet", *more,
    ]  # fmt: skip


def table(path):
    names = path.read_text().splitlines()[0].split("\t")
    return names, [tuple(row) for row in sources.read([str(path)], names)]


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
    theirs = mine_hard_negatives(
        Dataset.from_dict(pairs),
        reference,
        corpus=MORE,
        output_scores=True,
        verbose=False,
        **options,
    )
    texts = [name for name in names if not name.startswith("score")]
    ours = {row[: len(texts)]: [float(score) for score in row[len(texts) :]] for row in rows}
    wanted = {tuple(row[name] for name in texts): row["scores"] for row in theirs}
    assert len(rows) == len(theirs) > 10 and ours.keys() == wanted.keys()
    for key, scores in wanted.items():
        assert ours[key] == pytest.approx(scores, abs=2e-5)
    assert names == COLUMNS or names[2:5] == ["negative_1", "negative_2", "negative_3"]


def test_random_negatives_are_drawn_from_all_candidates_that_remain():
    scores = np.tile(np.linspace(0.9, 0.1, 20, dtype=np.float32), (300, 1))
    rows = np.tile(np.arange(20), (300, 1))
    options = {"limits": Limits(max_score=0.8, range_min=1, range_max=12), "count": 3, "sampling": "random"}
    found = hard_negatives(scores, rows, [[5]] * 300, [[0.7]] * 300, **options, seed=1)
    counts = np.bincount(found.rows.ravel(), minlength=20)
    assert set(np.flatnonzero(counts)) == {4, *range(6, 16)}
    assert (np.diff(found.scores, axis=1) < 0).all() and found.left_out["max_score"].tolist() == [3] * 300
    again = hard_negatives(scores, rows, [[5]] * 300, [[0.7]] * 300, **options, seed=1)
    assert np.array_equal(found.rows, again.rows)
    few = hard_negatives(scores[:1, :3], rows[:1, :3], [[1]], [[0.7]], **options | {"limits": Limits(range_max=3)})
    assert few.rows[0, :2].tolist() == [0, 2] and np.isneginf(few.scores[0, 2])


def test_a_share_of_a_negative_score_lowers_the_limit_too():
    scores, limits = np.float32([[-0.1, -0.25, -0.35]]), Limits(range_max=4, relative_margin=0.5)
    found = hard_negatives(scores, np.array([[0, 1, 2]]), [[3]], [[-0.2]], limits=limits, count=2)
    assert found.rows[found.scores != -np.inf].tolist() == [2]


def test_vectors_are_stored_once_for_each_prompt_and_a_finished_table_is_kept(folder, tmp_path, monkeypatch, capsys):
    read = []
    encode = Embedder.encode
    monkeypatch.setattr(Embedder, "encode", lambda self, texts, **o: read.append(texts) or encode(self, texts, **o))
    run(mine.main, arguments(folder, tmp_path / "a.tsv"))
    assert [len(texts) for texts in read] == [30, 73] and read[0][0] == "the cat " + QUERIES[0]
    run(mine.main, arguments(folder, tmp_path / "b.tsv", "--max_score=0.97"))
    assert len(read) == 2
    run(mine.main, arguments(folder, tmp_path / "c.tsv", "--prompt=none"))
    assert len(read) == 3 and read[2][0] == QUERIES[0]
    before = (tmp_path / "a.tsv").stat().st_mtime_ns
    run(mine.main, arguments(folder, tmp_path / "a.tsv"))
    assert (tmp_path / "a.tsv").stat().st_mtime_ns == before and "rows; 30 queries" in capsys.readouterr().out
    assert "num_negatives was 3" in refused(mine, arguments(folder, tmp_path / "a.tsv", "--num_negatives=2"), capsys)


def test_a_retrieval_set_gives_its_judged_queries_and_all_documents(folder, tmp_path):
    spec = write_set(tmp_path / "tiny")
    with pytest.raises(
        InputError, match=r"no judgements of the split train .*, only of test \(qrels.tsv\); .*--split=test"
    ):
        mine.questions_of(str(spec), "train")
    (spec / "qrels").mkdir()
    (spec / "qrels" / "train.tsv").write_text("q1\td1\t1\nq2\td2\t1\nq2\td1\t0\n")
    known = mine.questions_of(str(spec), "train")
    assert len(known.documents) == 3 and known.positives == [[0], [1]]
    assert mine.questions_of(str(spec), "test").positives == [[0, 2], [1]]
    (spec / "qrels.tsv").unlink()
    more = mine.questions_of(str(spec), "train", ["another document"])
    assert more.positives == [[0], [1]] and more.documents[3:] == ["another document"]


def test_a_cross_encoder_scores_candidates_and_positives(folder, monkeypatch):
    known = mine.questions(PAIRS, MORE)
    embedder = load(str(folder / "model"), precision="float32")

    def score(first, second, *, logits, show_progress_bar):
        return np.array([len(text) / 1000 for text in second])

    monkeypatch.setattr(embedder, "score", score)
    vectors = embedder.encode(known.queries), embedder.encode(known.documents)
    limits = Limits(max_score=0.03).with_range(2, 2)
    found, positives = mine.mined(known, *vectors, limits=limits, count=2, sampling="top", seed=0, scorer=embedder)
    assert positives[1] == pytest.approx([len(known.documents[row]) / 1000 for row in known.positives[1]])
    lengths = np.array([len(text) for text in known.documents])[found.rows] / 1000
    kept = np.isfinite(found.scores)
    assert kept.any() and found.scores[kept] == pytest.approx(lengths[kept]) and (lengths[kept] <= 0.03).all()


def confident(folder):
    """A cross-encoder that is sure of every pair."""
    model = resizing.cross_encoder(tiny_model(folder / "tokenizer", scale=3.0), key=jax.random.key(0))
    head = {"dense/0/kernel": 1000 * model.params["dense/0/kernel"], "dense/0/bias": np.full(1, 25, np.float32)}
    return dataclasses.replace(model, params=model.params | head)


def test_logits_differ_where_scores_are_all_one(folder, tmp_path):
    save(confident(tmp_path), tmp_path / "cross")
    found = {}
    for kind in ("scores", "logits"):
        flags = [f"--cross_encoder={tmp_path / 'cross'}", *["--logits"] * (kind == "logits")]
        run(mine.main, arguments(folder, tmp_path / f"{kind}.tsv", *flags))
        found[kind] = table(tmp_path / f"{kind}.tsv")[1]
    assert {score for row in found["scores"] for score in row[3:]} == {"1"}
    scorer = load(str(tmp_path / "cross"), precision="float32")
    for text, positive, negative, *scores in found["logits"]:
        wanted = scorer.score([text, text], [positive, negative], logits=True)
        assert [float(score) for score in scores] == pytest.approx(wanted, abs=1e-3)
    assert np.ptp([float(row[3]) for row in found["logits"]]) > 0.1


def test_a_sentence_encoder_has_no_logits(folder):
    with pytest.raises(InputError, match="is a sentence encoder: its scores are cosines; leave out logits=True"):
        load(str(folder / "model")).score(["a"], ["b"], logits=True)


def test_a_document_with_the_querys_own_text_is_no_negative():
    known = mine.questions([("query", "answer")], [" query ", "near", "far", "farther"])
    documents = np.array([[1, 0], [1, 0.2], [1, 0.5], [1, 0.9], [1, 0.1]], np.float32)
    assert known.documents == ["query", "near", "far", "farther", "answer"]
    limits = Limits(range_max=3).with_range(3, 1)
    found, _ = mine.mined(known, documents[:1], documents, limits=limits, count=3, sampling="top", seed=0)
    assert found.rows.tolist() == [[1, 2, 3]] and np.isfinite(found.scores).all()


def test_a_positive_in_other_case_and_white_space_is_no_negative():
    """Nor a positive of the same query in other case."""
    pairs = [("query", "An answer"), ("Query ", "another"), ("else", "far")]
    known = mine.questions(pairs, ["an  ANSWER", "an answer!", "an\tanswer"])
    assert known.documents == ["an  ANSWER", "an answer!", "an\tanswer", "An answer", "another", "far"]
    assert [sorted(rows) for rows in known.excluded()] == [[0, 2, 3, 4], [0, 2, 3, 4], [5]]


def test_a_query_looks_further_until_it_has_its_negatives():
    angles = np.linspace(0.0, 1.5, 61)
    documents = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    known = mine.questions([("near", "0"), ("far", "60")], [str(number) for number in range(61)])
    limits = Limits(max_score=float(np.cos(angles[40]) + 1e-4)).with_range(2, 1)
    options = {"limits": limits, "count": 2, "sampling": "top", "seed": 0}
    short, _ = mine.mined(known, documents[[0, 60]], documents, **options)
    assert limits.range_max == 21 and short.lacking().tolist() == [0, 1]
    found, positives = mine.mined(known, documents[[0, 60]], documents, **options, widens=True)
    assert (
        found.rows.tolist() == [[40, 41], [20, 19]] and not len(found.lacking()) and positives[1] == [pytest.approx(1)]
    )
    assert found.left_out["max_score"].tolist() == [39, 39]  # without the positives
    none, _ = mine.mined(
        known, documents[[0, 60]], documents, **options | {"limits": Limits(max_score=-2, range_max=9)}, widens=True
    )
    assert none.lacking().tolist() == [0, 1]


def test_a_query_that_is_a_document_with_a_title_is_no_negative_of_itself(tmp_path):
    """Nor one of several queries of the same text."""
    corpus = [("q1", "pets", "cats are good"), ("d2", "", "dogs are good"), ("d3", "pets", "cats are bad")]
    corpus.append(("q2", "animals", "cats are good"))
    queries = [("q1", "cats are good"), ("q2", "cats are good")]
    spec = write_set(tmp_path / "argu", corpus=corpus, queries=queries, qrels=[("q1", "d2", 1), ("q2", "d2", 1)])
    known = mine.questions_of(str(spec), "test")
    assert known.documents[0] == "pets cats are good" and list(map(sorted, known.excluded())) == [[0, 1, 3]]


@pytest.mark.parametrize("set_of", ["pairs", "retrieval"])
def test_a_corpus_without_other_documents_is_told_before_the_model_is_read(tmp_path, capsys, set_of):
    write_pairs(tmp_path / "pairs.tsv", [("query", "answer"), ("answer", "query")])
    write_set(tmp_path / "retrieval", corpus=[("d1", "", "answer")], queries=[("q1", "query")], qrels=[("q1", "d1", 1)])
    source = tmp_path / ("pairs.tsv" if set_of == "pairs" else "retrieval")
    given = ["--model=absent", f"--{set_of}={source}", *(["--split=test"] if set_of == "retrieval" else [])]
    error = refused(mine, [*given, f"--output={tmp_path / 'out.tsv'}"], capsys)
    assert "no query has a document that may be a negative" in error and "add others with --corpus=FILE" in error
    (tmp_path / "more.txt").write_text("more\n")
    begin = [*given, f"--corpus={tmp_path / 'more.txt'}"]
    assert "absent" in refused(mine, [*begin, f"--output={tmp_path / 'out.tsv'}"], capsys)


@pytest.mark.parametrize(
    "option, read_from", [("column", "pairs"), ("positive_column", "pairs"), ("corpus_column", "corpus")]
)
def test_a_column_of_what_is_not_given_is_refused(tmp_path, capsys, option, read_from):
    given = ["--model=m", "--retrieval=r", f"--output={tmp_path / 'a.tsv'}", f"--{option}=x"]
    assert f"--{option}=x is for --{read_from}, which is not given" in refused(mine, given, capsys)


def test_a_column_of_a_corpus_without_columns_is_refused(tmp_path, capsys):
    write_pairs(tmp_path / "pairs.tsv", [("a", "b")])
    (tmp_path / "more.txt").write_text("c\n")
    given = [f"--pairs={tmp_path / 'pairs.tsv'}", f"--corpus={tmp_path / 'more.txt'}", "--corpus_column=body"]
    said = refused(mine, ["--model=m", f"--output={tmp_path / 'a.tsv'}", *given], capsys)
    assert "--corpus_column=body has no effect on" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--num_negatives=9", "--range_max=5"], "--range_max must be at least 9"),
        (["--max_score=-2"], "relax them"),
        (
            ["--num_negatives=9", "--output_format=n-tuple", "--min_score=0.99"],
            "no query has 9 negatives within the limits, the most is",
        ),
        (["--num_negatives=99", "--output_format=n-tuple"], "the corpus has too few documents: --num_negatives=99"),
        (
            ["--range_min=80"],
            "--output_format=triplet need 81 that may be negatives of a query, and none has more than 72",
        ),
        (["--retrieval=x"], "either --pairs"),
        (["--split=dev"], "--split=dev is for --retrieval"),
        (["--column=nothing"], "has no column 'nothing'"),
        (["--cross_encoder=MODEL"], "is not a cross-encoder"),
        (["--logits"], "--logits is for --cross_encoder"),
        (["--logits", "--cross_encoder=MODEL", "--relative_margin=0.1"], "use --absolute_margin"),
        (["--output=a.txt"], "must end in .tsv"),
        (["--max_score=nan"], "must be a finite number"),
        (["--min_score=abc"], "--min_score: 'abc' must be a finite number"),
        (["--range_min=few"], "--range_min: 'few' must be a whole number of at least 0"),
        (["--relative_marign=0.1"], "Did you mean --relative_margin"),
    ],
)
def test_faulty_options_are_one_line(folder, tmp_path, capsys, flags, words):
    flags = [flag.replace("MODEL", str(folder / "model")) for flag in flags]
    assert words in refused(mine, arguments(folder, tmp_path / "out.tsv", *flags), capsys)


def test_pairs_without_text_are_left_out(folder, tmp_path, capsys):
    write_pairs(tmp_path / "empty.tsv", [("", "a"), ("b", " ")])
    asked = [flag for flag in arguments(folder, tmp_path / "out.tsv") if not flag.startswith("--pairs")]
    assert "no pair has both" in refused(mine, [*asked, f"--pairs={tmp_path / 'empty.tsv'}"], capsys)
    assert mine.questions([("", "a"), ("b", "c"), ("b ", "c")]) == (["b"], ["c"], [[0]], [[]])
