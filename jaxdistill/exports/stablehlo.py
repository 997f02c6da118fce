"""StableHLO by `jax.export`: one file for CPUs, CUDA and TPUs, of any batch size and length, which needs only JAX.

`jax.export.deserialize(bytes).call(input_ids, attention_mask[, token_type_ids])`, int32 [b, l], returns the outputs by name.
JAX promises to read such files for six months; `stablehlo.json` gives the date.

Source: https://docs.jax.dev/en/latest/export/export.html#compatibility-guarantees.
"""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.exports.graph import function_of
from jaxdistill.exports.running import Run, inputs, outputs
from jaxdistill.versions import versions

EXTRA, NEEDS = "", ()
FOLDER, FILE, FACTS = "stablehlo", "model.bin", "stablehlo.json"
ROUNDED = ()
PLATFORMS = ("cpu", "cuda", "tpu")
READABLE_DAYS = 180
PADDED = 32
"""`runner` rounds lengths up to a multiple of this many tokens, so that few shapes are compiled."""


def refusal(model: SentenceModel) -> str:
    """Why the form cannot hold the model; always empty, because it holds every model."""
    return ""


def write(model: SentenceModel, folder: Path, *, calibration: Sequence[str] = ()) -> list[Path]:
    """Writes the file, and a note of the date until which JAX reads it; returns the file's path."""
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    shape = export.symbolic_shape("b, l")
    given = [jax.ShapeDtypeStruct(shape, jnp.int32) for _ in inputs(model)]
    exported = export.export(jax.jit(function_of(model)), platforms=PLATFORMS)(*given)
    (place / FILE).write_bytes(exported.serialize())
    facts = {
        "inputs": inputs(model),
        "outputs": outputs(model),
        "platforms": PLATFORMS,
        "readable_until": (datetime.date.today() + datetime.timedelta(days=READABLE_DAYS)).isoformat(),
        "versions": versions(),
    }
    (place / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return [place / FILE]


def runner(model: SentenceModel, file: Path) -> Run:
    """A function that runs the file in JAX."""
    call = jax.jit(export.deserialize(bytearray(file.read_bytes())).call)

    def run(**given: np.ndarray) -> np.ndarray:
        rows, length = given["input_ids"].shape
        more = (
            (0, (1 << (rows - 1).bit_length()) - rows),
            (0, -length % PADDED),
        )  # few sizes, each of which is compiled
        padded = [np.pad(given[name].astype(np.int32), more) for name in inputs(model)]
        return np.asarray(call(*padded)[outputs(model)[-1]])[:rows]

    return run
