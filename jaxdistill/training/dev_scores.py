"""Evaluates the student while it trains, tracks its best score, and ends a training that no longer improves."""

import math
from collections.abc import Mapping
from typing import Any

from jaxdistill.core import Array, InputError, Params, TrainState
from jaxdistill.inference import Embedder
from jaxdistill.training.collapse import Collapse
from jaxdistill.training.console import say
from jaxdistill.training.goodput import Goodput
from jaxdistill.training.recorder import Recorder
from jaxdistill.training.run import Run
from jaxdistill.training.schedule import Diverged, Hook, patience_of


class DevScores(Hook):
    """Runs all dev evaluations when they are due.

    Args:
      track: the record of evaluations (best score, step and so on), which checkpoints keep.
      recorder: reports metrics before an evaluation, and writes its scores.
      collapse: measures the spread of the vectors at each evaluation; None: not measured.
    """

    def __init__(
        self, run: Run, track: dict[str, Any], *, recorder: Recorder, goodput: Goodput, collapse: Collapse | None
    ):
        self.run, self.track, self.recorder, self.goodput, self.collapse = run, track, recorder, goodput, collapse
        self.patience = patience_of(run.config.evals, run.text.batches.steps_per_epoch)
        evaluated = run.config.student.evaluated(run.models.student)
        self.embedder = Embedder(evaluated, mesh=run.program.mesh, compute_dtype=run.program.compute_dtype, params={})

    def at_start(self, step: int, state: TrainState, *, is_new: bool) -> None:
        ends_here = (
            step == self.run.program.steps and self.track.get("evaluated", step) != step
        )  # a killed run was asked to
        if is_new or ends_here:
            self.evaluate(step, state)

    def after_step(self, step: int, state: TrainState, metrics: Mapping[str, Array]) -> None:
        if self.recorder.schedule.evaluates(step):
            self.evaluate(step, state)

    def reason_to_stop(self) -> str:
        if not self.patience or self.track["since_best"] < self.patience:
            return ""
        return f"{self.track['since_best']} evaluations without a better {self.run.dev.best}"

    def evaluate(self, step: int, state: TrainState) -> None:
        """Runs all dev evaluations and tracks the best score."""
        self.recorder.report(step)
        params = state.params["student"]
        with self.goodput.spent("evaluation"):
            scores = self.scores(step, params)
            spread = self.collapse.spread(step, params, self.embedder) if self.collapse else {}
        self.track["evaluated"] = step
        if step == 0:
            self.track["before"] = scores
        if step or self.run.config.evals.untrained:
            self.compare(step, scores)
        best_now = not self.run.exports_last and self.track["best"] is not None and self.track["best_step"] == step
        shown = ", ".join(f"{name} {100 * value:.2f}" for name, value in scores.items())
        say(f"step {step:,}: {shown or 'no dev set'}{' (best)' if best_now else ''}")
        self.recorder.write(step, scores | spread)
        self.recorder.restart(step)

    def scores(self, step: int, params: Params) -> dict[str, float]:
        """All dev metrics; raises `Diverged` if a score cannot be computed or is not finite."""
        try:
            scores = self.run.dev.scores(self.embedder.as_embed(params))
            for name, score in scores.items():
                if not math.isfinite(score):  # no later score could beat it
                    raise InputError(f"{name} is {score}")
        except InputError as error:
            if step == 0:
                raise
            raise Diverged(f"at step {step}: {str(error).rstrip('.')}") from error
        return scores

    def compare(self, step: int, scores: dict[str, float]) -> None:
        """Notes whether these scores are the best so far."""
        score, best = scores.get(self.run.dev.best, 0.0), self.track["best"]  # none is needed if the last step counts
        self.track["since_best"] = 0 if best is None or score > best else self.track["since_best"] + 1
        if self.run.exports_last or best is None or score >= best:  # at equal scores the later one, trained for longer
            self.track |= {"best": score, "best_step": step, "scores": scores}
