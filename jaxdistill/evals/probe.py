"""How much do sentence vectors tell a linear classifier: the logistic regressions of SentEval's transfer tasks?

SentEval (Conneau and Kiela, LREC 2018, https://arxiv.org/abs/1803.05449) trains a classifier on frozen vectors for each
fold and each L2 strength, one by one: 410 of them for MR alone. Here all folds of a strength are trained together with
`vmap`, and the strengths one behind the other, each from the solution of the one before, in one compiled program.

The objective is SentEval's: mean cross-entropy of a softmax plus `strength / 2` times the squared weights, its grid of
strengths, its folds (scikit-learn's `StratifiedKFold`, seed 1111). Deliberate differences:

- It is minimised. SentEval stops Adam early (learning rate 1e-3, batches of 64, until 5 checks on held-out rows bring
  nothing), which regularises by itself and underfits vectors of unit length; its scores differ by some tenths.
- The bias is not penalised, as in scikit-learn; SentEval's weight decay includes it.
- The classifier of a chosen strength is trained on all training rows; SentEval keeps 5 % to stop by.

scikit-learn's `LogisticRegression` has the same optimum with `C = 2 / (rows * strength)` for two classes, because one
vector stands there for the difference of two, and `C = 1 / (rows * strength)` for more.
"""

import logging
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxdistill.core import Array, InputError

PROTOCOL = "logistic regression at its optimum, SentEval's folds and L2 strengths"
STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2)
"""SentEval's grid, in its order: of two that are equally good the first is taken."""
FOLDS = 10
SEED = 1111
TOLERANCE = 1e-9
"""Predicted decrease of the mean loss, in nats, at which a classifier is trained."""
MOST_STEPS = 2000

log = logging.getLogger(__name__)


class Accuracy(NamedTuple):
    """What a protocol ends in."""

    accuracy: float
    """Share of right predictions on test rows, in [0, 1]; the mean over test folds where there are several."""
    predicted: Int[np.ndarray, " n"]
    """The class of each test row, in their order."""


def nested_folds(features: Float[np.ndarray, "n d"], labels: Int[np.ndarray, " n"]) -> Accuracy:
    """MR, CR, SUBJ, MPQA: ten folds, and for each the strength that is best in ten folds of the other nine."""
    outer = stratified_folds(labels)
    trains, inner = [], []
    for fold in range(FOLDS):
        rows = np.flatnonzero(outer != fold)
        folds = np.full(len(labels), -1)
        folds[rows] = stratified_folds(labels[rows])
        inner.append(folds)
        trains += [(folds >= 0) & (folds != held_out) for held_out in range(FOLDS)] + [outer != fold]
    found = predictions(features, labels, np.stack(trains), STRENGTHS)
    found = found.reshape(len(STRENGTHS), FOLDS, FOLDS + 1, len(labels))
    predicted, accuracies = np.empty_like(labels), []
    for fold in range(FOLDS):
        chosen = np.argmax(_fold_accuracy(found[:, fold, :FOLDS], labels, inner[fold]))
        test = outer == fold
        predicted[test] = found[chosen, fold, FOLDS, test]
        accuracies.append(np.mean(predicted[test] == labels[test]))
    return Accuracy(accuracy=float(np.mean(accuracies)), predicted=predicted)


def train_folds(
    features: Float[np.ndarray, "n d"], labels: Int[np.ndarray, " n"], test: Bool[np.ndarray, " n"]
) -> Accuracy:
    """TREC, MRPC: the strength that is best in ten folds of the rows that are not `test`, then trained on all of them."""
    folds = np.full(len(labels), -1)
    folds[~test] = stratified_folds(labels[~test])
    trains = np.stack([~test & (folds != held_out) for held_out in range(FOLDS)] + [~test])
    found = predictions(features, labels, trains, STRENGTHS)
    chosen = np.argmax(_fold_accuracy(found[:, :FOLDS], labels, folds))
    return _on_test(found[chosen, FOLDS], labels, test)


def dev_selection(
    features: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, " n"],
    dev: Bool[np.ndarray, " n"],
    test: Bool[np.ndarray, " n"],
) -> Accuracy:
    """SST2, SICK-E: trained on the rows that are neither, with the strength that is best on `dev`."""
    found = predictions(features, labels, ~(dev | test)[None], STRENGTHS)[:, 0]
    chosen = np.argmax(np.mean(found[:, dev] == labels[dev], axis=1))
    return _on_test(found[chosen], labels, test)


