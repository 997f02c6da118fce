"""A page that runs a student in the browser and finds the nearest of a list of sentences as one types.

Its folder needs no other server than one of static files, and no network: transformers.js and the WebAssembly of ONNX Runtime are
copied from an npm package of the user. The vectors of the sentences are computed here and lie beside the page, so that the
browser embeds only what is typed.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxdistill.checkpoints.folder import save, write_json
from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.core import InputError
from jaxdistill.evals.similarity import unit_rows
from jaxdistill.exports import onnx
from jaxdistill.exports.measuring import LEAST_COSINE, least_and_mean
from jaxdistill.exports.running import Runtime
from jaxdistill.files import local
from jaxdistill.files.folders import MARK, listed, refuse_foreign
from jaxdistill.inference import Embedder
from jaxdistill.reporting.templates import filled

PAGE, SCRIPT = "index.html", "demo.js"
MOST = 10_000
"""Sentences of a page: their vectors of 384 numbers are 15 MB."""
PACKAGE, MAJOR = "@huggingface/transformers", "4"
INSTALL = f"npm install {PACKAGE}@{MAJOR}"
LIBRARY = "transformers.min.js"
WASM = re.compile(rb"ort-wasm-simd-threaded(?:\.\w+)?\.(?:mjs|wasm)")
"""Names, in the library, of the files of ONNX Runtime that it loads."""
COMPARED = 200
"""Sentences on which the graph is compared with the model."""


def refuse_other(folder: Path) -> None:
    """Raises `InputError` for a folder that holds anything but a page of this program, an export of it too."""
    refuse_foreign(folder)
    marker = folder / MARK
    if marker.is_file() and PAGE not in listed(marker.read_bytes()):
        raise InputError(f"{folder} is an export without a page; it is not overwritten. Give another --out.")


def refusal(model: SentenceModel) -> str:
    """Why a page cannot hold the model; empty if it can."""
    if model.definition.reads_pairs:
        return "a cross-encoder has no vectors of sentences, which the page compares"
    return onnx.refusal(model)


def runtime_files(package: str | Path) -> list[Path]:
    """The files of transformers.js and ONNX Runtime that a page needs.

    Args:
      package: folder of the npm package; empty: below `node_modules` in the current folder.

    Raises:
      InputError: it is not there, or another version; the line has the npm command.
    """
    folder = local(package, "--transformers_js") if package else Path("node_modules", PACKAGE)
    given = f"--transformers_js={folder}" if package else f"./{folder}"
    try:
        version = json.loads((folder / "package.json").read_bytes())["version"]
        library = folder / "dist" / LIBRARY
        names = sorted({name.decode() for name in WASM.findall(library.read_bytes())})
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{given} is not the npm package of transformers.js; run `{INSTALL}` here, or name its folder with"
            " --transformers_js=FOLDER."
        ) from None
    if str(version).partition(".")[0] != MAJOR:
        raise InputError(f"{given} is transformers.js {version}, and the page needs {MAJOR}.x; run `{INSTALL}`.")
    files = [_beside(folder.resolve(), name) for name in names]
    if not names or None in files:
        raise InputError(f"{given} comes without the WebAssembly of onnxruntime-web; run `{INSTALL}` again.")
    return [library, *filter(None, files)]


def _beside(package: Path, name: str) -> Path | None:
    """A file of the package, or of its dependency onnxruntime-web, which node finds in the `node_modules` of a parent."""
    places = [package, *(parent / "node_modules" / "onnxruntime-web" for parent in (package, *package.parents))]
    return next((path for place in places if (path := place / "dist" / name).is_file()), None)


def write(model: SentenceModel, folder: Path, *, name: str, sentences: Sequence[str], runtime: Sequence[Path]) -> None:
    """Writes the page into a new folder.

    Args:
      model: one without a `refusal`.
      name: heading of the page.
      sentences: that are found; at least one.
      runtime: of `runtime_files`.

    Raises:
      InputError: no graph of ONNX has the model's vectors.
    """
    student = folder / "student"
    (student / "onnx").mkdir(parents=True)
    vectors = unit_rows(Embedder(model).encode_document(sentences)).astype("<f4")
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:  # in the working folder, with which it is removed
        exported = Path(place) / "export"
        save(model, exported)
        graph = _graph(model, exported, sentences[:COMPARED], vectors[:COMPARED])
        graph = graph.rename(student / "onnx" / graph.name)
        shutil.copy(exported / "tokenizer.json", student)
    # Graphs of all families have the inputs of a BERT, and tokenizer.json says all that the page needs.
    write_json(student / "config.json", {"model_type": "bert"})
    write_json(student / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizer"})
    for path in runtime:
        shutil.copyfile(path, folder / path.name)
    (folder / "vectors.bin").write_bytes(vectors.tobytes())
    facts = {
        "dtype": "fp16" if graph.name == onnx.HALF else "fp32",
        "max_length": model.max_length,
        "end_tokens": _end_tokens(model),
        "prompts": {role: model.role_prompts[role] for role in ("query", "document")},
        "sentences": list(sentences),
    }
    write_json(folder / "demo.json", facts)
    shown = dict(
        title=name, parameters=model.parameter_count, width=model.definition.embedding_width,
        size=graph.stat().st_size, sentences=len(sentences),
    )  # fmt: skip
    (folder / PAGE).write_text(filled("demo.html", **shown), "utf-8")
    (folder / SCRIPT).write_text(filled("demo.js"), "utf-8")


def size_bytes(folder: Path) -> int:
    """Size of all files of a page."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _graph(model: SentenceModel, exported: Path, sentences: Sequence[str], vectors: np.ndarray) -> Path:
    """The smallest file of ONNX that has the model's vectors, compared in ONNX Runtime."""
    least = 0.0
    for file in onnx.write_float(model, exported)[::-1]:
        runtime = Runtime(model, onnx.runner(model, file))
        computed = runtime.encode(sentences, prompt=model.role_prompts["document"])
        least, _ = least_and_mean(vectors, unit_rows(computed))
        if least >= LEAST_COSINE:
            return file
    raise InputError(f"the page was not written: the cosine of ONNX with the model's own vectors is {least:.4f}.")


def _end_tokens(model: SentenceModel) -> int:
    """Number of special tokens after a sentence, which stay where a long one is cut."""
    mask = model.encodings(["a"])[0].special_tokens_mask[::-1]
    return mask.index(0) if 0 in mask else 0
