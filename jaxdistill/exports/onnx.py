"""ONNX: `onnx/model.onnx`, in half precision, with 8-bit weights, and a table also with 4-bit ones; for ONNX Runtime,
transformers.js, FastEmbed and others.

Inputs are `input_ids`, `attention_mask` and, if the model has token types, `token_type_ids`, of any batch size and length.
Outputs are `last_hidden_state` and `sentence_embedding`; a cross-encoder has the output `logits`. Linear layers after
pooling are part of `last_hidden_state` (see `checkpoints/folder.py`), so its mean is right in runtimes that read nothing else.

torch traces the exported folder as transformers and sentence-transformers load it, which gives the same graph as other
exporters of these families; docs/design.md compares this with tracing our own functions.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.checkpoints.static import folded
from jaxdistill.exports.measuring import compared_texts
from jaxdistill.exports.running import Run, batches, imported, inputs, outputs

log = logging.getLogger(__name__)

EXTRA = "onnx"
NEEDS = ("torch", "onnx", "onnxruntime", "onnxscript", "sentence_transformers")
FOLDER = "onnx"
FLOAT, HALF, DYNAMIC, STATIC = "model.onnx", "model_fp16.onnx", "model_quantized.onnx", "model_int8.onnx"
FOUR_BITS = "model_q4.onnx"
FILES = (FLOAT, HALF, DYNAMIC, STATIC, FOUR_BITS)
ROUNDED = (DYNAMIC, STATIC, FOUR_BITS)
"""Files with 8-bit or 4-bit weights."""
BLOCK = 32
"""Number of 4-bit weights with a scale and an offset in common: with 256, a table has a fifth fewer bytes and twice the error."""
OPSET = 18
LARGEST = 2_000_000_000
"""Most bytes of weights in a graph."""
LARGEST_HALF = 65_504
"""Largest number in half precision."""
MASK = 1e30
"""Numbers from here on only mask tokens; half precision has its own."""
LONG = 512
"""Words of the longest text on which numbers inside the graph are measured."""


def refusal(model: SentenceModel) -> str:
    """Why ONNX cannot hold the model; empty if it can."""
    pooling = model.definition.pooling
    if 4 * model.parameter_count > LARGEST:
        return f"its weights of {4 * model.parameter_count / 1e9:.1f} GB are more than a file of ONNX holds"
    if pooling.in_sentence_transformers or model.definition.reads_pairs:
        return ""
    return f"sentence-transformers, whose modules are traced, has none for pooling {pooling}; pool one layer or a mean of layers"


def write(model: SentenceModel, folder: Path, *, calibration: Sequence[str] = ()) -> list[Path]:
    """Writes the files; returns their paths.

    Args:
      folder: the export from which the graph is traced.
      calibration: sentences that determine the ranges of `STATIC`'s activations; empty: it is not written.
    """
    place, written = folder / FOLDER, write_float(model, folder)
    with _quiet():
        rounding = imported("onnxruntime.quantization", EXTRA)
        # 7-bit weights: processors without VNNI add pairs of products in 16 bits, which would overflow with 8 bits.
        options = dict(per_channel=True, reduce_range=True)
        # Asymmetric weights lose less: mean cosine 0.9905 instead of 0.9899 on 1,000 texts of six languages.
        kind = rounding.QuantType
        rounding.quantize_dynamic(place / FLOAT, place / DYNAMIC, weight_type=kind.QUInt8, **options)
        written.append(place / DYNAMIC)
        if calibration:
            reader = _calibration(rounding.CalibrationDataReader, model, calibration)
            rounding.quantize_static(place / FLOAT, place / STATIC, reader, weight_type=kind.QInt8, **options)
            written.append(place / STATIC)
        if model.definition.architecture.is_static:
            _write_four_bits(place)
            written.append(place / FOUR_BITS)
    return written


def _write_four_bits(place: Path) -> None:
    """Rounds the rows that a table's graph gathers, block by block."""
    blocks = imported("onnxruntime.quantization.matmul_nbits_quantizer", EXTRA)
    chosen = dict(op_types_to_quantize=("Gather",), quant_axes=(("Gather", 1),))
    config = blocks.DefaultWeightOnlyQuantConfig(block_size=BLOCK, is_symmetric=False, **chosen)
    table = blocks.MatMulNBitsQuantizer(str(place / FLOAT), algo_config=config)
    table.process()
    table.model.save_model_to_file(str(place / FOUR_BITS))


def write_float(model: SentenceModel, folder: Path) -> list[Path]:
    """Writes the files in single and half precision alone, the latter if it holds the model's numbers; returns their paths."""
    onnx, place = imported("onnx", EXTRA), folder / FOLDER
    place.mkdir(exist_ok=True)
    trace(model, folder, place / FLOAT)
    if (largest := _largest(model, place / FLOAT)) > LARGEST_HALF:
        reason = f"numbers inside the model reach {largest:.3g}, and half precision ends at {LARGEST_HALF:,}"
        log.warning("%s/%s is left out: %s", FOLDER, HALF, reason)
        return [place / FLOAT]
    with _quiet():
        half = imported("onnxruntime.transformers.float16", EXTRA)
        graph = half.convert_float_to_float16(onnx.load(place / FLOAT), keep_io_types=True)
    # A number that an operator reads twice, as start and step of a range, is cast twice, by nodes of one name.
    nodes = {tuple(node.output): node for node in graph.graph.node}
    del graph.graph.node[:]
    graph.graph.node.extend(nodes.values())
    onnx.save(graph, place / HALF)
    return [place / FLOAT, place / HALF]


