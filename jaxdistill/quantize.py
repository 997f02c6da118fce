"""Quantises an exported model to 8-bit weights for ONNX Runtime, at a quarter of its size.

  python -m jaxdistill.quantize --model=runs/l3/export --out=runs/l3/int8
  JAXDISTILL_DATA=data python -m jaxdistill.quantize --model=runs/l3/export --out=runs/l3/int8

  from jaxdistill.quantize import load_quantized
  vectors = load_quantized("runs/l3/int8").encode(["A cat sleeps."])

The folder holds `model.onnx` (including pooling, dense layers and normalisation), `tokenizer.json` and
`quantized.json`. At the end, the program prints the loss of quality: the drop of the STS-B dev score if JAXDISTILL_DATA
is set, otherwise the agreement with the float32 model on the sentences of `--text`. Needs the packages onnx (to write)
and onnxruntime.

Source: DistilFACE, section 4.2, whose code uses torch's dynamic quantisation: from 265 to 138 MB, with 6.9 % of the score
lost. Embedding tables are also quantised here; torch leaves them in float32.
"""

import importlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from tokenizers import Tokenizer

from jaxdistill.calls import in_python_words, make_callable
from jaxdistill.cli import Parser, local_path, run
from jaxdistill.core import InputError
from jaxdistill.data.sources import read
from jaxdistill.encoders.model import SentenceModel, load_model
from jaxdistill.encoders.onnx_graph import IDS, MASK, VECTORS, quantized_graph
from jaxdistill.encoders.settings import QUANTIZED
from jaxdistill.evals.agreement import METRIC, held_out_task
from jaxdistill.evals.pairs import pairs_spearman
from jaxdistill.evals.sts import read_set
from jaxdistill.files import local
from jaxdistill.files.folders import replacing
from jaxdistill.files.reading import foreign_errors
from jaxdistill.inference import Embedder
from jaxdistill.inference.sentences import checked_sentences, prompt_text, whole_number
from jaxdistill.paths import public_name
from jaxdistill.training.dev import sts_data_folder

GRAPH, TOKENIZER = "model.onnx", "tokenizer.json"
PIP_COMMAND = "pip install onnx onnxruntime"
TEXT = "package:jaxdistill/assets/heldout.txt"
MOST_SENTENCES = 2000
"""Of `--text`: agreement compares each with all others."""


class Quantized:
    """An 8-bit sentence encoder in ONNX Runtime: `encode(sentences) -> float32 [n, e]`."""

    def __init__(self, folder: Path, session, tokenizer: Tokenizer, settings: dict):
        self.source, self._session, self._tokenizer = str(folder), session, tokenizer
        self.pad_id: int = settings["pad_id"]
        self.prompts: dict[str, str] = settings["prompts"]
        self.default_prompt: str | None = settings["default_prompt"]

    def encode(
        self,
        sentences: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
    ) -> Float[np.ndarray, "n e"]:
        """Vectors of `sentences`, one row each, in their order; of a single string, one vector.

        Args:
          sentences: longer ones than the model reads are truncated.
          prompt_name, prompt: name of one of the model's prompts, or the text itself; None: the default prompt, if it has one.
          batch_size: sentences computed together, those of like length.

        Raises:
          InputError: anything but texts, an unknown prompt, or a batch size below 1.
        """
        texts = checked_sentences([sentences] if isinstance(sentences, str) else sentences, "encode")
        whole_number(batch_size, "batch_size", least=1)
        prefix = prompt_text(self, prompt_name, prompt)
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast([prefix + text for text in texts])]
        order = np.argsort([len(sentence) for sentence in ids], kind="stable")
        vectors = np.zeros((len(ids), self._session.get_outputs()[0].shape[1]), np.float32)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            vectors[rows] = self._session.run([VECTORS], self._padded([ids[row] for row in rows]))[0]
        return vectors[0] if isinstance(sentences, str) else vectors

    def _padded(self, ids: Sequence[list[int]]) -> dict[str, np.ndarray]:
        lengths = np.array([[len(sentence)] for sentence in ids])
        mask = np.arange(lengths.max()) < lengths
        padded = np.full(mask.shape, self.pad_id, np.int64)
        padded[mask] = np.concatenate(ids)
        return {IDS: padded, MASK: mask.astype(np.int64)}


