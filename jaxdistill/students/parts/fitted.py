"""Fits a linear head by least squares, so that a student of another family starts in its teacher's space."""

import logging

import numpy as np
from jaxtyping import Float

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.inference import Embedder
from jaxdistill.ops.dense import dtype_of
from jaxdistill.reading import Setting, sampled_ids
from jaxdistill.students.parts.student import Ground

FITTING_SAMPLE = 4096
"""Sentences on which a head is fitted: ten times the numbers of a usual vector."""
RIDGE = 0.01
"""Penalty on the squared kernel, relative to the mean variance of the student's numbers."""

log = logging.getLogger(__name__)


def fitted_head(ground: Ground, student: SentenceModel) -> dict[str, np.ndarray]:
    """Kernel and bias that map the student's pooled vectors to the teachers' joined vectors, fitted on sentences drawn
    evenly from the text."""
    x, *of_teachers = (_vectors(ground.setting, model) for model in (student.as_pooled(), *ground.teachers))
    y = ground.teacher.joined(of_teachers)
    kernel, bias = least_squares(x, y)
    mapped = x @ kernel + bias
    cosines = np.sum(mapped * y, 1) / np.linalg.norm(mapped, axis=1) / np.linalg.norm(y, axis=1)
    log.info("student: a head fitted on %s sentences; mean cosine to the teacher %.3f", f"{len(x):,}", cosines.mean())
    return {"kernel": kernel, "bias": bias}


def least_squares(
    x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "n e"]
) -> tuple[Float[np.ndarray, "d e"], Float[np.ndarray, " e"]]:
    """Kernel and bias of the ridge regression of `y` on `x`."""
    # float64: a Gram matrix squares the condition number.
    center = x.mean(0, dtype=np.float64)
    apart = x - center
    gram = apart.T @ apart
    penalty = RIDGE * np.trace(gram) / len(gram)
    kernel = np.linalg.solve(gram + penalty * np.eye(len(gram)), apart.T @ (y - y.mean(0, dtype=np.float64)))
    return kernel.astype(np.float32), (y.mean(0) - center @ kernel).astype(np.float32)


def _vectors(setting: Setting, model: SentenceModel) -> Float[np.ndarray, "n d"]:
    ids = sampled_ids(setting, model, FITTING_SAMPLE)
    return Embedder(model, compute_dtype=dtype_of(setting.run.precision)).encode_ids(ids)
