"""Scores SentEval's transfer tasks and entailment by logistic regressions on sentence vectors.

The protocol is SentEval's (Conneau and Kiela, LREC 2018, https://arxiv.org/abs/1803.05449; ConGen's Tables 10 and 11): a classifier
on frozen vectors, which are not normalised, because their length affects the penalty.

NOTE: SNLI's training set is not in the data folder: `nli/train` (83,238 pairs, a quarter of them from SNLI, most others written for
premises of MultiNLI) replaces its 549,367 pairs. So scores are not comparable with published ones, and the score's name says so.

Objective, strengths and folds are SentEval's: mean cross-entropy of a softmax plus `strength / 2` times the squared weights, and
scikit-learn's `StratifiedKFold` with the seed 1111. Deliberate differences:

- The objective is minimised to its optimum. SentEval stops Adam early (learning rate 1e-3, batches of 64, until 5 checks on
  held-out rows show no gain), which also regularises and underfits vectors of unit length; scores differ by a few tenths.
- The bias is not penalised, as in scikit-learn; SentEval's weight decay includes it.
- The classifier of a chosen strength is trained on all training rows; SentEval holds out 5 % for early stopping.

scikit-learn's `LogisticRegression` has the same optimum with `C = 2 / (rows * strength)` for two classes, and half of it for more.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer

from jaxdistill.core import Array, InputError
from jaxdistill.evals.evaluation import Evaluation, Model, Sources, TestSet, average_of, labelled, refuse_same_vectors
from jaxdistill.models.vectors import finite_vectors

PROTOCOL = "logistic regression at its optimum, SentEval's folds and L2 strengths"
STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2)
"""SentEval's grid, in its order: among equally good strengths, the first is chosen."""
FOLDS = 10
SEED = 1111
TOLERANCE = 1e-9
"""Training stops when the predicted decrease of the mean loss, in nats, is below this."""
MAX_STEPS = 2000

log = logging.getLogger(__name__)

Accuracy = tuple[float, Integer[np.ndarray, " n"]]
"""Share of right predictions on test rows, in [0, 1], or its mean over test folds; and the predicted class of each test row."""


def nested_folds(features: Float[np.ndarray, "n d"], labels: Integer[np.ndarray, " n"]) -> Accuracy:
    """Protocol of MR, CR, SUBJ, MPQA: ten folds, each with the strength that is best in ten folds of the other nine."""
    outer_fold = stratified_folds(labels)
    inner = [_inner_folds(labels, outer_fold != fold) for fold in range(FOLDS)]
    trains = np.concatenate([inner_trains for _, inner_trains in inner])
    # All classifiers are trained together: [strengths, outer folds, classifiers, rows].
    classified = predictions(features, labels, trains, STRENGTHS).reshape(len(STRENGTHS), FOLDS, -1, len(labels))
    predicted = np.empty_like(labels)
    accuracies = []
    for fold, (inner_fold, _) in enumerate(inner):
        test = outer_fold == fold
        accuracy, predicted[test] = _tested(classified[:, fold], labels, inner_fold, test)
        accuracies.append(accuracy)
    return float(np.mean(accuracies)), predicted


def train_folds(
    features: Float[np.ndarray, "n d"], labels: Integer[np.ndarray, " n"], test: Bool[np.ndarray, " n"]
) -> Accuracy:
    """Protocol of TREC, MRPC: chooses the strength that is best in ten folds of the training rows, then trains on all of them."""
    folds, trains = _inner_folds(labels, ~test)
    return _tested(predictions(features, labels, trains, STRENGTHS), labels, folds, test)


