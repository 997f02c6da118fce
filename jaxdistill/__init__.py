"""Distil large sentence encoders into small ones, in JAX."""

__version__ = "0.1.0"


def load(model: str, **options):
    """See `jaxdistill.inference.load`; imported on use, so that `import jaxdistill` stays cheap."""
    from jaxdistill.inference import load as load_embedder

    return load_embedder(model, **options)