def _largest(model: SentenceModel, file: Path) -> float:
    """The largest number that the graph computes for the compared sentences and a long one.

    ONNX Runtime computes half precision in single precision on CPUs, so that comparing vectors shows no overflow.
    """
    graph, runtime = imported("onnx", EXTRA).load(file), imported("onnxruntime", EXTRA)
    names = {name for node in graph.graph.node for name in node.output if name}
    inner = names - {output.name for output in graph.graph.output}
    graph.graph.output.extend(imported("onnx", EXTRA).ValueInfoProto(name=name) for name in sorted(inner))
    session = runtime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    largest = 0.0
    for _, batch in batches(model, [*compared_texts(), "word " * LONG], batch_size=1):
        arrays = [np.abs(array) for array in session.run(None, {name: batch[name] for name in inputs(model)})]
        floats = [array[array < MASK] for array in arrays if array.dtype == np.float32]
        largest = max(largest, *(float(array.max(initial=0.0)) for array in floats))
    return largest


def runner(model: SentenceModel, file: Path) -> Run:
    """A function that runs a file in ONNX Runtime."""
    runtime = imported("onnxruntime", EXTRA)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(**given: np.ndarray) -> np.ndarray:
        return session.run(outputs(model)[-1:], {name: given[name] for name in inputs(model)})[0]

    return run


def trace(model: SentenceModel, folder: Path, file: Path) -> None:
    """Writes the graph in single precision."""
    torch = imported("torch", EXTRA)
    imported("onnxscript", EXTRA)
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    names = inputs(model)
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            _module(model, folder).eval(),
            kwargs={
                name: torch.ones((2, 7), dtype=torch.int64) for name in names
            },  # a shared tensor would become a single input
            dynamic_shapes={name: sizes for name in names},
            input_names=names,
            output_names=outputs(model),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    graph = program.model_proto
    del graph.graph.value_info[:]  # shapes of weights that were transposed later would be wrong
    imported("onnx", EXTRA).save(graph, file)


def _module(model: SentenceModel, folder: Path) -> Any:
    """The model as a torch module that maps token ids to the outputs."""
    torch = imported("torch", EXTRA)
    if model.definition.architecture.is_static:
        return _table(model)
    transformers = imported("transformers", EXTRA)
    if model.definition.reads_pairs:
        kind = transformers.AutoModelForSequenceClassification
        body, others = kind.from_pretrained(folder, attn_implementation="eager"), []
    else:
        body = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
        loaded = imported("sentence_transformers", EXTRA).SentenceTransformer(str(folder), device="cpu")
        others = list(loaded)[1:]

    class Traced(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.others = body, torch.nn.ModuleList(others)

        def forward(self, input_ids, attention_mask, token_type_ids=None):
            types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            outputs = self.body(input_ids=input_ids, attention_mask=attention_mask, **types)
            if model.definition.reads_pairs:
                return outputs.logits
            features = {"token_embeddings": outputs.last_hidden_state, "attention_mask": attention_mask}
            if model.definition.pooling.averages_layers:
                features["all_layer_embeddings"] = outputs.hidden_states
            for module in self.others:
                features = module(features)
            return features["token_embeddings"], features["sentence_embedding"]

    return Traced()


def _table(model: SentenceModel) -> Any:
    """A static encoder as a torch module: rows of a table and their mean."""
    torch = imported("torch", EXTRA)
    dropped, normalize = model.definition.architecture.dropped_id, model.definition.normalize

    class Table(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding.from_pretrained(torch.tensor(folded(model.definition, model.params)))

        def forward(self, input_ids, attention_mask):
            rows = self.table(input_ids)
            counted = (attention_mask * (input_ids != dropped)).unsqueeze(-1).to(rows.dtype)
            mean = (rows * counted).sum(1) / counted.sum(1).clamp(min=1.0)
            return rows, torch.nn.functional.normalize(mean, dim=1) if normalize else mean

    return Table()


def _calibration(base: type, model: SentenceModel, sentences: Sequence[str]) -> Any:
    class Reader(base):
        def __init__(self):
            self.left: Iterator[dict[str, np.ndarray]] = (
                {name: batch[name] for name in inputs(model)} for _, batch in batches(model, sentences, batch_size=8)
            )

        def get_next(self):
            return next(self.left, None)

    return Reader()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences progress bars and warnings of the packages that write graphs; the result is measured afterwards."""
    bars = imported("transformers.utils.logging", EXTRA)
    shown, before = bars.is_progress_bar_enabled(), logging.root.manager.disable
    bars.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        if shown:
            bars.enable_progress_bar()
