"""Times the server of docs/guide/serving.md: ONNX Runtime against sentence-transformers.

    python benchmarks/serving.py --model=runs/tickets/export --tickets=tickets.csv

The export has ONNX (`jaxdistill.export --to=onnx`), and FastAPI and uvicorn are installed. Each server starts `--starts` times, in turn.
Prints the seconds from its start to its first answer, its memory after the last one, and the milliseconds of a request: the median and,
in brackets, the range over starts. Requests come one after the other, and ask for the nearest of all tickets to the subject of one.
"""

import argparse
import contextlib
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

import numpy as np

from jaxdistill.cli import run
from jaxdistill.inference import load

PAGE = Path(__file__).parent.parent / "docs" / "guide" / "serving.md"
PORT = 8123
LIBRARY = """from sentence_transformers import SentenceTransformer

encode = SentenceTransformer({!r}, device="cpu").encode
"""


def block(page: Path, package: str) -> str:
    """The lines of a page that import a package."""
    return next(code for code in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S) if package in code)


def measured(folder: Path, questions: list[str]) -> tuple[float, float, float]:
    """Seconds until the first answer, megabytes, and milliseconds of a request, by the median."""
    command = [sys.executable, "-m", "uvicorn", "server:app", "--port", str(PORT), "--log-level", "error"]
    start = time.perf_counter()
    server = subprocess.Popen(command, cwd=folder, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    try:
        while True:
            connection = HTTPConnection("127.0.0.1", PORT)
            with contextlib.suppress(ConnectionRefusedError):
                asked(connection, questions[0])
                break
            assert server.poll() is None, "the server ended"
            time.sleep(0.01)
        ready = time.perf_counter() - start
        times = [asked(connection, question) for question in questions]
        status = Path(f"/proc/{server.pid}/status").read_text()
        return ready, int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1e3, 1e3 * median(times)
    finally:
        server.terminate()
        server.wait()


def asked(connection: HTTPConnection, question: str) -> float:
    """Seconds of a request."""
    start = time.perf_counter()
    connection.request("GET", f"/duplicates?{urlencode({'text': question})}")
    answer = json.loads(connection.getresponse().read())
    assert len(answer) == 5
    return time.perf_counter() - start


def main(arguments):
    parser = argparse.ArgumentParser(prog="benchmarks/serving.py", description=__doc__)
    parser.add_argument("--model", required=True, help="an export with ONNX")
    parser.add_argument("--tickets", required=True, help="a .csv file with the columns id, subject and body")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--requests", type=int, default=300)
    options = parser.parse_args(arguments)
    model, (server, lines) = Path(options.model).resolve(), (block(PAGE, "fastapi"), "onnxruntime")
    lines = re.sub(r'from_file\(".*?"', f'from_file("{model}/tokenizer.json"', block(model / "README.md", lines))
    lines = re.sub(r'InferenceSession\(".*?"', f'InferenceSession("{model}/onnx/model.onnx"', lines)
    with open(options.tickets, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    vectors = load(str(model)).encode([f"{row['subject']} {row['body']}" for row in rows], normalize_embeddings=True)
    questions = [row["subject"] for row in rows[:: max(1, len(rows) // options.requests)]]
    results = {"ONNX Runtime": [], "sentence-transformers": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "vectors.npy", vectors)
        (folder / "tickets.csv").write_bytes(Path(options.tickets).read_bytes())
        (folder / "server.py").write_text(server)
        for _ in range(options.starts):
            for kind, code in zip(results, (lines, LIBRARY.format(str(model))), strict=True):
                (folder / "encoder.py").write_text(code)
                results[kind].append(measured(folder, questions))
    for kind, found in results.items():
        cells = (
            f"{median(column):.{places}f} ({min(column):.{places}f} to {max(column):.{places}f}) {unit}"
            for column, unit, places in zip(zip(*found, strict=True), ("s", "MB", "ms"), (1, 0, 1), strict=True)
        )
        print(f"{kind}: {', '.join(cells)}")


if __name__ == "__main__":
    run(main)
