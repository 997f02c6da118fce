"""Every objective with options, and random inputs for its losses."""

import dataclasses

import jax
import numpy as np

from jaxdistill.core import Encoded, Objective, Sizes
from jaxdistill.core.ops.nested import Nested
from jaxdistill.objectives.ckd import CKD
from jaxdistill.objectives.congen import ConGen
from jaxdistill.objectives.contrastive import Contrastive
from jaxdistill.objectives.cosent import CoSENT
from jaxdistill.objectives.embedding import Embedding
from jaxdistill.objectives.gist import GIST
from jaxdistill.objectives.gram import Gram
from jaxdistill.objectives.listwise import Listwise
from jaxdistill.objectives.simcse import SimCSE
from jaxdistill.objectives.simtde import SimTDE
from jaxdistill.objectives.trans_encoder import TransEncoder
from jaxdistill.objectives.weighted import Term, Weighted

CASES = {
    "congen": ConGen(queue_size=20),
    "contrastive": Contrastive(
        temperature=0.1, learned_scale="log", directions=("query_to_doc", "doc_to_query", "query_to_query", "doc_to_doc"),
        views=("text", "positive", "negative", "other"),
    ),
    "cosent": CoSENT(temperature=0.1),
    "embedding": Embedding(distance="squared", normalize=True, second_view="delete_words", third="views"),
    "ckd": CKD(temperature=0.1, learned_scale="log", queue_size=20),
    "gist": GIST(temperature=0.1, margin=0.05, views=("text", "positive", "negative")),
    "gram": Gram(
        cosine_weight=1.0, pair_weight=2.0, triplet_weight=3.0, triplet_margin=0.1, kl_weight=4.0, kl_temperature=0.5,
        spread_weight=0.5, views=("text", "second"),
    ),
    "listwise": Listwise(student_temperature=0.1, teacher_temperature=0.5),
    "simcse": SimCSE(
        temperature=0.1, learned_scale="log", views=("text", "positive", "negative"), negative_weight=2.0
    ),
    "simtde": SimTDE(alpha=0.4, hidden_weight=0.3, hidden_map="even"),
    "trans_encoder": TransEncoder(),
}  # fmt: skip
NESTED = {
    "nested congen": Nested(objective=CASES["congen"], dims=(8, 16), targets="truncated"),
    "nested ckd": Nested(objective=CASES["ckd"], dims=(8, 16), targets="projected"),
}
SEVERAL = {
    "several": Weighted(
        terms=(
            Term(CASES["congen"], 0.5),
            Term(Embedding(distance="cosine")),
            Term(SimCSE(temperature=0.1, learned_scale="log"), 0.1),
        )
    ),
}
EVERY = CASES | NESTED | SEVERAL
TEACHER_LAYERS = 2


def case(name: str, **changed) -> Objective:
    """An objective of `CASES` with other options."""
    return dataclasses.replace(CASES[name], **changed)


def encoded(random, objective, *, width: int = 8) -> tuple[Encoded, Encoded | None]:
    """Random vectors, token states and tables for both."""
    owner = np.where(random.random((2, 3, 5)) < 0.8, 0, -1).astype(np.int32)

    def side(views: int, layers: int) -> Encoded:
        def normal(*shape):
            return random.standard_normal(shape).astype(np.float32)

        return Encoded(
            normal(8, views, width), owner, normal(2, 3, 5, width), normal(layers, 2, 3, 5, width), normal(11, width)
        )

    student = side(len(objective.student_views), 1)
    if objective.compares_texts:
        student = student._replace(keys=random_keys(random, 8, len(objective.student_views)))
    return student, side(len(objective.teacher_views), TEACHER_LAYERS) if objective.teacher_views else None


def random_keys(random, examples: int, views: int) -> np.ndarray:
    """Keys of texts, some of which are equal."""
    return np.stack([random.integers(0, 4 * examples, (examples, views)).astype(np.uint32)] * 2, axis=-1)


def start(objective, *, width: int = 8, seeds=None):
    sizes = Sizes(
        batch_size=8, width=width, hidden=width, layers=1, teacher_hidden=width, teacher_layers=TEACHER_LAYERS
    )
    if objective.reserve_rows and seeds is None:
        seeds = np.random.default_rng(5).standard_normal((objective.reserve_rows, width)).astype(np.float32)
    return objective.init(jax.random.key(0), sizes, seeds)
