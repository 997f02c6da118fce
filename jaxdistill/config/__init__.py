"""All options of a run: a `ConfigDict` as config files and the command line have it, read once into frozen dataclasses."""

from jaxdistill.config.options import EXTENSIONS as EXTENSIONS
from jaxdistill.config.options import SECTIONS as SECTIONS
from jaxdistill.config.options import WITHOUT_EFFECT as WITHOUT_EFFECT
from jaxdistill.config.options import Config as Config
from jaxdistill.config.options import Evals as Evals
from jaxdistill.config.options import Optimizer as Optimizer
from jaxdistill.config.options import RunOptions as RunOptions
from jaxdistill.config.options import config_digest as config_digest
from jaxdistill.config.options import flat as flat
from jaxdistill.config.options import flat_stages as flat_stages
from jaxdistill.config.options import nested as nested
from jaxdistill.config.options import refuse_other_training as refuse_other_training
from jaxdistill.config.read import of_stage as of_stage
from jaxdistill.config.read import options_from as options_from
from jaxdistill.config.read import parse_config as parse_config
from jaxdistill.config.read import parse_stages as parse_stages
from jaxdistill.config.values import Sharding as Sharding
from jaxdistill.config.write import chain as chain
from jaxdistill.config.write import defaults as defaults
from jaxdistill.config.write import set_kind as set_kind
from jaxdistill.config.write import set_options as set_options
from jaxdistill.data.options import Columns as Columns
from jaxdistill.data.options import Data as Data
