"""ONNX files of an export, for ONNX Runtime, transformers.js and sentence-transformers (`backend="onnx"`).

A graph reads `input_ids`, `attention_mask` and, if the model has token types, `token_type_ids`, of any batch size and length.
It returns `last_hidden_state`, after linear heads, and `sentence_embedding`; of a cross-encoder, `logits`. torch traces the exported
folder as transformers and sentence-transformers load it.
"""

import importlib.util
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxdistill.core import InputError
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.checkpoints.static import TABLE, folded

NEEDS = ("torch", "onnx", "onnxruntime", "onnxscript", "sentence_transformers")
"""Packages of the extra `onnx`; torch first, because the extra would fetch its CUDA build where it is missing."""
FOLDER, FLOAT, INT8 = "onnx", "model.onnx", "model_quantized.onnx"
"""Names as transformers.js and sentence-transformers expect them: float32, and 8-bit weights."""


def check(model: SentenceModel) -> None:
    """Raises `InputError` if a package is missing, or if ONNX cannot hold `model`."""
    if missing := [package for package in NEEDS if importlib.util.find_spec(package) is None]:
        raise InputError(
            f"--to=onnx needs the package {missing[0]}: install PyTorch's CPU build (pytorch.org), then pip install 'jaxdistill[onnx]'"
        )
    pooling = model.definition.pooling
    if not (pooling.in_sentence_transformers or model.definition.reads_pairs):
        raise InputError(f"onnx cannot hold pooling {pooling}; pool the last layer or a mean of layers.")


def write(model: SentenceModel, folder: Path) -> list[Path]:
    """Writes the float32 file and the 8-bit file into the export in `folder`; returns their paths."""
    float_file, int8_file = folder / FOLDER / FLOAT, folder / FOLDER / INT8
    (folder / FOLDER).mkdir(exist_ok=True)
    disabled_level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the packages warn a lot; the caller compares the files' vectors with the model's
    try:
        trace(model, folder, float_file)
        quantization = importlib.import_module("onnxruntime.quantization")
        # 7-bit weights: processors without VNNI add pairs of products in 16 bits, which would overflow with 8 bits.
        # Asymmetric weights lose less: mean cosine 0.9905 instead of 0.9899 on 1,000 texts of six languages.
        unsigned = quantization.QuantType.QUInt8
        quantization.quantize_dynamic(float_file, int8_file, weight_type=unsigned, per_channel=True, reduce_range=True)
    finally:
        logging.disable(disabled_level)
    return [float_file, int8_file]


def encoder(model: SentenceModel, file: Path) -> Callable[[Sequence[Any]], Float[np.ndarray, "n e"]]:
    """A function that encodes texts or pairs, one at a time, with an ONNX file: to vectors, or to a cross-encoder's logits."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def encode(texts: Sequence[Any]) -> np.ndarray:
        rows = []
        for encoding in model.encodings(texts):
            ids, mask, types = encoding.ids, encoding.attention_mask, encoding.type_ids
            if not ids:  # a static encoder's tokenizer gives no token for an empty text: read one masked token
                ids, mask, types = [model.definition.architecture.pad_id], [0], [0]
            values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
            outputs = session.run(None, {name: np.array([values[name]]) for name in names})
            rows.append(np.asarray(outputs[-1])[0])  # `sentence_embedding` or `logits`, of a batch of one
        return np.stack(rows)

    return encode


def trace(model: SentenceModel, folder: Path, file: Path) -> None:
    """Traces the export in `folder`, and writes the graph in float32 to `file`."""
    import onnx
    import torch
    from transformers.utils import logging as transformers_logging

    any_size = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}  # of both axes
    names = ["input_ids", "attention_mask"]
    if model.definition.architecture.token_types > 1:
        names.append("token_type_ids")
    transformers_logging.disable_progress_bar()
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(
            _module_to_trace(model, folder).eval(),
            # Separate tensors, because a shared one would become a single input; torch would take a size of 1 as fixed.
            kwargs={name: torch.ones((2, 7), dtype=torch.int64) for name in names},
            dynamic_shapes={name: any_size for name in names},
            input_names=names,
            output_names=["logits"] if model.definition.reads_pairs else ["last_hidden_state", "sentence_embedding"],
            opset_version=18, dynamo=True, verbose=False,
        )  # fmt: skip
    assert program is not None  # `dynamo=True` returns the program
    graph = program.model_proto
    del graph.graph.value_info[:]  # these shapes are optional, and wrong for weights that torch has transposed since
    onnx.save(graph, file)


def _module_to_trace(model: SentenceModel, folder: Path) -> Any:
    """A torch module that maps token ids and masks to the graph's outputs."""
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    definition = model.definition
    auto_class = transformers.AutoModelForSequenceClassification if definition.reads_pairs else transformers.AutoModel

    class Table(torch.nn.Module):
        """Rows of a table and their mean."""

        def __init__(self):
            super().__init__()
            _, params = folded(definition, model.params)
            self.table = torch.nn.Embedding.from_pretrained(torch.tensor(params[TABLE]))

        def forward(self, input_ids, attention_mask):
            rows = self.table(input_ids)
            weights = (attention_mask * (input_ids != definition.architecture.dropped_id)).unsqueeze(-1).to(rows.dtype)
            mean = (rows * weights).sum(1) / weights.sum(1).clamp(min=1.0)
            return rows, torch.nn.functional.normalize(mean, dim=1) if definition.normalize else mean

    class Transformer(torch.nn.Module):
        """A transformer and the modules after it."""

        def __init__(self):
            super().__init__()
            self.body = auto_class.from_pretrained(folder, attn_implementation="eager")
            modules = [] if definition.reads_pairs else list(SentenceTransformer(str(folder), device="cpu"))
            self.modules_after = torch.nn.ModuleList(modules[1:])  # the first one is the body

        def forward(self, input_ids, attention_mask, token_type_ids=None):
            types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            outputs = self.body(input_ids=input_ids, attention_mask=attention_mask, **types)
            if definition.reads_pairs:
                return outputs.logits
            features = {"token_embeddings": outputs.last_hidden_state, "attention_mask": attention_mask}
            if definition.pooling.averages_layers:
                features["all_layer_embeddings"] = outputs.hidden_states
            for module in self.modules_after:
                features = module(features)
            return features["token_embeddings"], features["sentence_embedding"]

    return Table() if definition.architecture.is_static else Transformer()
