"""The `model_type` of GTE checkpoints that include their own code, which is never run; exported as `gte`."""

from jaxdistill.encoders.families.gte import NAMES as NAMES
from jaxdistill.encoders.families.gte import PREFIXES as PREFIXES
from jaxdistill.encoders.families.gte import architecture as architecture
from jaxdistill.encoders.families.gte import config as config
