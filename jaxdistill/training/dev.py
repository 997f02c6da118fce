"""Evaluates the student during training, and decides by its dev scores which checkpoint is best and when to stop early."""

import math
import os
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Integer

from jaxdistill.config.options import Config, Evals
from jaxdistill.core import Diverged, Embed, InputError, Params, Scorer, Task, did_you_mean, errors_of
from jaxdistill.core.paths import data_folder, needed_data_folder
from jaxdistill.data.text import file_of, files_of, read, split_specs
from jaxdistill.evals import agreement, documents, pairs, retrieval, sts
from jaxdistill.evals.documents import SetFiles
from jaxdistill.models.inference import Embedder
from jaxdistill.training.metrics import say

if TYPE_CHECKING:
    from jaxdistill.training.build import Run, Targets

LAST = "last"
"""Value of `evals.best` for the last checkpoint."""


class Dev(NamedTuple):
    """The evaluations during training."""

    tasks: Mapping[str, Task] = {}
    """Maps metrics to evaluations; agreement measures further metrics."""
    best: str = ""
    """The metric that chooses the best checkpoint."""

    def scores(self, embed: Embed | Scorer) -> dict[str, float]:
        """The scores of a model, in [-1, 1], by metric."""
        return {name: score for task in self.tasks.values() for name, score in task(embed).items()}


def dev_tasks(config: Config, *, similarity: str = "cosine") -> dict[str, Task]:
    """Reads the dev sets, and maps metrics to evaluations, the preferred one first. Besides the user's sets, it reads the published
    one that `evals.best` names, and STS-B dev if there is a data folder. A student with vectors ranks documents by their
    `similarity`, `cosine` or `dot`. Raises `InputError` if a set cannot be used, or nothing can choose the best checkpoint."""
    evals = config.evals
    best = evals.best
    tasks = dict[str, Task]()

    def add(metric: str, measure: Callable[..., float], graded: pairs.GradedPairs) -> None:
        tasks[metric] = lambda embed: {metric: measure(embed, graded)}

    for option in ("retrieval", "entities"):
        if (value := getattr(evals, option)) and config.student.reads_pairs:
            raise InputError(f"evals.{option}={value} is for students with vectors, not for {config.student.kind}.")
    if evals.pairs:
        graded = pairs.read_pairs(file_of("evals.pairs", evals.pairs))
        is_binary = np.isin(graded.scores, (0, 1)).all()
        if is_binary and best != pairs.METRIC:
            add(pairs.AUC_METRIC, pairs.pairs_auc, graded)
        else:
            add(pairs.METRIC, pairs.pairs_spearman, graded)
    if evals.retrieval:
        sets = [documents.read_set(files) for files in retrieval_files(evals)]
        tasks[documents.METRICS[sets[0].split]] = partial(documents.mean_ndcg, sets, similarity=similarity)
    if evals.entities:
        files = files_of("evals.entities", split_specs(evals.entities))
        tasks[retrieval.METRIC] = partial(retrieval.mean_recall, [retrieval.read_entities(path) for path in files])
    folder = sts_data_folder()
    if best in pairs.DEV:
        file, rows = pairs.DEV[best]
        data = folder or needed_data_folder(f"evals.best={best}")  # without a folder, this raises
        add(best, pairs.pairs_auc, pairs.binary_pairs(data / file, rows))
    if folder or best == sts.DEV_METRIC:
        with errors_of(f"dev set {sts.DEV_METRIC}"):
            add(sts.DEV_METRIC, pairs.pairs_spearman, sts.read_set("sts-b-dev", folder))  # from the hub if None
    if not tasks and not evals.agreement and not config.teacher.target_sources:
        chosen_metric([], best)  # nothing is measured, so this raises, unless `best` is `LAST`
    return tasks


def agreement_pairs(config: Config) -> Sequence[Sequence[str]]:
    """The text `evals.agreement`, in which sentences 1 and 2, 3 and 4 and so on are pairs, as a list of first and one of second sentences;
    empty if not set. Raises `InputError` for an odd number of sentences, or fewer than four."""
    if not config.evals.agreement:
        return ()
    rows = read(split_specs(config.evals.agreement), cache=config.data.cache_folder)
    sentences = [sentence for (sentence,) in rows if sentence.strip()]
    if len(sentences) % 2 or len(sentences) < 4:
        raise InputError(f"{len(sentences)} sentences do not make pairs of lines; give an even number, at least 4.")
    return sentences[::2], sentences[1::2]


def chosen_metric(measured: Collection[str], best: str = "") -> str:
    """The metric whose highest value chooses the best checkpoint: `best`; or if that is empty or `LAST`, the first `measured` one.
    `LAST` needs no metric, so the result may be empty; in all other cases, raises `InputError` if there is no such metric."""
    if best in measured:
        return best
    if best == LAST or (measured and not best):
        return next(iter(measured), "")
    problem = "no evaluation can choose the best checkpoint"
    if best:
        problem = f"evals.best={best!r} is not measured in this run; measured: {', '.join([*measured, LAST])}"
    raise InputError(
        f"{problem}. Give --config.evals.pairs=FILE (pairs/auc if all scores are 0 or 1), --config.evals.retrieval=FOLDER, "
        "--config.evals.entities=FILE, --config.teacher.model=MODEL, or --config.evals.best=sts-b-dev/spearman (from JAXDISTILL_DATA "
        f"or the hub) or last.{did_you_mean(best, list(measured))}"
    )


