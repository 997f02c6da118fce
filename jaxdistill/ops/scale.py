"""The scale of cosine similarities, 1 / temperature: fixed, or learned with the student."""

import math
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import Array, Params

Learned = Literal["none", "log", "linear"]
"""`none`: a fixed scale; `log`: its logarithm is a parameter; `linear`: the scale itself is a parameter."""
LARGEST = 100.0


def scale_params(temperature: float, learned: Learned) -> Params:
    """Initial parameter of a learned scale; empty for a fixed one."""
    if learned == "log":
        return {"log_scale": jnp.float32(-math.log(temperature))}
    return {"scale": jnp.float32(1.0 / temperature)} if learned == "linear" else {}


def scale(params: Params, temperature: float, learned: Learned) -> Float[Array, ""]:
    """1 / temperature; a learned scale is bounded by 100, as in CLIP."""
    if learned == "none":
        return jnp.float32(1.0 / temperature)
    return jnp.minimum(jnp.exp(params["log_scale"]) if learned == "log" else params["scale"], LARGEST)
