"""Margin and listwise distillation: the student scores the candidates of a query as a teacher scored them.

    python -m jaxdistill.main --config=configs/listwise.py:PRESET --workdir=runs/NAME --config.data.text=FILE.tsv

minilm-l3   3 layers of all-MiniLM-L6-v2 on a file with the columns text, positive, negative, whose candidates
            all-MiniLM-L6-v2 scores once. Other teachers: --config.teacher.model=MODEL, also several sentence encoders
            or several cross-encoders, separated by commas. The loss is the divergence of the two distributions over
            the candidates (Lin et al., 2020, arXiv 2010.11386; RocketQAv2; ColBERTv2)
margin      MarginMSE (Hofstätter et al., 2020, arXiv 2010.02666): dot products, and scores from the file's columns
            score_positive and score_negative
mined       a trained student (--config.student.model=FOLDER) on the rows of `mine --num_negatives=2
            --output_format=n-tuple`: 60 small steps with the miner's scores. docs/results.md has what they gain
quickstart  the default: on text that comes with the project, offline, in a minute or two
tiny        a one-minute smoke test from text to export; says nothing about quality

For more candidates, add columns and views; a query may have several rows:
--config.data.columns='(("text","text"),("positive","positive"),("a","negative_1"),("b","negative_2"))'
--config.objective.views='("text","positive","a","b")'. docs/results.md has a run on gte-small.
"""

from collections.abc import Callable
from functools import partial

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import TEACHER, chosen, quickstart, set_kind, tiny
from jaxdistill.config.shipped.simcse import VIEWS_OF_TRIPLETS, on_pairs


def listwise(**changed) -> ConfigDict:
    defaults = dict(
        loss="kl",
        similarity="cosine",
        student_temperature=0.05,
        teacher_temperature=0.05,
        views=VIEWS_OF_TRIPLETS,
    )
    config = on_pairs(**dict(kind="listwise") | defaults | changed)
    set_kind(config, "teacher", "labels")
    config.student.model = TEACHER
    config.optimizer.eps = 1e-12  # the loss has a factor of temperature^2, and so have its gradients
    return config


def margin() -> ConfigDict:
    config = listwise(loss="margin", similarity="dot")
    set_kind(config, "teacher", "columns", names="score_positive,score_negative")
    config.optimizer.eps = 1e-8
    config.optimizer.learning_rate = 7e-6  # of the authors' code, github.com/sebastian-hofstaetter/matchmaker
    return config


def mined() -> ConfigDict:
    """Larger rates and temperatures than these take from the student more than they bring."""
    config = listwise(student_temperature=0.02, teacher_temperature=0.02, views=("text", "positive", "a", "b"))
    config.data.columns = (("text", "text"), ("positive", "positive"), ("a", "negative_1"), ("b", "negative_2"))
    config.data.batch_size, config.data.pack_groups, config.data.max_length = 32, 4, 160
    set_kind(config, "teacher", "columns", names="score_positive,score_negative_1,score_negative_2")
    config.student.max_length = 256  # of the measured evaluations
    config.student.layers = ""
    config.student.dropout = 0.0
    config.optimizer.learning_rate = 5e-6
    config.run.steps = config.evals.every = 60
    config.evals.untrained = False
    return config


def small(size: Callable[[ConfigDict], ConfigDict]) -> ConfigDict:
    """On the embedded graded pairs; the second candidate is the query itself."""
    config = size(listwise())
    config.data.text = config.evals.pairs
    config.evals.agreement, config.evals.best = "", "pairs/spearman"
    config.data.columns = (("text", "sentence1"), ("positive", "sentence2"), ("negative", "sentence1"))
    set_kind(config, "teacher", "labels")
    return config


PRESETS = {"minilm-l3": listwise, "margin": margin, "mined": mined}
PRESETS |= {"quickstart": partial(small, quickstart), "tiny": partial(small, tiny)}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("listwise", PRESETS, preset)
