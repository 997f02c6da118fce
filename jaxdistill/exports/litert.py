"""LiteRT, formerly TensorFlow Lite, for phones and small devices: `litert/model.tflite`, one sentence of a fixed length.

Inputs are named as in the ONNX export, int32 [1, l], padded to the file's length. The converter refuses or breaks graphs of
variable length (docs/deployment.md).
"""

from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.exports.graph import function_of
from jaxdistill.exports.running import Run, imported, inputs, outputs

EXTRA, NEEDS = "litert", ("litert_converter", "ai_edge_litert")
FOLDER, FILE = "litert", "model.tflite"
ROUNDED = ()
LONGEST = 256
"""Maximum length in tokens, unless the model reads fewer: every sentence costs as much as one of this length."""
SIGNATURE = "serving_default"


def refusal(model: SentenceModel) -> str:
    """Why the form cannot hold the model; always empty, because it holds every model."""
    return ""


def length_of(model: SentenceModel) -> int:
    """The file's fixed sentence length, in tokens."""
    return min(model.max_length, LONGEST)


def write(model: SentenceModel, folder: Path, *, calibration: Sequence[str] = ()) -> list[Path]:
    """Writes the file; returns its path."""
    api, mlir = imported("litert_converter.converter_api_ext", EXTRA), imported("litert_converter.mlir.ir", EXTRA)
    passes = imported("litert_converter.mlir.passmanager", EXTRA)
    names, place = inputs(model), folder / FOLDER
    place.mkdir(exist_ok=True)
    given = [jax.ShapeDtypeStruct((1, length_of(model)), jnp.int32) for _ in names]
    exported = export.export(jax.jit(function_of(model)), platforms=["cpu"])(*given)
    context = mlir.Context()
    api.prepare_mlir_context(context)
    with context:
        module = mlir.Module.parse(str(exported.mlir_module()))
        options = api.ConvertToTFLConfig()
        options.model_origin_framework = "JAX"
        main = next(op for op in module.body.operations if op.operation.attributes["sym_name"].value == "main")
        api.set_signature(main.operation, SIGNATURE, names, sorted(outputs(model)))
        api.run_convert_to_tfl_passes(module, passes.PassManager(), options)
        (place / FILE).write_bytes(api.export_flatbuffer_to_bytes(module.operation))
    return [place / FILE]


def runner(model: SentenceModel, file: Path) -> Run:
    """A function that runs the file in LiteRT, sentence by sentence."""
    interpreter = imported("ai_edge_litert.interpreter", EXTRA).Interpreter(model_path=str(file))
    signature, length = interpreter.get_signature_runner(SIGNATURE), length_of(model)

    def one(given: dict[str, np.ndarray], row: int) -> np.ndarray:
        padded = {name: np.zeros((1, length), np.int32) for name in inputs(model)}
        for name, array in padded.items():
            kept = given[name][row, :length]
            array[0, : len(kept)] = kept
        return signature(**padded)[outputs(model)[-1]][0].copy()

    def run(**given: np.ndarray) -> np.ndarray:
        return np.stack([one(given, row) for row in range(len(given["input_ids"]))])

    return run
