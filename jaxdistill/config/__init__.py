"""All options of a run: a `ConfigDict` as config files and the command line have it, read once into frozen dataclasses."""

from jaxdistill.config.files import chain, defaults, set_kind, set_options
from jaxdistill.config.options import (
    EXTENSIONS,
    SECTIONS,
    WITHOUT_EFFECT,
    Config,
    Evals,
    Optimizer,
    RunOptions,
    Sharding,
    config_digest,
    flat,
    flat_stages,
    nested,
    refuse_other_training,
)
from jaxdistill.config.read import of_stage, options_from, parse_config, parse_stages
from jaxdistill.data.options import Columns, Data

__all__ = [
    "EXTENSIONS", "SECTIONS", "WITHOUT_EFFECT", "Columns", "Config", "Data", "Evals", "Optimizer", "RunOptions", "Sharding", "chain",
    "config_digest", "defaults", "flat", "flat_stages", "nested", "of_stage", "options_from", "parse_config", "parse_stages",
    "refuse_other_training", "set_kind", "set_options",
]  # fmt: skip
