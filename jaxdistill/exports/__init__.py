"""Forms of an export for other runtimes, one module each, named by `export --to`.

A form's module has `refusal(model)`, the reason why it cannot hold a model; `write(model, folder, calibration=...)`, which
adds its files to an exported folder and returns them, the most exact first; `runner(model, file)`, a function that runs a
file; `ROUNDED`, the files with rounded weights; and `NEEDS`, the required packages, which the extra `EXTRA` installs.
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
from jaxdistill.exports.measuring import MeasuredForm, Reference
from jaxdistill.exports.measuring import table as table
from jaxdistill.exports.running import Runtime
from jaxdistill.files import local
from jaxdistill.files.reading import foreign_errors

log = logging.getLogger(__name__)

FORMS = ("onnx", "openvino", "litert", "stablehlo", "gguf")
"""Names of the forms."""


def form(name: str) -> ModuleType:
    """The module of a form; raises `InputError` for an unknown one."""
    if name not in FORMS:
        raise InputError(
            f"form {name!r:.40} is unknown.{did_you_mean(name, list(FORMS))} --to takes {', '.join(FORMS)}, separated by commas."
        )
    return importlib.import_module(f"{__name__}.{name}")


def check(names: Sequence[str], model: SentenceModel | None = None) -> None:
    """Raises `InputError` for an unknown form, one whose packages are missing, or one that cannot hold `model`."""
    for name in names:
        chosen = form(name)
        for package in chosen.NEEDS:
            if importlib.util.find_spec(package) is None:
                first = "install PyTorch's CPU build first, see pytorch.org, then " if package == "torch" else ""
                raise InputError(
                    f"--to={name} needs the package {package}; {first}run: pip install 'jaxdistill[{chosen.EXTRA}]'"
                )
        if model is not None and (reason := chosen.refusal(model)):
            raise InputError(f"{name} cannot hold this model: {reason}.")


def load_form(folder: str | Path, file: str = "onnx/model_quantized.onnx") -> Runtime:
    """Loads a form of an export, which its own runtime runs.

    Args:
      folder: an export with forms for other runtimes (`export --to`).
      file: path of the form's file within the folder.

    Raises:
      InputError: there is no such file, or its runtime is not installed.
    """
    path = local(folder, "folder") / file
    if not path.is_file():
        raise InputError(f"{path} is not there; write it with jaxdistill.export --model={folder} --to=... --out=...")
    chosen = form(path.parent.name)
    model = load_model(str(folder))
    with foreign_errors(f"{path} is damaged; export the model again"):
        return Runtime(model, chosen.runner(model, path))


def add(
    names: Sequence[str], model: SentenceModel, folder: Path, *, size: int, calibration: Sequence[str] = ()
) -> list[MeasuredForm]:
    """Adds forms to an exported folder; returns measurements of each file, and of sentence-transformers for comparison.

    Leaves out files other than a form's first one if they differ too much from the model.

    Args:
      names: forms that `check` allows for the model.
      size: size of the folder's own weights, in bytes.
      calibration: sentences that determine the ranges of ONNX's 8-bit activations; empty: that file is not written.

    Raises:
      InputError: a form differs from the model.
    """
    if not names:
        return []
    reference = Reference(model)
    rows = reference.of_library(folder, size)
    for name in names:
        chosen = form(name)
        for number, file in enumerate(chosen.write(model, folder, calibration=calibration)):
            row = reference.measured(f"{file.parent.name}/{file.name}", chosen.runner(model, file), file)
            fault = row.fault(rounded=file.name in chosen.ROUNDED)
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
