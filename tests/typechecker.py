"""Checks types and shapes of arguments and results of the package's functions while the tests run."""

import numpy as np
from beartype import BeartypeConf, FrozenDict, beartype

NUMBERS = FrozenDict({int: int | np.integer, float: float | int | np.floating | np.integer})
"""NumPy's numbers are numbers, and a whole number is a float, as for pyright."""
checked = beartype(conf=BeartypeConf(hint_overrides=NUMBERS))
