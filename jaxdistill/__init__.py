"""Distil large sentence encoders into small ones, in JAX."""

import os
import signal
import sys

if sys.argv[:1] == ["-m"]:  # `python -m jaxdistill.PROGRAM`, whose imports Ctrl-C would end with a traceback
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

__version__ = "0.1.0"


def load(model: str, **options):
    """See `jaxdistill.inference.load`; imported on use, so that `import jaxdistill` stays cheap."""
    from jaxdistill.inference import load as load_embedder

    return load_embedder(model, **options)
