"""Several objectives on one forward pass; the loss is their weighted sum.

In a config file, `config.objectives` has an entry for each, instead of `config.objective`. In Python:
`distill(objective=Weighted(terms=(Term(Embedding()), Term(Gram(), weight=0.5))))`.

Each objective keeps its own options, parameters (such as a temperature), state (such as a queue) and metrics. A batch has the views
that any of them reads, each as often as the objective that uses it most.

With `data.objectives`, each source of text names the objectives that train on its batches. The others have no loss there, keep their
states, and report NaN; a view that only they read is cut to one token.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import LABELS, Array, Encoded, InputError, LossAux, Objective, Params, Positive, Sizes
from jaxdistill.core.plugins import KINDS


@dataclasses.dataclass(frozen=True)
class Term:
    """An objective of a weighted sum."""

    objective: Objective
    weight: Positive = 1.0
    """Factor of its loss."""
    name: str = ""
    """Prefix of its parameters and metrics; empty: the objective's kind."""

    def __post_init__(self):
        object.__setattr__(self, "name", self.name or self.kind)

    @property
    def kind(self) -> str:
        return KINDS["objective"].name_of(self.objective)


def joined_names(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """All names in order, each as often as in the list that has it most: ("a",) and ("a", "a") give ("a", "a")."""
    joined: list[str] = []
    for names in lists:
        joined += (Counter(names) - Counter(joined)).elements()  # the names that are missing
    return tuple(joined)


def combined(name: str, combine: Callable[[Iterable[Any]], Any]) -> Any:
    """A property of `Weighted` that applies `combine` to the values of the attribute `name` of its objectives."""
    return property(lambda self: combine(getattr(term.objective, name) for term in self.terms))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weighted(Objective):
    """The weighted sum of objectives whose targets are all vectors, or all scores of the same pairs."""

    terms: tuple[Term, ...] = ()
    """The objectives, from the entries of `config.objectives`."""

    def __post_init__(self):
        if not self.terms:
            raise InputError("objective.kind='weighted' has no objectives; name them in config.objectives.")
        objectives = [term.objective for term in self.terms]
        taught = [objective for objective in objectives if objective.teacher_views]
        labelled = [objective for objective in taught if LABELS in objective.teacher_views]
        # Hidden states are not split by view: if one objective reads them, all must read the same views.
        reading_same_views = objectives if self.reads else []
        similarities = {objective.similarity for objective in objectives} - {""}
        # Each set must have at most one value.
        values_by_conflict: dict[str, set[Any]] = {
            "one learns scores of pairs, the other vectors": {objective in labelled for objective in taught},
            "one compares by cosine, the other by dot product": similarities,
            "they score different columns": {tuple(objective.scored) for objective in labelled},
            "they read different views": {tuple(objective.student_views) for objective in reading_same_views},
        }
        for conflict, values in values_by_conflict.items():
            if len(values) > 1:
                names = " and ".join(term.name for term in self.terms)
                raise InputError(f"objectives {names} do not go together: {conflict}.")

    student_views = combined("student_views", joined_names)
    teacher_views = combined("teacher_views", joined_names)
    queue_size = combined("queue_size", max)
    reserve_rows = combined("reserve_rows", max)
    reads = combined("reads", joined_names)
    couples_examples = combined("couples_examples", any)
    compares_texts = combined("compares_texts", any)
    logits = combined("logits", any)
    largest_label = combined("largest_label", min)
    similarity = combined("similarity", lambda similarities: next(filter(None, similarities), ""))  # at most one is set

    @property
    def any_width(self) -> bool:
        return all(term.objective.any_width or not term.objective.teacher_views for term in self.terms)

    @property
    def scored(self) -> Sequence[str]:
        return next((term.objective.scored for term in self.terms if LABELS in term.objective.teacher_views), ())

    @property
    def variant(self) -> str:
        return " + ".join(f"{term.weight:g} {term.name}" for term in self.terms)

    def init(self, key: jax.Array, sizes: Sizes, seeds: Float[Array, "k e"] | None) -> tuple[Params, Any]:
        """Parameters, with each term's name before their paths, and a dict of the terms' states by name."""
        params, states = {}, {}
        for index, term in enumerate(self.terms):
            rows = term.objective.reserve_rows
            term_seeds = seeds[:rows] if rows and seeds is not None else None
            term_params, states[term.name] = term.objective.init(jax.random.fold_in(key, index), sizes, term_seeds)
            params |= {f"{term.name}/{path}": array for path, array in term_params.items()}
        return params, states

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: Encoded | None) -> LossAux:
        """The weighted sum of the losses; metrics are each term's, as `NAME/METRIC`, and its unweighted loss, as `loss/NAME`."""
        total = jnp.float32(0.0)
        states, metrics = {}, {}
        for index, term in enumerate(self.terms):
            prefix = f"{term.name}/"
            term_params = {path.removeprefix(prefix): params[path] for path in params if path.startswith(prefix)}
            term_student = selected(student, self.student_views, term.objective.student_views)
            term_teacher = selected(teacher, self.teacher_views, term.objective.teacher_views)
            losses, term_state, term_metrics = term.objective(term_params, state[term.name], term_student, term_teacher)
            scalars = {f"loss/{term.name}": jnp.mean(losses)}
            scalars |= {f"{prefix}{name}": value for name, value in term_metrics.items()}
            if student.active is not None:
                # A term that the batch's source does not train has no loss, keeps its state and reports NaN.
                is_active = student.active[0, index] > 0  # rows are equal
                losses = jnp.where(is_active, losses, 0.0)
                term_state = jax.tree.map(partial(jnp.where, is_active), term_state, state[term.name])
                scalars = {name: jnp.where(is_active, value, jnp.nan) for name, value in scalars.items()}
            total = total + term.weight * losses
            states[term.name] = term_state
            metrics |= scalars
        return total, states, metrics


