"""ONNX files of an export, for ONNX Runtime, transformers.js and sentence-transformers (`backend="onnx"`).

A graph maps `input_ids`, `attention_mask` and, if the model has them, `token_type_ids`, of any batch size and length, to
`last_hidden_state`, which includes linear heads, and `sentence_embedding`, or to a cross-encoder's `logits`. torch traces the
exported folder as transformers and sentence-transformers load it.
"""

import importlib
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
    """Writes both files into the export in `folder`; returns their paths."""
    files = [folder / FOLDER / name for name in (FLOAT, INT8)]
    files[0].parent.mkdir(exist_ok=True)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the packages warn a lot; the result is compared afterwards
    try:
        trace(model, folder, files[0])
        rounding = importlib.import_module("onnxruntime.quantization")
        # 7-bit weights: processors without VNNI add pairs of products in 16 bits, which would overflow with 8 bits.
        # Asymmetric weights lose less: mean cosine 0.9905 instead of 0.9899 on 1,000 texts of six languages.
        rounding.quantize_dynamic(*files, weight_type=rounding.QuantType.QUInt8, per_channel=True, reduce_range=True)
    finally:
        logging.disable(before)
    return files


def encoder(model: SentenceModel, file: Path) -> Callable[[Sequence[Any]], Float[np.ndarray, "n e"]]:
    """A function of texts, or pairs, that runs a file in ONNX Runtime, one at a time, and gives vectors or logits."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def encode(texts: Sequence[Any]) -> np.ndarray:
        rows = []
        for one in model.encodings(texts):
            # A static tokenizer gives no token for an empty text: one masked token stands for it.
            ids, types = one.ids or [model.definition.architecture.pad_id], one.type_ids or [0]
            values = {"input_ids": ids, "attention_mask": [int(bool(one.ids))] * len(ids), "token_type_ids": types}
            *_, row = session.run(None, {name: np.array([values[name]]) for name in names})
            rows.append(np.asarray(row)[0])
        return np.stack(rows)

    return encode


def trace(model: SentenceModel, folder: Path, file: Path) -> None:
    """Writes the graph in float32."""
    import onnx
    import torch
    from transformers.utils import logging as bars

    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    names = ["input_ids", "attention_mask"]
    if model.definition.architecture.token_types > 1:
        names.append("token_type_ids")
    bars.disable_progress_bar()
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(
            _traced(model, folder).eval(),
            # A shared tensor would become a single input.
            kwargs={name: torch.ones((2, 7), dtype=torch.int64) for name in names},
            dynamic_shapes={name: sizes for name in names},
            input_names=names,
            output_names=["logits"] if model.definition.reads_pairs else ["last_hidden_state", "sentence_embedding"],
            opset_version=18,
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # `dynamo=True` returns the program
    graph = program.model_proto
    del graph.graph.value_info[:]  # shapes of weights that were transposed later would be wrong
    onnx.save(graph, file)


def _traced(model: SentenceModel, folder: Path) -> Any:
    """The torch module that is traced: maps token ids to the outputs."""
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    definition, params, others = model.definition, model.params, []
    if definition.architecture.is_static:
        _, params = folded(definition, params)
    elif not definition.reads_pairs:
        others = list(SentenceTransformer(str(folder), device="cpu"))[1:]
    kind = transformers.AutoModelForSequenceClassification if definition.reads_pairs else transformers.AutoModel

    class Table(torch.nn.Module):
        """Rows of a table and their mean."""

        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding.from_pretrained(torch.tensor(params[TABLE]))

        def forward(self, input_ids, attention_mask):
            rows = self.table(input_ids)
            counted = (attention_mask * (input_ids != definition.architecture.dropped_id)).unsqueeze(-1).to(rows.dtype)
            mean = (rows * counted).sum(1) / counted.sum(1).clamp(min=1.0)
            return rows, torch.nn.functional.normalize(mean, dim=1) if definition.normalize else mean

    class Transformer(torch.nn.Module):
        """A transformer and the modules after it."""

        def __init__(self):
            super().__init__()
            self.body = kind.from_pretrained(folder, attn_implementation="eager")
            self.others = torch.nn.ModuleList(others)

        def forward(self, input_ids, attention_mask, token_type_ids=None):
            types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            outputs = self.body(input_ids=input_ids, attention_mask=attention_mask, **types)
            if definition.reads_pairs:
                return outputs.logits
            features = {"token_embeddings": outputs.last_hidden_state, "attention_mask": attention_mask}
            if definition.pooling.averages_layers:
                features["all_layer_embeddings"] = outputs.hidden_states
            for module in self.others:
                features = module(features)
            return features["token_embeddings"], features["sentence_embedding"]

    return Table() if definition.architecture.is_static else Transformer()