def measured_metrics(config: Config, tasks: Mapping[str, Task], compared: int) -> list[str]:
    """All metrics of a run, the preferred one first. `compared` is the number of sentences on which agreement with the teacher will be
    measured. A teacher that scores pairs has no vectors, so no recall; recall of the 10 nearest needs more than 10 other sentences."""
    metrics = [*tasks]
    if compared:
        metrics.append(agreement.METRIC)
    if not config.teacher.scores_pairs:
        metrics += [agreement.RECALL(rank) for rank in agreement.RANKS if rank < compared - 1]
    return metrics


def dev_agreement(
    config: Config, targets: "Targets", file_pairs: Sequence[Sequence[str]], held_out: Integer[np.ndarray, " n"]
) -> agreement.AgreementTask:
    """The evaluation of agreement with the teacher on `file_pairs`, the result of `agreement_pairs`. If that is empty: on the pairs in
    the rows `held_out`, if the teacher scores pairs; else on each sentence there with its nearest neighbour and a random one."""
    if file_pairs:
        assert targets.embed is not None  # `check_models` has found a teacher
        return agreement.agreement_task(targets.embed, *file_pairs)
    stored_targets = targets.at(held_out)  # scores [n, 1], or vectors [n, e]
    if config.teacher.scores_pairs:
        first, first_roles = targets.sentences(targets.objective.scored[0], held_out)
        second, second_roles = targets.sentences(targets.objective.scored[1], held_out)
        roles = [*first_roles, *second_roles]
        return agreement.AgreementTask(
            first=tuple(first), second=tuple(second), teacher_similarities=stored_targets[:, 0], roles=roles
        )
    sentences, roles = targets.sentences(targets.column, held_out)
    vector_of = dict(zip(sentences, stored_targets, strict=True))
    return agreement.held_out_task(vector_of, seed=config.run.seed, roles=dict(zip(sentences, roles, strict=True)))


def retrieval_files(evals: Evals) -> list[SetFiles]:
    """The files of the sets that `evals.retrieval` names."""
    specs = [os.path.expanduser(spec) for spec in split_specs(evals.retrieval)]
    option = "--config.evals.retrieval_split"
    return [documents.set_files(spec, split=evals.retrieval_split or "dev", option=option) for spec in specs]


def held_out_rows(evals: Evals, rows: int) -> int:
    """How many of the text's `rows` to hold out for agreement with the teacher; 0 if another text or another metric is used."""
    has_sts_b = evals.best == sts.DEV_METRIC or sts_data_folder() is not None
    has_other_metric = evals.pairs or evals.retrieval or evals.entities or has_sts_b
    if evals.agreement or (has_other_metric and evals.best not in agreement.METRICS):
        return 0
    return min(2000, rows // 20 * 2)  # at most a tenth, and even


def sts_data_folder() -> pathlib.Path | None:
    """The data folder, checked for STS sets; None without one."""
    if (folder := data_folder()) is not None:
        sts.sts_folder(folder)
    return folder


class Evaluator:
    """Runs all dev evaluations. Checkpoints store its `record` of them: the `best` score, its `best_step` and all `scores` of that
    step; `since_best`, the number of evaluations without a better one; the step last `evaluated`; the scores `before` training."""

    def __init__(self, run: "Run", record: dict[str, Any]):
        self.run = run
        student = run.config.student.evaluated(run.student)
        self.embedder = Embedder(student, mesh=run.mesh, compute_dtype=run.compute_dtype)
        self.record = record
        evals = run.config.evals
        patience_steps = evals.patience_epochs * run.batches.steps_per_epoch
        by_epochs = math.ceil(round(patience_steps / evals.every, 6))  # rounded first: 0.07 * 100 is slightly above 7
        self.patience = min((count for count in (evals.patience, by_epochs) if count), default=0)
        """Number of evaluations without a better score after which the run stops; 0: it never does."""

    def evaluate(self, step: int, params: Params) -> dict[str, float]:
        """Scores the student with parameters `params`; prints and returns the scores. Raises `Diverged` if one is not finite."""
        record = self.record
        exports_last = self.run.config.evals.best == LAST
        try:
            scores = self.run.dev.scores(self.embedder.as_embed(params))
        except InputError as error:  # such as vectors that are not finite
            if step == 0:  # nothing was trained that could diverge
                raise
            raise Diverged(f"at step {step}: {str(error).rstrip('.')}") from error
        for name, score in scores.items():
            if not math.isfinite(score):
                raise Diverged(f"at step {step}: {name} is {score}")  # no later score could beat it
        record["evaluated"] = step
        if step == 0:
            record["before"] = scores
        if step > 0 or self.run.config.evals.untrained:
            note_score(record, step, scores, best=self.run.dev.best, exports_last=exports_last)
        # `best_step` is 0 at first, even if the untrained student does not count.
        is_best = not exports_last and record["best"] is not None and record["best_step"] == step
        shown = ", ".join(f"{name} {100 * value:.2f}" for name, value in scores.items()) or "no dev set"
        say(f"step {step:,}: {shown}{' (best)' if is_best else ''}")
        return scores

    def reason_to_stop(self) -> str:
        """Why the training should stop early; empty: it should not."""
        since_best = self.record["since_best"]
        if not self.patience or since_best < self.patience:
            return ""
        return f"{since_best} evaluations without a better {self.run.dev.best}"


def note_score(record: dict[str, Any], step: int, scores: dict[str, float], *, best: str, exports_last: bool) -> None:
    """Adds a step's scores to an `Evaluator`'s record. The best step has the highest metric `best`, or is the latest if `exports_last`."""
    score = scores.get(best, 0.0)  # the metric may be missing only if `exports_last`
    highest = record["best"]
    is_better = highest is None or score > highest
    record["since_best"] = 0 if is_better else record["since_best"] + 1
    if exports_last or is_better or score == highest:  # at equal scores the later one, trained for longer
        record |= {"best": score, "best_step": step, "scores": scores}