def selected(encoded: Encoded | None, batch_views: Sequence[str], views: Sequence[str]) -> Any:
    """Selects an objective's `views` from `encoded`, which has `batch_views`; None if there are no views or no vectors."""
    if encoded is None or not views:
        return None
    if tuple(views) == tuple(batch_views):
        return encoded
    indices = view_indices(batch_views, views)
    arrays = (encoded.sentences, encoded.keys)
    sentences, keys = jax.tree.map(lambda array: jnp.stack([array[:, index] for index in indices], axis=1), arrays)
    return encoded._replace(sentences=sentences, keys=keys)


def view_indices(batch_views: Sequence[str], views: Sequence[str]) -> list[int]:
    """The index in `batch_views` of each of `views`; a name's n-th use takes its n-th occurrence."""
    unused: list[str | None] = list(batch_views)
    indices = []
    for view in views:
        index = unused.index(view)
        unused[index] = None
        indices.append(index)
    return indices


class SourceTerms(NamedTuple):
    """The terms that batches of one source of text train, and the views that these terms do not read."""

    active: Sequence[float]
    """For each term of a `Weighted` objective, 1 if these batches train it, else 0; empty for another objective."""
    unread: Sequence[set[int]]
    """Two sets: indices of the student's views, and of the teacher's, that no trained term reads."""


def terms_of_sources(objective: Objective, entries: Sequence[str]) -> list[SourceTerms]:
    """The terms that each source of text trains, by its entry in `entries` (`data.objectives`), such as `embedding+gram`.
    An empty entry stands for all terms; without entries, the list is empty. Raises `InputError` if a name or a term has no match."""
    terms = objective.terms if isinstance(objective, Weighted) else ()
    names = [term.name for term in terms]
    names_by_source = [entry.split("+") if entry else names for entry in entries]
    named = {name for source_names in names_by_source for name in source_names}
    if entries and named != {*names}:
        raise InputError(
            f"data.objectives names {', '.join(sorted(named))}, but config.objectives has {', '.join(names) or 'none'}; each of these "
            "must have a source, and each source one of these, or an empty name for all."
        )
    result = []
    for source_names in names_by_source:
        # An objective that is not `Weighted` is its own only term.
        trained = [term.objective for term in terms if term.name in source_names] or [objective]
        active = [float(name in source_names) for name in names]
        unread = []
        for attribute in ("student_views", "teacher_views"):
            views = getattr(objective, attribute)
            read = [view_indices(views, getattr(term, attribute)) for term in trained]
            unread.append({*range(len(views))}.difference(*read))
        result.append(SourceTerms(active, unread))
    return result
