"""Made-up sets in files, and the program of evaluations in this process."""

import gzip
import json
from itertools import permutations

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from jaxdistill import evaluate
from jaxdistill.core import cli
from jaxdistill.evals import sts
from jaxdistill.evals.documents import read_set, set_files

GRADED = ["subset\tscore\tsentence1\tsentence2"] + [
    f"{'ab'[number % 2]}\t{number % 6}\tthe cat sleeps {number}\tthe dog sleeps {number * number}"
    for number in range(12)
]


def write(path, lines):
    content = "\n".join(lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def on_a_circle(angles):
    """An encoder that gives each sentence a vector of some length at its angle, in degrees."""

    def embed(sentences):
        radians = np.deg2rad([angles[sentence] for sentence in sentences])
        lengths = 1.0 + np.arange(len(sentences))
        return (np.stack([np.cos(radians), np.sin(radians)], axis=1) * lengths[:, None]).astype(np.float32)

    return embed


def sts_scores(embed, folder, sets=tuple(sts.SETS), *, subsets=False):
    """Scores of STS sets and their averages."""
    graded = {name: sts.read_set(name, folder) for name in sets}
    return sts.sts_values(embed, graded, subsets=subsets).scores


def run(arguments, capsys, *, status=0):
    """Printed lines, and lines of errors."""
    if status:
        with pytest.raises(SystemExit) as stopped:
            cli.run(evaluate.main, arguments)
        assert stopped.value.code == status
    else:
        cli.run(evaluate.main, arguments)
    captured = capsys.readouterr()
    return captured.out, [line for line in captured.err.splitlines() if line.strip()]


DOCUMENTS = [("d1", "Cats", "They sleep."), ("d2", "", "Dogs run in the park."), ("d3", "Rain", "It rains in May.")]
QUERIES = [("q1", "Do cats sleep?"), ("q2", "Where do dogs run?"), ("q3", "never judged"), ("q4", "judged irrelevant")]
QRELS = [("q1", "d1", 2), ("q1", "d3", 1), ("q2", "d2", 1), ("q4", "d1", 0)]


def as_tsv(rows):
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def _write_parts(folder, columns, rows):
    """A Parquet table in two files."""
    folder.mkdir()
    for part, half in enumerate((rows[:2], rows[2:])):
        table = pyarrow.table(dict(zip(columns, map(list, zip(*half, strict=True)), strict=True)))
        parquet.write_table(table, folder / f"{folder.name}-0000{part}-of-00002.parquet")


def write_set(folder, form="tsv", *, corpus=DOCUMENTS, queries=QUERIES, qrels=QRELS):
    """A set in BEIR's form; `parquet` has the hub's layout, with the judgements in the folder `FOLDER-qrels`."""
    folder.mkdir(parents=True)
    if form == "parquet":
        _write_parts(folder / "corpus", ("_id", "title", "text"), corpus)
        _write_parts(folder / "queries", ("_id", "text"), queries)
        qrels_folder = folder.with_name(f"{folder.name}-qrels")
        qrels_folder.mkdir()
        (qrels_folder / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + as_tsv(qrels))
        return folder
    if form == "tsv":
        (folder / "corpus.tsv.gz").write_bytes(gzip.compress(as_tsv(corpus).encode()))
        (folder / "queries.tsv.gz").write_bytes(gzip.compress(as_tsv(queries).encode()))
        (folder / "qrels.tsv").write_text(as_tsv(qrels))
        return folder
    records = [{"_id": name, "title": title, "text": text, "metadata": {}} for name, title, text in corpus]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in queries)
    )
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + as_tsv(qrels))
    return folder


def read_test(spec):
    """The set with its test judgements."""
    return read_set(set_files(str(spec), split="test"))


def with_dev(folder, rows):
    """Gives a set judgements for the split dev, which name other documents than its test's."""
    (folder / "qrels").mkdir(exist_ok=True)
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n" + as_tsv(rows))
    return folder


def write_orders(folder):
    """60 documents of three words in different orders, which prompts and another length put in another ranking."""
    texts = [" ".join(words) for words in permutations(("the", "cat", "dog", "sleeps", "rain"), 3)]
    queries = {"q1": "cat rain", "q2": "the dog", "q3": "sleeps", "q4": "rain the dog cat"}
    judged = [
        (q, f"d{row}", 1) for q, words in queries.items() for row, text in enumerate(texts) if text.split()[0] in words
    ]
    corpus = [(f"d{row}", "", text) for row, text in enumerate(texts)]
    return write_set(folder, corpus=corpus, queries=list(queries.items()), qrels=judged)
