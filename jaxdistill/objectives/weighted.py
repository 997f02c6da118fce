"""Several objectives on one forward pass; the loss is their weighted sum.

In a config file, `config.objectives` names them instead of `config.objective`:

    config = defaults(objective="embedding+gram")
    config.objectives.gram.weight = 0.5            # --config.objectives.gram.weight=0.5
    config.objectives.gram.triplet_weight = 0.0

In Python: `distill(objective=Weighted(terms=(Term(Embedding()), Term(Gram(), weight=0.5))))`.

Jasper and Stella sum cosine, similarities and their order (arXiv 2412.19048); others add InfoNCE to cosine distillation. Each
objective keeps its own options, parameters (such as a temperature), state (such as a queue) and metrics. A batch has the views that
any of them reads, each as often as the objective that uses it most.

With `data.objectives`, each source of text names the objectives that train on its batches. The others have no loss there, keep their
states, and report NaN; a view that only they read is cut to one token.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import LABELS, Array, Encoded, InputError, Objective, Params, Positive, Sizes
from jaxdistill.core.plugins import KINDS


@dataclasses.dataclass(frozen=True)
class Term:
    """One of several objectives."""

    objective: Objective
    weight: Positive = 1.0
    """Factor of its loss."""
    name: str = ""
    """Prefix of its parameters and metrics; empty: the objective's kind."""

    def __post_init__(self):
        object.__setattr__(self, "name", self.name or self.kind)

    @property
    def kind(self) -> str:
        """The objective's kind."""
        return KINDS["objective"].name_of(self.objective)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weighted(Objective):
    """The weighted sum of objectives whose targets are all vectors, or all scores of the same pairs."""

    terms: tuple[Term, ...] = ()
    """The objectives, from the entries of `config.objectives`."""

    def __post_init__(self):
        if not self.terms:
            raise InputError("objective.kind='weighted' has no objectives; name them in config.objectives.")
        objectives = [term.objective for term in self.terms]
        names = " and ".join(term.name for term in self.terms)
        if len({LABELS in one.teacher_views for one in objectives if one.teacher_views}) > 1:
            raise InputError(f"objectives {names} do not go together: one learns scores of pairs, the other vectors.")
        if self.reads and len({tuple(one.student_views) for one in objectives}) > 1:
            raise InputError(
                f"objectives {names} read different views, but one of them compares token by token; give all the same views."
            )
        if len({one.similarity for one in objectives if one.similarity}) > 1:
            raise InputError(
                f"objectives {names} do not go together: one compares by cosine, the other by dot product."
            )
        scored = {tuple(one.scored) for one in objectives if LABELS in one.teacher_views}
        if len(scored) > 1:
            raise InputError(f"objectives {names} score different columns; give all the same.")

    @property
    def student_views(self) -> tuple[str, ...]:
        return joined_views(term.objective.student_views for term in self.terms)

    @property
    def teacher_views(self) -> tuple[str, ...]:
        return joined_views(term.objective.teacher_views for term in self.terms)

    @property
    def queue_size(self) -> int:
        return max(term.objective.queue_size for term in self.terms)

    @property
    def reserve_rows(self) -> int:
        return max(term.objective.reserve_rows for term in self.terms)

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for term in self.terms for name in term.objective.reads))

    @property
    def couples_examples(self) -> bool:
        return any(term.objective.couples_examples for term in self.terms)

    @property
    def compares_texts(self) -> bool:
        return any(term.objective.compares_texts for term in self.terms)

    @property
    def any_width(self) -> bool:
        return all(term.objective.any_width or not term.objective.teacher_views for term in self.terms)

    @property
    def scored(self) -> Sequence[str]:
        return next((term.objective.scored for term in self.terms if LABELS in term.objective.teacher_views), ())

    @property
    def logits(self) -> bool:
        return any(term.objective.logits for term in self.terms)

    @property
    def similarity(self) -> str:
        return next((term.objective.similarity for term in self.terms if term.objective.similarity), "")

    @property
    def largest_label(self) -> float:
        return min(term.objective.largest_label for term in self.terms)

    @property
    def variant(self) -> str:
        return " + ".join(f"{term.weight:g} {term.name}" for term in self.terms)

    def init(self, key: jax.Array, sizes: Sizes, seeds: Float[Array, "k e"] | None) -> tuple[Params, Any]:
        """Parameters under each term's name, and a dict of the terms' states."""
        params, states = {}, {}
        for number, term in enumerate(self.terms):
            rows = term.objective.reserve_rows
            term_seeds = seeds[:rows] if rows and seeds is not None else None
            term_params, states[term.name] = term.objective.init(jax.random.fold_in(key, number), sizes, term_seeds)
            params |= {f"{term.name}/{path}": array for path, array in term_params.items()}
        return params, states

    def __call__(
        self, params: Params, state: Any, student: Encoded, teacher: Encoded | None
    ) -> tuple[Float[Array, " b"], Any, Mapping[str, Float[Array, ""]]]:
        """The weighted sum; metrics are the terms' own as `NAME/METRIC`, and their unweighted losses as `loss/NAME`."""
        total, states, metrics = jnp.float32(0.0), {}, {}
        for index, term in enumerate(self.terms):
            prefix = f"{term.name}/"
            term_params = {
                path.removeprefix(prefix): array for path, array in params.items() if path.startswith(prefix)
            }
            losses, term_state, term_metrics = term.objective(
                term_params,
                state[term.name],
                selected(student, self.student_views, term.objective.student_views),
                selected(teacher, self.teacher_views, term.objective.teacher_views),
            )
            is_active = None if student.active is None else student.active[0, index] > 0
            if is_active is not None:
                losses = jnp.where(is_active, losses, 0.0)
                term_state = jax.tree.map(partial(jnp.where, is_active), term_state, state[term.name])
            total, states[term.name] = total + term.weight * losses, term_state
            scalars = {f"loss/{term.name}": jnp.mean(losses)}
            scalars |= {f"{prefix}{name}": value for name, value in term_metrics.items()}
            if is_active is not None:
                scalars = {name: jnp.where(is_active, value, jnp.nan) for name, value in scalars.items()}
            metrics |= scalars
        return total, states, metrics


