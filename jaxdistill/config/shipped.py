"""Makes the shipped configs importable, in a clone and from the wheel: `from jaxdistill.config.shipped.studies import congen_alpha`."""

from jaxdistill.core.paths import configs_folder

__path__ = [str(configs_folder())]
