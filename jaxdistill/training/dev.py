"""The evaluations during training: the student's dev scores, the best checkpoint, patience, and the watch for collapse.

A student may keep its score for a while although its vectors collapse to a few directions. Three measures of its unit vectors
for a fixed sample of the training text show this:

- `vectors/spread`: standard deviation of the cosines of all pairs of sentences.
- `vectors/uniformity`: Wang and Isola's uniformity (https://arxiv.org/abs/2005.10242, equation 2), in nats; lower is
  more uniform.
- `vectors/rank`: effective rank of the centred vectors, the exponential of the entropy of their singular values
  (Roy and Vetterli, EUSIPCO 2007; RankMe, https://arxiv.org/abs/2210.02885).
"""

import logging
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.config.options import Config, Evals
from jaxdistill.core import (
    LABELS,
    Diverged,
    Embed,
    InputError,
    Objective,
    Params,
    Scorer,
    Task,
    did_you_mean,
    errors_of,
)
from jaxdistill.core.paths import data_folder, needed_data_folder
from jaxdistill.data.text import file_of, files_of, read, split_specs
from jaxdistill.data.tokens import TokenStore
from jaxdistill.evals import agreement, documents, pairs, retrieval, sts
from jaxdistill.evals.documents import SetFiles
from jaxdistill.evals.geometry import pairwise_cosines, uniformity
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.inference import Embedder
from jaxdistill.models.vectors import unit_or_zero_vectors
from jaxdistill.training.metrics import say

if TYPE_CHECKING:
    from jaxdistill.training.build import Run, Targets

LAST = "last"
"""Value of `evals.best` for the last checkpoint."""
HELD_OUT = 2000
"""Sentences held out of training to measure agreement with the teacher, unless a file of sentences is given."""
MIN_HELD_OUT = 4
"""Fewest sentences on which agreement is measured."""
SAMPLE = 256
"""Sentences of the training text on which the spread of vectors is measured."""
NEEDED = {
    pairs.METRIC: "pairs=FILE",
    pairs.AUC_METRIC: "pairs=FILE, whose scores are 0 and 1",
    **dict.fromkeys(documents.METRICS.values(), "retrieval=FOLDER"),
    retrieval.METRIC: "entities=FILE",
}
"""Maps metrics to the options of `evals` that name the user's data for them."""
SPREAD, RANK = "vectors/spread", "vectors/rank"
SHARE = 0.25
"""Vectors count as collapsed if spread or rank falls below this fraction of the run's highest."""

log = logging.getLogger(__name__)


class Dev(NamedTuple):
    """The evaluations during training."""

    tasks: Mapping[str, Task] = {}
    """Maps each dev metric to its evaluation."""
    best: str = ""
    """The metric that chooses the best checkpoint."""

    def scores(self, embed: Embed | Scorer) -> dict[str, float]:
        """The dev metrics."""
        return {name: score for task in self.tasks.values() for name, score in task(embed).items()}