def joined_views(views: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """All views in order, each as often as one objective reads it: ("text",) and ("text", "text") give ("text", "text")."""
    joined: list[str] = []
    for names in views:
        joined += (Counter(names) - Counter(joined)).elements()
    return tuple(joined)


def selected(encoded: Encoded | None, views: Sequence[str], names: Sequence[str]) -> Any:
    """What an objective reads of a batch: the vectors of its own views, None for an objective without a teacher.

    Args:
      views: the views of the batch, which index the second axis of the vectors.
      names: the objective's; the n-th use of a view takes its n-th occurrence.
    """
    if encoded is None or not names:
        return None
    if tuple(names) == tuple(views):
        return encoded
    indices = view_indices(views, names)

    def chosen(array: Array) -> Array:
        return jnp.stack([array[:, index] for index in indices], axis=1)

    keys = None if encoded.keys is None else chosen(encoded.keys)
    return encoded._replace(sentences=chosen(encoded.sentences), keys=keys)


def view_indices(views: Sequence[str], names: Sequence[str]) -> list[int]:
    """The index in `views` of each name; the n-th use of a view is its n-th occurrence."""
    where = {view: [index for index, other in enumerate(views) if other == view] for view in names}
    return [where[name][names[:position].count(name)] for position, name in enumerate(names)]


class SourceTerms(NamedTuple):
    """What the batches of a source of text train."""

    active: Sequence[float]
    """1 for each of several objectives that it trains, 0 for the others."""
    unread: Sequence[set[int]]
    """The student's and the teacher's views that none of these reads."""


def terms_of_sources(objective: Objective, sources: Sequence[str]) -> list[SourceTerms]:
    """What each source trains: the objectives that it names, such as `embedding+gram`, or all for an empty name."""
    terms = objective.terms if isinstance(objective, Weighted) else ()
    names = [term.name for term in terms]
    chosen = [source.split("+") if source else names for source in sources]
    every = {name for source in chosen for name in source}
    if sources and every != {*names}:
        raise InputError(
            f"data.objectives names {', '.join(sorted(every))}, but config.objectives has {', '.join(names) or 'none'}; each of these "
            "must have a source, and each source one of these, or an empty name for all."
        )
    made = []
    for source in chosen:
        trained = [term.objective for term in terms if term.name in source] or [objective]
        student_views = [view_indices(objective.student_views, one.student_views) for one in trained]
        teacher_views = [view_indices(objective.teacher_views, one.teacher_views) for one in trained]
        unread = [
            {*range(len(objective.student_views))}.difference(*student_views),
            {*range(len(objective.teacher_views))}.difference(*teacher_views),
        ]
        made.append(SourceTerms([float(name in source) for name in names], unread))
    return made
