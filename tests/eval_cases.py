"""Made-up sets in files, and the program of evaluations in this process."""

import gzip
import json

import pytest

from jaxdistill import cli, evaluate

GRADED = ["subset\tscore\tsentence1\tsentence2"] + [
    f"{'ab'[number % 2]}\t{number % 6}\tthe cat sleeps {number}\tthe dog sleeps {number * number}"
    for number in range(12)
]


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


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


def write_set(folder, form="tsv", *, corpus=DOCUMENTS, queries=QUERIES, qrels=QRELS):
    folder.mkdir(parents=True)
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