def one_strength(
    features: Float[np.ndarray, "n d"], labels: Int[np.ndarray, " n"], test: Bool[np.ndarray, " n"], strength: float
) -> Accuracy:
    """SNLI: no choice to make."""
    return _on_test(predictions(features, labels, ~test[None], (strength,))[0, 0], labels, test)


def predictions(
    features: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, " n"],
    trains: Bool[np.ndarray, "m n"],
    strengths: tuple[float, ...],
) -> Int[np.ndarray, "s m n"]:
    """The class that each of `m` classifiers with each of `s` strengths predicts for each row.

    Args:
      features: float32; rows that are in no training set are only predicted.
      labels: classes, 0 to `c - 1`.
      trains: the training rows of each classifier.
      strengths: of the L2 penalty; > 0.

    Raises:
      InputError: fewer than two classes to train on.
    """
    classes = int(labels.max()) + 1
    if any(len(np.unique(labels[rows])) < 2 for rows in trains):
        raise InputError("a training set has only one class; a classifier needs rows of at least 2.")
    weakest_last = np.argsort(strengths)[::-1]
    found, steps = _train(
        jnp.asarray(features, jnp.float32),
        jnp.asarray(labels, jnp.int32),
        jnp.asarray(trains),
        jnp.asarray(np.asarray(strengths, np.float32)[weakest_last]),
        classes=classes,
    )
    if int(steps.max()) >= MOST_STEPS:
        log.warning("the probe stopped after %d steps, before its optimum", MOST_STEPS)
    result = np.empty(found.shape, np.int64)
    result[weakest_last] = np.asarray(found)
    return result


def stratified_folds(labels: Int[np.ndarray, " n"], *, folds: int = FOLDS, seed: int = SEED) -> Int[np.ndarray, " n"]:
    """The test fold of each row: scikit-learn's `StratifiedKFold(folds, shuffle=True, random_state=seed)`.

    Raises:
      InputError: a class of which no fold would have a row.
    """
    _, first, encoded, counts = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    if counts.max() < folds:
        raise InputError(f"{folds} folds need a class of at least {folds} rows; the largest has {counts.max()}.")
    # Classes are numbered as they appear, which decides where each class's shuffle comes in the random stream.
    encoded = np.argsort(np.argsort(first))[encoded]
    in_order = np.sort(encoded)
    allocation = [np.bincount(in_order[fold::folds], minlength=len(first)) for fold in range(folds)]
    random, fold_of = np.random.RandomState(seed), np.empty(len(labels), np.int64)
    for number in range(len(first)):
        of_class = np.arange(folds).repeat([allocation[fold][number] for fold in range(folds)])
        random.shuffle(of_class)
        fold_of[encoded == number] = of_class
    return fold_of


def _fold_accuracy(found: Int[np.ndarray, "s m n"], labels: np.ndarray, folds: np.ndarray) -> Float[np.ndarray, " s"]:
    """Mean over folds of the accuracy on the fold that a classifier was not trained on."""
    right = [np.mean(found[:, fold, folds == fold] == labels[folds == fold], axis=1) for fold in range(FOLDS)]
    return np.mean(right, axis=0)


def _on_test(found: np.ndarray, labels: np.ndarray, test: np.ndarray) -> Accuracy:
    return Accuracy(accuracy=float(np.mean(found[test] == labels[test])), predicted=found[test])


class _Fit(NamedTuple):
    """A classifier on its way; momentum of Nesterov's method in the last two."""

    weights: Float[Array, "k d"]
    bias: Float[Array, " k"]
    ahead: tuple[Float[Array, "k d"], Float[Array, " k"]]
    """The point at which the next gradient is taken."""
    age: Float[Array, ""]
    """Steps since momentum was last dropped."""
    decrease: Float[Array, ""]


