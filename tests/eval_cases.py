"""Made-up sets in files, and the program of evaluations in this process."""

import gzip

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