def dev_tasks(config: Config, *, named: bool = True, similarity: str = "cosine") -> dict[str, Task]:
    """Reads the dev sets and maps metrics to evaluations, the preferred one first; raises `InputError` if a set cannot be used, or
    nothing can choose the best checkpoint.

    Graded pairs whose scores are all 0 or 1 are scored by AUC, unless `evals.best` is `pairs/spearman`.

    Args:
      named: also read published sets, perhaps from the hub: the one that `evals.best` names, and STS-B dev if there is a data folder.
      similarity: how a student with vectors ranks documents: by `cosine` or `dot`.
    """
    evals, best, tasks = config.evals, config.evals.best, dict[str, Task]()

    def add(metric: str, measure: Callable[..., float], graded: pairs.GradedPairs) -> None:
        tasks[metric] = lambda embed: {metric: measure(embed, graded)}

    for option in ("retrieval", "entities"):
        if (value := getattr(evals, option)) and config.student.reads_pairs:
            raise InputError(
                f"evals.{option}={value} is for students with vectors, but the student {config.student.kind} is a cross-encoder; leave it out."
            )
    if evals.pairs:
        graded = pairs.read_pairs(file_of("evals.pairs", evals.pairs))
        if pairs.is_binary(graded) and best != pairs.METRIC:
            add(pairs.AUC_METRIC, pairs.pairs_auc, graded)
        else:
            add(pairs.METRIC, pairs.pairs_spearman, graded)
    if evals.retrieval:
        sets = [documents.read_set(files) for files in retrieval_files(evals)]
        tasks[documents.METRICS[sets[0].split]] = partial(documents.mean_ndcg, sets, similarity=similarity)
    if paths := files_of("evals.entities", split_specs(evals.entities)):
        tasks[retrieval.METRIC] = partial(retrieval.mean_recall, [*map(retrieval.read_entities, paths)])
    if not named:
        return tasks
    folder = sts_data_folder()
    if best in pairs.DEV:
        add(best, pairs.pairs_auc, pairs.dev_pairs(folder or needed_data_folder(f"evals.best={best}"), best))
    if folder or best == sts.DEV_METRIC:
        with errors_of(f"dev set {sts.DEV_METRIC}"):
            add(sts.DEV_METRIC, pairs.pairs_spearman, sts.read_set("sts-b-dev", folder))
    if not tasks and not evals.agreement and not config.teacher.is_given:
        chosen_metric({}, best)  # raises, unless `best` is `LAST`
    return tasks


def agreement_pairs(config: Config) -> Sequence[Sequence[str]]:
    """The first and second sentences of `evals.agreement`; empty without it."""
    if not config.evals.agreement:
        return ()
    rows = read(split_specs(config.evals.agreement), cache=config.data.cache_folder)
    return agreement.neighbouring_pairs([text for (text,) in rows if text.strip()])


def chosen_metric(tasks: Mapping[str, Task], best: str = "") -> str:
    """The metric that chooses the best checkpoint, where higher is better: `best`, or the first task's if `best` is empty or `LAST`.

    Empty for `LAST` without tasks. Otherwise raises `InputError` if it is not measured.
    """
    measured = [name for metric, task in tasks.items() for name in getattr(task, "metrics", [metric])]
    if best in measured:
        return best
    if best == LAST or (tasks and not best):
        return next(iter(tasks), "")
    if best in NEEDED:
        problem = f"evals.best={best!r} needs your own data; give --config.evals.{NEEDED[best]}, or another --config.evals.best."
    elif best:
        problem = f"evals.best={best!r} is not measured in this run; measured: {', '.join([*measured, LAST])}."
    else:
        problem = (
            "no evaluation can choose the best checkpoint: give --config.evals.best=sts-b-dev/spearman (from JAXDISTILL_DATA "
            "or the hub) or last, --config.evals.pairs=FILE, --config.evals.retrieval=FOLDER, --config.evals.entities=FILE or "
            "--config.teacher.model=MODEL."
        )
    raise InputError(problem + did_you_mean(best, measured))


def check_dev(
    config: Config, tasks: Mapping[str, Task], teachers: Sequence[SentenceModel], objective: Objective, *, count: int
) -> None:
    """Raises `InputError` if no evaluation will be able to choose the best checkpoint, or `evals.agreement` has no teacher model.

    Needs no targets, only the `count` of distinct sentences on which agreement would be measured.
    """
    if config.evals.agreement and not teachers:
        raise InputError("evals.agreement needs a teacher model; your own vectors only cover the training text.")
    nearest = None if config.teacher.scores_pairs else np.empty((count, 0), np.int64)
    # A stand-in without contents: only the names of its metrics are read.
    expected = agreement.AgreementTask(first=(), second=(), teacher=np.empty(0), nearest=nearest)
    is_measured = count >= MIN_HELD_OUT and (teachers or objective.teacher_views)
    make_dev(config, tasks, expected if is_measured else None)


def make_dev(config: Config, tasks: Mapping[str, Task], agreeing: Task | None) -> Dev:
    """The dev evaluations of a run; raises `InputError` if none can choose the best checkpoint."""
    tasks = {**tasks, agreement.METRIC: agreeing} if agreeing else tasks
    return Dev(tasks=tasks, best=chosen_metric(tasks, config.evals.best))