@in_python_words()
def quantize(model: str | Path | SentenceModel, out: str | Path, *, pooling: str = "") -> Path:
    """Writes the 8-bit form of a model for ONNX Runtime; returns its folder. `jaxdistill.quantize` is this function.

    Args:
      model: an exported folder, `package:NAME/PATH`, or the model itself.
      out: folder to write, which is empty or not there yet. `jaxdistill.quantize.load_quantized(out)` loads it.
      pooling: required if the checkpoint does not state its pooling.

    Raises:
      InputError: the folder holds something or cannot be written, or onnx is not installed.
    """
    folder = local(out, "out").resolve()
    refuse_filled(folder)
    onnx = _imported("onnx")
    if not isinstance(model, SentenceModel):
        model = _local_model(str(model), pooling)
    settings = {
        "format": 1,
        "source": public_name(model.source),
        "model_digest": model.digest(),
        "pad_id": model.definition.architecture.pad_id,
        "prompts": model.prompts,
        "default_prompt": model.default_prompt,
    }
    try:
        with replacing(folder, {"model_digest": settings["model_digest"], "licences": dict(model.licences)}) as new:
            new.mkdir()
            onnx.save(quantized_graph(model.definition, model.params), str(new / GRAPH))
            tokenizer = Tokenizer.from_str(model.tokenizer.to_str())
            tokenizer.no_padding()
            tokenizer.save(str(new / TOKENIZER))
            (new / QUANTIZED).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder} could not be written: {error.strerror or error}; give another --out.") from error
    return folder


def load_quantized(folder: str | Path) -> Quantized:
    """What `quantize` wrote, ready for use in ONNX Runtime.

    Raises:
      InputError: no such folder, or not one of these, or a damaged file; onnxruntime is not installed.
    """
    folder = Path(os.path.expanduser(folder))
    missing = [name for name in (GRAPH, TOKENIZER, QUANTIZED) if not (folder / name).is_file()]
    if missing:
        raise InputError(f"{folder} is no quantised model: it has no {missing[0]}; write one with jaxdistill.quantize.")
    runtime = _imported("onnxruntime")
    with foreign_errors(f"{folder} is damaged; write it again with jaxdistill.quantize"):
        session = runtime.InferenceSession(str(folder / GRAPH), providers=["CPUExecutionProvider"])
        settings = json.loads((folder / QUANTIZED).read_text(encoding="utf-8"))
        return Quantized(folder, session, Tokenizer.from_file(str(folder / TOKENIZER)), settings)


def refuse_filled(folder: Path) -> None:
    """Raises InputError unless `folder` is absent or an empty folder."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InputError(f"{folder} is not empty; it is left alone. Give another --out.")


def _local_model(spec: str, pooling: str) -> SentenceModel:
    if not spec.startswith("package:") and not Path(os.path.expanduser(spec)).is_dir():
        raise InputError(f"--model={spec} is no local folder; give an export, or package:NAME/PATH.")
    return load_model(spec, pooling=pooling)


def _imported(name: str):
    """An optional package."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"the package {name} is not installed; run: {PIP_COMMAND}") from None


def loss_report(model: SentenceModel, quantized: Quantized, data: Path | None, text: str) -> list[str]:
    """Lines that say what the 8-bit model loses against the float32 one."""
    before = Embedder(model).encode
    if data is not None:
        pairs = read_set("sts-b-dev", data)
        scores = [100 * pairs_spearman(embed, pairs) for embed in (before, quantized.encode)]
        return [
            f"STS-B dev (Spearman × 100): {scores[0]:.2f} in float32, {scores[1]:.2f} in int8, "
            f"{scores[0] - scores[1]:.2f} lost"
        ]
    sentences = list(dict.fromkeys(line for (line,) in read([text]) if line.strip()))[:MOST_SENTENCES]
    exact, small = before(sentences), quantized.encode(sentences)
    task = held_out_task(dict(zip(sentences, exact, strict=True)), seed=0)
    agreement = 100 * task(quantized.encode)[METRIC]
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(small, axis=1)
    cosine = np.mean(np.sum(exact * small, axis=1) / np.maximum(lengths, 1e-12))
    return [
        f"agreement with float32 on {len(sentences):,} sentences (Spearman × 100): {agreement:.2f}, "
        f"{100 - agreement:.2f} lost; mean cosine of the vectors {cosine:.4f}"
    ]


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.quantize`."""
    given = _parser().parse_args(arguments)
    refuse_filled(Path(given.out).resolve())
    _imported("onnxruntime")
    data = sts_data_folder()
    model = _local_model(given.model, given.pooling)
    folder = quantize(model, given.out)
    size, before = (folder / GRAPH).stat().st_size, 4 * model.parameter_count
    print(f"{folder}: {size / 1e6:.1f} MB, {size / before:.1%} of {before / 1e6:.1f} MB in float32")
    for line in loss_report(model, load_quantized(folder), data, given.text):
        print(line)


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.quantize", description=__doc__)
    parser.add_argument("--model", required=True, help="an exported folder, or package:NAME/PATH")
    parser.add_argument("--out", type=local_path, required=True, help="folder to write; must be empty or not exist")
    parser.add_argument("--pooling", default="", help="required if the checkpoint does not state its pooling")
    parser.add_argument(
        "--text",
        default=TEXT,
        help="sentences to compare the models on without JAXDISTILL_DATA; default: a held-out text of this package",
    )
    return parser


make_callable(__name__, quantize)

if __name__ == "__main__":
    run(main)
