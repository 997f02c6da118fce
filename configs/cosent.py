"""CoSENT (Huang et al., 2024): ranks the cosines of pairs as a teacher's scores rank the pairs.

    python -m jaxdistill.main --config=configs/cosent.py:PRESET --workdir=runs/NAME --config.data.text=PAIRS.tsv

minilm-l3   3 layers of all-MiniLM-L6-v2 on pairs (columns sentence1 and sentence2, or premise and hypothesis), which
            all-MiniLM-L6-v2 scores. Other teachers: --config.teacher.model=MODEL, also several sentence encoders or
            several cross-encoders, separated by commas. Your own scores: minilm-l3:teacher=scores
            --config.teacher.file=SCORES.npy, a float array [rows, 1]
quickstart  the default: on text that comes with the project, offline, in a minute or two
tiny        a one-minute smoke test from text to export; says nothing about quality

trans_encoder.py regresses the same scores; here only their order counts. Most pairs of random sentences have no
meaningful order, so pairs of all degrees of similarity matter more than a large text. docs/results.md has a run on
gte-small.
"""

from collections.abc import Callable
from functools import partial

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import TEACHER, chosen, minilm_l3, quickstart, set_kind, tiny
from jaxdistill.config.shipped.trans_encoder import COLUMNS


def on_pairs() -> ConfigDict:
    config = minilm_l3(kind="cosent", temperature=0.05)
    config.data.columns = COLUMNS
    set_kind(config, "teacher", "labels")
    config.student.model = TEACHER
    config.optimizer.learning_rate = 5e-5
    return config


def small(size: Callable[[ConfigDict], ConfigDict]) -> ConfigDict:
    """On the embedded graded pairs, without their scores."""
    config = size(on_pairs())
    config.data.columns = COLUMNS
    config.data.text = config.evals.pairs
    config.evals.agreement, config.evals.best = "", "pairs/spearman"
    set_kind(config, "teacher", "labels")
    return config


PRESETS = {"minilm-l3": on_pairs, "quickstart": partial(small, quickstart), "tiny": partial(small, tiny)}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("cosent", PRESETS, preset)