def dev_agreement(
    config: Config, targets: "Targets", agreeing: Sequence[Sequence[str]], held_out: Integer[np.ndarray, " n"]
) -> Task | None:
    """Agreement with the teacher on the pairs of a file (`agreeing`), or on held-out sentences: on pairs of the text if the teacher
    scores pairs, else on each sentence with its nearest neighbour and with a random one. None without a teacher, or if too few are
    held out."""
    if agreeing:
        assert targets.embed is not None  # `check_dev` has found a teacher
        return agreement.agreement_task(targets.embed, *agreeing)
    if len(held_out) < MIN_HELD_OUT or (targets.embed is None and not targets.arrays):
        return None
    if targets.views == (LABELS,):  # the targets are scores of pairs
        first, first_roles = targets.sentences(targets.scored[0], held_out)
        second, second_roles = targets.sentences(targets.scored[1], held_out)
        return agreement.AgreementTask(
            first=tuple(first),
            second=tuple(second),
            teacher=targets.rows(held_out)[:, 0],
            roles=(first_roles, second_roles),
        )
    texts, roles = targets.sentences(targets.column, held_out)
    vectors = dict(zip(texts, targets.rows(held_out), strict=True))
    return agreement.held_out_task(vectors, seed=config.run.seed, roles=dict(zip(texts, roles, strict=True)))


def retrieval_files(evals: Evals) -> list[SetFiles]:
    """The files of the sets that `evals.retrieval` names."""
    specs = [os.path.expanduser(spec) for spec in split_specs(evals.retrieval)]
    option = "--config.evals.retrieval_split"
    return [documents.set_files(spec, split=evals.retrieval_split or "dev", option=option) for spec in specs]


