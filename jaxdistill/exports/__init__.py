"""Forms of an export for other runtimes: one file each, named by `export --to`.

A form's file has `refusal(model)`, why it cannot hold a model; `write(model, folder, calibration=...)`, which adds its files
to an exported folder, the most exact one first; `runner(model, file)`, which runs one of them; `ROUNDED`, files with 8-bit
weights; and `NEEDS`, the packages of the extra `EXTRA`.
"""

import importlib
import importlib.util
import logging
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from jaxdistill.checkpoints.model import SentenceModel, load_model
from jaxdistill.cli import did_you_mean
from jaxdistill.core import InputError
from jaxdistill.exports.measuring import Measured, Reference
from jaxdistill.exports.measuring import table as table
from jaxdistill.exports.running import Runtime
from jaxdistill.files.reading import foreign_errors

log = logging.getLogger(__name__)

FORMS = ("onnx", "openvino", "litert", "stablehlo", "gguf")
"""Names of the forms."""


def form(name: str) -> ModuleType:
    """The module of a form; raises `InputError` for an unknown one."""
    if name not in FORMS:
        raise InputError(
            f"form {name!r:.40} is unknown.{did_you_mean(name, list(FORMS))} --to takes {', '.join(FORMS)}, with commas between."
        )
    return importlib.import_module(f"{__name__}.{name}")


def check(names: Sequence[str], model: SentenceModel | None = None) -> None:
    """Raises `InputError` for an unknown form, one whose packages are missing, or one that cannot hold `model`."""
    for name in names:
        found = form(name)
        for package in found.NEEDS:
            if importlib.util.find_spec(package) is None:
                raise InputError(
                    f"--to={name} needs the package {package}; run: pip install 'jaxdistill[{found.EXTRA}]'"
                )
        if model is not None and (reason := found.refusal(model)):
            raise InputError(f"{name} cannot hold this model: {reason}.")


def load_form(folder: str | Path, file: str = "onnx/model_quantized.onnx") -> Runtime:
    """A form of an export, run by its own runtime.

    Args:
      folder: an export with forms for other runtimes (`export --to`).
      file: inside it.

    Raises:
      InputError: no such file, or its runtime is not installed.
    """
    path = Path(folder).expanduser() / file
    if not path.is_file():
        raise InputError(f"{path} is not there; write it with jaxdistill.export --model={folder} --to=... --out=...")
    found = form(path.parent.name)
    model = load_model(str(folder))
    with foreign_errors(f"{path} is damaged; export the model again"):
        return Runtime(model, found.runner(model, path))


def add(
    names: Sequence[str], model: SentenceModel, folder: Path, *, size: int, calibration: Sequence[str] = ()
) -> list[Measured]:
    """Adds forms to an exported folder; returns what was measured of each file, and of sentence-transformers beside them.

    Files besides a form's first one are left out where they differ too much from the model.

    Args:
      names: forms that `check` allows for the model.
      size: of the folder's own weights, in bytes.
      calibration: sentences that give the ranges of activations of ONNX in 8 bits; empty: that file is not written.

    Raises:
      InputError: a form differs from the model.
    """
    if not names:
        return []
    reference = Reference(model)
    rows = reference.of_library(folder, size)
    for name in names:
        found = form(name)
        for number, file in enumerate(found.write(model, folder, calibration=calibration)):
            row = reference.measured(f"{file.parent.name}/{file.name}", found.runner(model, file), file)
            fault = row.fault(rounded=file.name in found.ROUNDED)
            if not fault:
                rows.append(row)
            elif number:
                file.unlink()
                log.warning("%s is left out: %s", row.name, fault)
            else:
                raise InputError(
                    f"{row.name} was not written: {fault}. This is a fault of the export; please report it."
                )
    return rows