def _inner_folds(labels: np.ndarray, is_train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The fold of each training row, -1 for other rows; and a mask `[classifiers, rows]`: one classifier for each fold trains on the
    other folds, and a last one on all training rows."""
    folds = np.full(len(labels), -1)
    folds[is_train] = stratified_folds(labels[is_train])
    return folds, np.stack([is_train & (folds != held_out) for held_out in range(FOLDS)] + [is_train])


def _tested(predicted: np.ndarray, labels: np.ndarray, folds: np.ndarray, test: np.ndarray) -> Accuracy:
    """The result, on the `test` rows, of the classifier that is trained on all folds. Its strength is the one with which the other ten
    are best on the folds that they were not trained on. `predicted`: `[strengths, classifiers, rows]`, ordered as in `_inner_folds`."""
    accuracies = [np.mean(predicted[:, fold, folds == fold] == labels[folds == fold], axis=1) for fold in range(FOLDS)]
    chosen = np.argmax(np.mean(accuracies, axis=0))
    on_test = predicted[chosen, FOLDS, test]
    return float(np.mean(on_test == labels[test])), on_test


def dev_selection(
    features: Float[np.ndarray, "n d"],
    labels: Integer[np.ndarray, " n"],
    dev: Bool[np.ndarray, " n"],
    test: Bool[np.ndarray, " n"],
    *,
    strengths: tuple[float, ...] = STRENGTHS,
) -> Accuracy:
    """Protocol of SST2, SICK-E: trains on the rows in neither `dev` nor `test`, with the strength that is best on `dev`."""
    predicted = predictions(features, labels, ~(dev | test)[None], strengths)[:, 0]  # [strengths, rows]
    chosen = np.argmax(np.mean(predicted[:, dev] == labels[dev], axis=1))
    on_test = predicted[chosen, test]
    return float(np.mean(on_test == labels[test])), on_test


def predictions(
    features: Float[np.ndarray, "n d"],
    labels: Integer[np.ndarray, " n"],
    trains: Bool[np.ndarray, "folds n"],
    strengths: tuple[float, ...],
) -> Integer[np.ndarray, "strengths folds n"]:
    """The class that each classifier predicts for each row: one classifier for each L2 penalty in `strengths` (ascending, above 0) and
    each mask of training rows in `trains`. `labels` are numbered from 0."""
    arrays = jnp.asarray(features, jnp.float32), jnp.asarray(labels, jnp.int32), jnp.asarray(trains)
    descending = jnp.asarray(strengths[::-1], jnp.float32)  # weaker ones then start nearer to their optimum
    predicted, steps = _train(*arrays, descending, classes=int(labels.max()) + 1)
    if int(steps.max()) >= MAX_STEPS:
        log.warning("the probe stopped after %d steps, before it converged", MAX_STEPS)
    return np.asarray(predicted)[::-1].astype(np.int64)


def stratified_folds(labels: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
    """The test fold of each row: scikit-learn's `StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)`."""
    _, first, encoded = np.unique(labels, return_index=True, return_inverse=True)
    # scikit-learn numbers classes in order of appearance, which decides the order of their shuffles in the random stream.
    encoded = np.argsort(np.argsort(first))[encoded]
    # Rows sorted by class are dealt to the folds in turn, which decides how many of a class each fold gets.
    in_order = np.sort(encoded)
    sizes = np.stack([np.bincount(in_order[fold::FOLDS], minlength=len(first)) for fold in range(FOLDS)])
    random = np.random.RandomState(SEED)
    fold_of = np.empty(len(labels), np.int64)
    for number in range(len(first)):
        folds_of_class = np.arange(FOLDS).repeat(sizes[:, number])
        random.shuffle(folds_of_class)
        fold_of[encoded == number] = folds_of_class
    return fold_of


class _Fit(NamedTuple):
    """A classifier during training by Nesterov's method."""

    weights: Float[Array, "classes d"]
    bias: Float[Array, " classes"]
    lookahead: tuple[Float[Array, "classes d"], Float[Array, " classes"]]
    """The weights and the bias at which the next gradient is taken."""
    steps: Float[Array, ""]
    """Since the last restart, which sets the momentum to zero."""
    decrease: Float[Array, ""]
    """Predicted decrease of the mean loss in the last step, in nats."""


@partial(jax.jit, static_argnames="classes")
@jax.default_matmul_precision("float32")
def _train(
    features: Float[Array, "n d"],
    labels: Integer[Array, " n"],
    trains: Bool[Array, "folds n"],
    strengths: Float[Array, " strengths"],
    *,
    classes: int,
) -> tuple[Integer[Array, "strengths folds n"], Integer[Array, " strengths"]]:
    """The class that each fold's classifier predicts for each row, and the number of training steps; for each strength.

    Nesterov's method, restarted when it overshoots (O'Donoghue and Candes, 2015), in the principal axes of the training rows. There
    Boehning's bound (1992) on the Hessian, a quarter (half for 3 classes and more) of the covariance plus `strength`, is diagonal, so
    its inverse is a safe step size for each axis. `strengths` follow one another, the largest first.
    """
    is_training = jnp.any(trains, axis=0)
    count = is_training.sum().astype(features.dtype)
    # The features in their principal axes. A rotation changes neither penalty nor predictions, a shift only the bias (no penalty).
    centred = features - jnp.where(is_training[:, None], features, 0.0).sum(axis=0, keepdims=True) / count
    training_rows = jnp.where(is_training[:, None], centred, 0.0)
    variances, rotation = jnp.linalg.eigh(training_rows.T @ training_rows / count)
    rotated = centred @ rotation
    # The bound needs slightly too large variances: rounding leaves the axes correlated by about 1e-7 of the largest one.
    variances = jnp.maximum(variances, 0.0) + 1e-6 * variances[-1]
    targets = jax.nn.one_hot(labels, classes, axis=0)
    curvature = 0.5
    if classes == 2:  # one row of weights, the difference of the two classes', penalised half as much
        targets = targets[1:]
        strengths = strengths / 2
        curvature = 0.25
    counts = trains.sum(axis=1).astype(jnp.float32)
    weight_of_row = trains.astype(jnp.float32) / counts[:, None]  # in its fold's mean loss
    # A fold's covariance is at most `count / counts.min()` times the covariance of all training rows.
    curvature = curvature * count / counts.min()

    def logits_of(weights: Float[Array, "classes d"], bias: Float[Array, " classes"]) -> Float[Array, "classes n"]:
        # Classes first: with them last, XLA copies the transposed features in every step on a CPU.
        return weights @ rotated.T + bias[:, None]

    def step(fit: _Fit, weight_of_row: Float[Array, " n"], strength: Float[Array, ""]) -> _Fit:
        """One step for one classifier."""
        weights, bias = fit.lookahead
        logits = logits_of(weights, bias)
        probabilities = jax.nn.sigmoid(logits) if len(targets) == 1 else jax.nn.softmax(logits, axis=0)
        residual = (probabilities - targets) * weight_of_row[None]
        gradient = residual @ rotated + strength * weights
        bias_gradient = residual.sum(axis=1)
        step_sizes = 1.0 / (curvature * variances + strength)[None]
        new_weights, new_bias = weights - step_sizes * gradient, bias - bias_gradient / curvature
        moved, bias_moved = new_weights - fit.weights, new_bias - fit.bias
        is_uphill = jnp.sum(gradient * moved) + jnp.sum(bias_gradient * bias_moved) > 0  # restarts
        steps = jnp.where(is_uphill, 0.0, fit.steps + 1.0)
        momentum = steps / (steps + 3.0)
        decrease = (jnp.sum(gradient**2 * step_sizes) + jnp.sum(bias_gradient**2) / curvature) / 2
        lookahead = (new_weights + momentum * moved, new_bias + momentum * bias_moved)
        return _Fit(new_weights, new_bias, lookahead, steps, decrease=decrease)

    def at_strength(start: tuple[Array, Array], strength: Float[Array, ""]):
        """Trains the classifiers of all folds with one strength, from the weights of the strength before; a step of the scan."""

        def is_unfinished(carry: tuple[Array, _Fit]) -> Array:
            step_count, fits = carry
            return (step_count < MAX_STEPS) & (fits.decrease.max() > TOLERANCE)

        def advanced(carry: tuple[Array, _Fit]) -> tuple[Array, _Fit]:
            step_count, fits = carry
            return step_count + 1, jax.vmap(step, in_axes=(0, 0, None))(fits, weight_of_row, strength)

        decrease = jnp.full(len(trains), jnp.inf)  # lets the loop begin
        fits = _Fit(*start, lookahead=start, steps=jnp.zeros(len(trains)), decrease=decrease)
        step_count, fits = jax.lax.while_loop(is_unfinished, advanced, (jnp.int32(0), fits))
        logits = jax.vmap(logits_of)(fits.weights, fits.bias)
        label = logits[:, 0] > 0 if classes == 2 else jnp.argmax(logits, axis=1)
        return (fits.weights, fits.bias), (label.astype(jnp.uint8), step_count)

    shape = len(trains), len(targets), features.shape[1]
    return jax.lax.scan(at_strength, (jnp.zeros(shape), jnp.zeros(shape[:2])), strengths)[1]  # `[0]`: the last weights


def pair_features(first: Float[np.ndarray, "n e"], second: Float[np.ndarray, "n e"]) -> Float[np.ndarray, "n d"]:
    """Features `[|u - v|, u * v]` of pairs of vectors; `d = 2 e`."""
    return np.concatenate([np.abs(first - second), first * second], axis=1)


@dataclass(frozen=True)
class ProbedSet:
    """A set on which a linear probe is trained and tested."""

    splits: tuple[str, ...]
    """Names of its files, without their suffixes; the last one is the test."""
    score: Callable[..., Accuracy]
    """Trains and tests a probe; its arguments are features and labels of all splits, and a mask of rows for each split but the first."""
    protocol: str
    metrics: tuple[str, ...]
    """Names of its scores: of the accuracy and, if it is reported, of the F1 of class 1."""
    columns: tuple[str, ...] = ("sentence",)
    classes: tuple[str, ...] = ("0", "1")
    features: Callable[..., Float[np.ndarray, "n d"]] = lambda vectors: vectors
    """Makes features from the vectors of each column."""


SICK_E, SNLI = "nli/sick-e", "nli/snli (other training set)"
PREMISES = {"columns": ("premise", "hypothesis"), "classes": ("entailment", "neutral", "contradiction")}
BY_FOLDS = "L2 chosen in ten folds of train"
NESTED = "ten folds, L2 chosen in ten folds of the other nine"
SETS: Mapping[str, ProbedSet] = {
    **{name: ProbedSet((f"{name}.all",), nested_folds, NESTED, (f"transfer/{name}",)) for name in ("mr", "cr", "subj", "mpqa")},
    "sst2": ProbedSet(("sst2.train", "sst2.dev", "sst2.test"), dev_selection, "test accuracy, L2 chosen on dev", ("transfer/sst2",)),
    "trec": ProbedSet(
        ("trec.train", "trec.test"), train_folds, f"test accuracy, {BY_FOLDS}", ("transfer/trec",),
        classes=("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
    ),
    "mrpc": ProbedSet(
        ("mrpc.train", "mrpc.test"), train_folds, f"test accuracy and F1 of [|u - v|, u * v], {BY_FOLDS}",
        ("transfer/mrpc", "transfer/mrpc f1"), columns=("sentence1", "sentence2"), features=pair_features,
    ),
}  # fmt: skip
ENTAILMENT_SETS: Mapping[str, ProbedSet] = {
    "sick-e": ProbedSet(
        ("sick.train", "sick.trial", "sick.test"), dev_selection, "test accuracy of [|u - v|, u * v], L2 chosen on trial",
        (SICK_E,), features=pair_features, **PREMISES,
    ),
    "snli": ProbedSet(
        ("train", "snli.test"), lambda features, labels, test: dev_selection(features, labels, test, test, strengths=(1e-9,)),  # nothing to choose
        "test accuracy of [u, v, u * v, |u - v|]; trained on nli/train in place of SNLI's training set", (SNLI,),
        features=lambda first, second: np.concatenate([first, second, pair_features(first, second)], axis=1), **PREMISES,
    ),
}  # fmt: skip


def _sets(sources: Sources, group: str, probed: Mapping[str, ProbedSet]) -> Iterator[TestSet]:
    """The sets in `probed`, called `GROUP/NAME`; their files are in the subfolder `group` of the data folder."""
    folder = sources.subfolder(group)
    for name, probed_set in probed.items():
        files = tuple(folder / f"{split}.tsv.gz" for split in probed_set.splits)
        protocol = f"{PROTOCOL}; {probed_set.protocol}"
        yield TestSet(name=f"{group}/{name}", protocol=protocol, files=files, content=probed_set)


def _run(model: Model, test_set: TestSet) -> Mapping[str, float]:
    """The accuracy, and the F1 if it is among the metrics, of a probe on the vectors of all distinct sentences."""
    probed: ProbedSet = test_set.content
    splits = [labelled(path, probed.columns, probed.classes) for path in test_set.files]
    for path, (labels, rows) in zip(test_set.files, splits, strict=True):
        if len(np.unique(labels)) < 2:
            raise InputError(f"{path}: all {len(rows)} rows have one label; a classifier needs rows of at least 2.")
    all_rows = [row for _, rows in splits for row in rows]
    split_of = np.repeat(np.arange(len(splits)), [len(rows) for _, rows in splits])
    sentences = list(dict.fromkeys(sentence for row in all_rows for sentence in row))
    vectors = finite_vectors(model.embed, sentences)
    refuse_same_vectors(vectors, sentences, "sentences")
    index_of = {sentence: index for index, sentence in enumerate(sentences)}
    indices = [[index_of[sentence] for sentence in column] for column in zip(*all_rows, strict=True)]
    features = probed.features(*(vectors[of_column] for of_column in indices))
    masks = [split_of == split for split in range(1, len(splits))]  # of dev and test rows, or of test rows alone
    accuracy, predicted = probed.score(features, np.concatenate([labels for labels, _ in splits]), *masks)
    is_positive = splits[-1][0] == 1  # by the labels of the test
    predicted_positive = predicted == 1
    f1 = float(2 * np.sum(is_positive & predicted_positive) / max(is_positive.sum() + predicted_positive.sum(), 1))
    return dict(zip(probed.metrics, (accuracy, f1), strict=False))  # most sets report the accuracy alone


EVALUATION = Evaluation(
    task="transfer",
    scores=("transfer",),
    sets=lambda sources: _sets(sources, "transfer", SETS),
    run=_run,
    averages=average_of("transfer/average", [f"transfer/{name}" for name in SETS]),
    headings={"transfer/average": "transfer"},
)
ENTAILMENT = Evaluation(
    task="nli",
    scores=("nli",),
    sets=lambda sources: _sets(sources, "nli", ENTAILMENT_SETS),
    run=_run,
    headings={SICK_E: "SICK-E", SNLI: "SNLI, own training set"},
)
