"""OpenVINO, for Intel's processors: `openvino/openvino_model.xml` and `.bin`, converted from the graph of ONNX.

Inputs and outputs equal the ONNX export's, with any batch size and length.
"""

import errno
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.core import error_line
from jaxdistill.exports import onnx
from jaxdistill.exports.running import Run, imported, inputs, outputs

EXTRA, NEEDS = "onnx,openvino", (*onnx.NEEDS, "openvino")
FOLDER, FILE = "openvino", "openvino_model.xml"
ROUNDED = ()
refusal = onnx.refusal


def write(model: SentenceModel, folder: Path, *, calibration: Sequence[str] = ()) -> list[Path]:
    """Writes the graph and its weights; returns the graph's path. Raises `OSError` if they cannot be written."""
    openvino, place = _library(), folder / FOLDER
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as own:
        traced = folder / onnx.FOLDER / onnx.FLOAT
        if not traced.exists():
            traced = Path(own) / onnx.FLOAT
            onnx.trace(model, folder, traced)
        graph = openvino.Core().read_model(str(traced))
        try:
            openvino.save_model(graph, str(place / FILE), compress_to_fp16=False)
        except RuntimeError as error:  # it does not say why
            raise OSError(errno.EIO, f"OpenVINO's writer failed, as on a full disk ({error_line(error)})") from None
    return [place / FILE]


def runner(model: SentenceModel, file: Path) -> Run:
    """A function that runs the files in OpenVINO, in single precision, as they are stored."""
    compiled = _library().Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(**given: np.ndarray) -> np.ndarray:
        return compiled({name: given[name] for name in inputs(model)})[outputs(model)[-1]]

    return run


def _library() -> Any:
    """The module `openvino` without its telemetry, which reports each import to Google Analytics from a forked process."""
    sys.modules.setdefault("openvino_telemetry", cast(Any, None))  # so that it cannot be imported
    return imported("openvino", EXTRA)
