"""Fits a linear head by least squares, so that a student of another family starts in its teacher's space."""

import logging
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from jaxdistill.config import Config
from jaxdistill.core import InputError
from jaxdistill.data.targets import joined
from jaxdistill.encoders.model import SentenceModel
from jaxdistill.inference import Embedder
from jaxdistill.ops.dense import dtype_of
from jaxdistill.training.several import shares_of
from jaxdistill.training.text import sampled_ids

FITTING_SAMPLE = 4096
"""Sentences on which a head is fitted: ten times the numbers of a usual vector."""
RIDGE = 0.01
"""Penalty on the squared kernel, relative to the mean variance of the student's numbers."""

log = logging.getLogger(__name__)


def check_fits(config: Config, teacher: SentenceModel | None) -> None:
    """Raises `InputError` where no head can be fitted."""
    if config.student.head_init != "fitted" or config.student.head in ("none", "pair"):
        return
    if config.student.head != "linear":
        raise InputError(
            f"student.head_init=fitted needs a linear head, got student.head={config.student.head}; set "
            "--config.student.head=linear."
        )
    if config.teacher.whiten or config.teacher.components:
        raise InputError(
            "student.head_init=fitted maps to the teacher's own vectors, not to whitened or reduced ones; drop "
            "teacher.whiten and teacher.components, or set --config.student.head_init=uniform."
        )
    if teacher is None:
        raise InputError(
            "student.head_init=fitted needs a teacher model that gives vectors; use --config.student.head_init=uniform."
        )


def fitted_head(config: Config, student: SentenceModel, teachers: Sequence[SentenceModel]) -> dict[str, np.ndarray]:
    """Kernel and bias that map the student's pooled sentences to the vectors of the teacher, or to those of several side
    by side, on sentences drawn evenly from the text."""
    x, *of_teachers = (_vectors(config, model) for model in (student.as_pooled(), *teachers))
    y = of_teachers[0] if len(teachers) == 1 else joined(of_teachers, shares_of(config.teacher))
    kernel, bias = least_squares(x, y)
    mapped = x @ kernel + bias
    cosines = np.sum(mapped * y, 1) / np.linalg.norm(mapped, axis=1) / np.linalg.norm(y, axis=1)
    log.info("student: a head fitted on %s sentences; mean cosine to the teacher %.3f", f"{len(x):,}", cosines.mean())
    return {"kernel": kernel, "bias": bias}


def least_squares(
    x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "n e"]
) -> tuple[Float[np.ndarray, "d e"], Float[np.ndarray, " e"]]:
    """Kernel and bias of the ridge regression of `y` on `x`."""
    center = x.mean(0, dtype=np.float64)
    apart = x - center
    gram = apart.T @ apart
    penalty = RIDGE * np.trace(gram) / len(gram)
    kernel = np.linalg.solve(gram + penalty * np.eye(len(gram)), apart.T @ (y - y.mean(0, dtype=np.float64)))
    return kernel.astype(np.float32), (y.mean(0) - center @ kernel).astype(np.float32)


def _vectors(config: Config, model: SentenceModel) -> Float[np.ndarray, "n d"]:
    ids = sampled_ids(config, model, FITTING_SAMPLE)
    return Embedder(model, compute_dtype=dtype_of(config.run.precision)).encode_ids(ids)
