"""A run that is ready to train: models, text, targets, objective, step and dev evaluations."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxdistill.config.options import Config
from jaxdistill.core import Embed, Objective, Scorer, Sizes, Task, TrainState
from jaxdistill.data import batches
from jaxdistill.data.tokens import TokenStore
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.training import step

LAST = "last"
"""Value of `evals.best` for the last checkpoint."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Models:
    """The models of a run."""

    teachers: Sequence[SentenceModel]
    """Models whose vectors are the targets; empty with the user's own vectors."""
    labeller_digests: Sequence[str]
    """Digests of the models that label the text's pairs."""
    student: SentenceModel
    """The untrained student, with its head."""

    @property
    def teacher(self) -> SentenceModel | None:
        """The only teacher; None with several."""
        return self.teachers[0] if len(self.teachers) == 1 else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
    """The training text of a run."""

    store: TokenStore
    batches: batches.Batches
    seeds: Callable[[], np.ndarray | None]
    """Returns the teacher's vectors of the queue's first sentences, `[k, e]`; None if the objective needs none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dev:
    """The evaluations during training."""

    tasks: Mapping[str, Task]
    """Maps each dev metric to its evaluation."""
    best: str
    """The metric that chooses the best checkpoint."""

    def scores(self, embed: Embed | Scorer) -> dict[str, float]:
        """The dev metrics."""
        return {name: score for task in self.tasks.values() for name, score in task(embed).items()}


NO_DEV = Dev(tasks={}, best="")
"""A run on absent devices has no evaluations."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Shapes and shardings of a run's state."""

    optimizer: optax.GradientTransformation
    sizes: Sizes
    """Widths and depths of both encoders, for the objective."""
    like: TrainState
    """Shapes and dtypes of the state."""
    shardings: TrainState


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """The step of a run, its devices, and how often it runs."""

    mesh: Mesh
    compute_dtype: DTypeLike
    train_step: step.TrainStep
    teacher_params: Mapping[str, Any]
    """The live teacher's parameters on the mesh, or shapes if its devices are absent; empty if the step has no teacher."""
    steps: int
    schedule: optax.Schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run that is ready to train."""

    config: Config
    workdir: pathlib.Path
    objective: Objective
    models: Models
    text: Text
    dev: Dev
    layout: Layout
    program: Program

    @property
    def exports_last(self) -> bool:
        """Whether the last checkpoint is exported regardless of its score."""
        return self.config.evals.best == LAST

    def first_state(self, seeds: np.ndarray | None) -> TrainState:
        """The state before step 1, on the mesh."""
        make = partial(
            step.make_state,
            objective=self.objective,
            optimizer=self.layout.optimizer,
            sizes=self.layout.sizes,
        )
        return jax.jit(make, out_shardings=self.layout.shardings)(
            self.models.student.params, seeds, jax.random.key(self.config.run.seed)
        )


def teachers_by_name(teachers: Sequence[SentenceModel]) -> dict[str, SentenceModel]:
    """`teacher`, or `teacher 1`, `teacher 2` and so on."""
    if len(teachers) == 1:
        return {"teacher": teachers[0]}
    return {f"teacher {number}": teacher for number, teacher in enumerate(teachers, start=1)}