@partial(jax.jit, static_argnames="classes")
@jax.default_matmul_precision("float32")
def _train(
    features: Float[Array, "n d"],
    labels: Int[Array, " n"],
    trains: Bool[Array, "m n"],
    strengths: Float[Array, " s"],
    *,
    classes: int,
) -> tuple[Int[Array, "s m n"], Int[Array, " s"]]:
    """Predictions, and the steps it took.

    Nesterov's method, restarted where it overshoots (O'Donoghue and Candes, 2015), in the principal axes of the training
    rows: there the bound of Boehning (1992) on the Hessian, a quarter (half for 3 classes and more) of the covariance
    plus `strength`, is a diagonal, and steps of its inverse never overshoot. It is the same for all folds, up to their
    number of rows.
    """
    axes, variances = _principal_axes(features, trains.any(axis=0))
    if classes == 2:  # one column: the difference of the two classes' weights, penalised half as much
        targets, strengths, curvature = (labels == 1).astype(jnp.float32)[None], strengths / 2, 0.25
    else:
        targets, curvature = jax.nn.one_hot(labels, classes, axis=0), 0.5
    rows = trains.sum(axis=1).astype(jnp.float32)
    weight_of_row = trains.astype(jnp.float32) / rows[:, None]
    # A fold's covariance is at most this many times that of all rows.
    curvature = curvature * trains.any(axis=0).sum().astype(jnp.float32) / rows.min()

    def step(fit: _Fit, weight_of_row: Float[Array, " n"], strength: Float[Array, ""]) -> _Fit:
        weights, bias = fit.ahead
        # `k n` and `k d`: with the classes last, XLA copies the transposed features in every step on a CPU.
        logits = weights @ axes.T + bias[:, None]
        probabilities = jax.nn.sigmoid(logits) if classes == 2 else jax.nn.softmax(logits, axis=0)
        residual = (probabilities - targets) * weight_of_row[None]
        gradient = residual @ axes + strength * weights
        bias_gradient = residual.sum(axis=1)
        inverse = 1.0 / (curvature * variances + strength)[None]
        new_weights, new_bias = weights - inverse * gradient, bias - bias_gradient / curvature
        moved, bias_moved = new_weights - fit.weights, new_bias - fit.bias
        uphill = jnp.sum(gradient * moved) + jnp.sum(bias_gradient * bias_moved) > 0
        age = jnp.where(uphill, 0.0, fit.age + 1.0)
        momentum = age / (age + 3.0)
        decrease = (jnp.sum(gradient**2 * inverse) + jnp.sum(bias_gradient**2) / curvature) / 2
        ahead = (new_weights + momentum * moved, new_bias + momentum * bias_moved)
        return _Fit(new_weights, new_bias, ahead, age, decrease)

    def at_strength(fits: _Fit, strength: Float[Array, ""]):
        def one_more(carry):
            count, fits = carry
            return count + 1, jax.vmap(step, in_axes=(0, 0, None))(fits, weight_of_row, strength)

        def unfinished(carry):
            count, fits = carry
            return (count < MOST_STEPS) & (fits.decrease.max() > TOLERANCE)

        fresh = fits._replace(
            ahead=(fits.weights, fits.bias),
            age=jnp.zeros_like(fits.age),
            decrease=jnp.full_like(fits.decrease, jnp.inf),
        )
        count, fits = jax.lax.while_loop(unfinished, one_more, (0, fresh))
        logits = jax.vmap(lambda weights, bias: weights @ axes.T + bias[:, None])(fits.weights, fits.bias)
        found = logits[:, 0] > 0 if classes == 2 else jnp.argmax(logits, axis=1)
        return fits, (found.astype(jnp.uint8), count)

    m, d, k = trains.shape[0], features.shape[1], targets.shape[0]
    weights, bias = jnp.zeros((m, k, d)), jnp.zeros((m, k))
    start = _Fit(weights, bias, (weights, bias), jnp.zeros(m), jnp.zeros(m))
    _, found = jax.lax.scan(at_strength, start, strengths)
    return found


def _principal_axes(
    features: Float[Array, "n d"], used: Bool[Array, " n"]
) -> tuple[Float[Array, "n d"], Float[Array, " d"]]:
    """Rows in the principal axes of those that are `used`, centred, and the variances of these along the axes.

    A rotation changes neither the penalty nor the predictions, and a shift only the bias, which is not penalised.
    """
    count = used.sum().astype(features.dtype)
    centred = features - jnp.where(used[:, None], features, 0.0).sum(axis=0, keepdims=True) / count
    of_used = jnp.where(used[:, None], centred, 0.0)
    covariance = of_used.T @ of_used / count
    variances, rotation = jnp.linalg.eigh(covariance)
    # Rounding leaves the axes correlated by about 1e-7 of the largest variance.
    return centred @ rotation, jnp.maximum(variances, 0.0) + 1e-6 * variances[-1]