def held_out_rows(evals: Evals, rows: int) -> int:
    """Number of sentences to hold out of training for agreement with the teacher; 0 if another metric judges the run."""
    by_sts_b = evals.best == sts.DEV_METRIC or sts_data_folder() is not None
    judged_otherwise = evals.pairs or evals.retrieval or evals.entities or by_sts_b
    is_needed = not evals.agreement and (not judged_otherwise or evals.best in agreement.METRICS)
    return min(HELD_OUT, rows // 20 * 2) if is_needed else 0  # at most a tenth, and even


def sts_data_folder() -> pathlib.Path | None:
    """The data folder, checked for STS sets; None without one."""
    if (folder := data_folder()) is not None:
        sts.sts_folder(folder)
    return folder


class Evaluator:
    """Runs all dev evaluations, and notes the best score.

    Args:
      embedder: of the student as it is evaluated; `evaluate` gets the parameters.
      record: best score, its step, count of evaluations without a higher one and so on, updated in place; checkpoints store it.
    """

    def __init__(self, run: "Run", embedder: Embedder, record: dict[str, Any]):
        self.dev, self.evals, self.embedder, self.record = run.dev, run.config.evals, embedder, record
        self.exports_last = run.exports_last
        epochs = self.evals.patience_epochs * run.batches.steps_per_epoch
        counts = self.evals.patience, math.ceil(round(epochs / self.evals.every, 6))
        self.patience = min(filter(None, counts), default=0)
        """Number of evaluations without a better score after which the run stops; 0: it never does."""
        is_watched = self.evals.collapse != "off" and not embedder.model.definition.reads_pairs
        self.sample = sample_of(run.store) if is_watched else ()

    def evaluate(self, step: int, params: Params) -> dict[str, float]:
        """The scores of a student with these parameters and the spread of its vectors; prints the scores.

        Raises:
          Diverged: a score cannot be computed or is not finite, or the vectors collapse and `evals.collapse` is `stop`.
        """
        record = self.record
        try:
            scores = self.dev.scores(self.embedder.as_embed(params))
        except InputError as error:
            if step == 0:
                raise
            raise Diverged(f"at step {step}: {str(error).rstrip('.')}") from error
        if wrong := [f"{name} is {score}" for name, score in scores.items() if not math.isfinite(score)]:
            raise Diverged(f"at step {step}: {wrong[0]}")  # no later score could beat it
        spread = self._watched_spread(step, params) if self.sample else {}
        record["evaluated"] = step
        if step == 0:
            record["before"] = scores
        if step or self.evals.untrained:
            note_score(record, step, scores, best=self.dev.best, exports_last=self.exports_last)
        is_best = not self.exports_last and record["best"] is not None and record["best_step"] == step
        shown = ", ".join(f"{name} {100 * value:.2f}" for name, value in scores.items()) or "no dev set"
        say(f"step {step:,}: {shown}{' (best)' if is_best else ''}")
        return scores | spread

    def _watched_spread(self, step: int, params: Params) -> dict[str, float]:
        """The spread of the sample's vectors; warns, or raises `Diverged`, if it has fallen far below the run's widest."""
        spread = measured_spread(partial(self.embedder.encode, params=params, prompt=""), self.sample)
        widest = self.record.get("widest", {})
        if fallen := [name for name in (SPREAD, RANK) if spread[name] < SHARE * widest.get(name, 0.0)]:
            falls = [f"{name} fell from {widest[name]:.3g} to {spread[name]:.3g}" for name in fallen]
            collapse = f"the student's vectors collapse: {' and '.join(falls)}"
            if self.evals.collapse == "stop":
                raise Diverged(f"at step {step}: {collapse}")
            log.warning("step %d: %s; evals.collapse=stop ends such a run", step, collapse)
        self.record["widest"] = {name: max(spread[name], widest.get(name, 0.0)) for name in (SPREAD, RANK)}
        return spread

    def reason_to_stop(self) -> str:
        """Why the training should stop early; empty: it should not."""
        if not self.patience or self.record["since_best"] < self.patience:
            return ""
        return f"{self.record['since_best']} evaluations without a better {self.dev.best}"


def note_score(record: dict[str, Any], step: int, scores: dict[str, float], *, best: str, exports_last: bool) -> None:
    """Updates the record: the best score so far by the metric `best`, its step, and the count of evaluations without a higher one.
    With `exports_last`, the latest scores always count as the best."""
    score, highest = scores.get(best, 0.0), record["best"]  # the metric may be missing only if `exports_last`
    record["since_best"] = 0 if highest is None or score > highest else record["since_best"] + 1
    if exports_last or highest is None or score >= highest:  # at equal scores the later one, trained for longer
        record |= {"best": score, "best_step": step, "scores": scores}


def sample_of(store: TokenStore) -> list[str]:
    """At most `SAMPLE` distinct, evenly spaced sentences of the text's first column, with the student's prompts; empty if
    fewer than 8 are distinct."""
    column = store.columns[0]
    rows = np.linspace(0, store.rows - 1, min(SAMPLE, store.rows)).astype(int)
    numbered = zip(store.roles(column, rows), rows, strict=True)
    distinct = list(dict.fromkeys(store.prompts[role] + store.text(column, int(row)) for role, row in numbered))
    return distinct if len(distinct) >= 8 else []


def measured_spread(embed: Embed, sentences: Sequence[str]) -> dict[str, float]:
    """Spread, uniformity and rank of a model's vectors; raises `InputError` if a vector is not finite.

    Leaves out zero vectors, which a static student gives for sentences of unknown words. Fewer than two others have no spread: 0.
    """
    vectors = unit_or_zero_vectors(embed, sentences)
    vectors = vectors[np.any(vectors, axis=1)]
    if len(vectors) < 2:
        return {SPREAD: 0.0, "vectors/uniformity": 0.0, RANK: 0.0}
    cosines = pairwise_cosines(vectors)
    return {
        SPREAD: float(np.std(cosines)),
        "vectors/uniformity": uniformity(cosines, power=2),
        RANK: effective_rank(vectors),
    }


def effective_rank(vectors: Float[np.ndarray, "n e"]) -> float:
    """Exponential of the entropy of the centred vectors' singular values; 1 if all lie on one line, 0 if all are equal."""
    singular = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False)
    if (total := singular.sum()) < 1e-9 * len(vectors):
        return 0.0
    shares = singular[singular > 0] / total
    return float(np.exp(-np.sum(shares * np.log(shares))))
