"""CoSENT (Huang et al., 2024): cosines of pairs in the order of a teacher's scores. docs/results.md has a run on gte-small.

    python -m jaxdistill.main --config=configs/cosent.py:PRESET --workdir=runs/NAME --config.data.text=PAIRS.tsv

minilm-l3   3 layers of all-MiniLM-L6-v2, on pairs (columns sentence1 and sentence2, or premise and hypothesis) that it scores
            itself; --config.teacher.model=MODEL for another teacher: sentence encoders, or cross-encoders, or several of one
            kind with commas between them; vectors:SCORES.npy for scores of your own, one per row: a float array [rows, 1]
tiny        the path from text to export in a minute; proves nothing about quality

The scores are those that trans_encoder.py regresses; here only their order counts. Most pairs of random sentences are in
no telling order: a text of pairs with all degrees of similarity is worth more than a large one.
"""

from _presets import TEACHER, chosen, minilm_l3, tiny
from ml_collections import ConfigDict
from trans_encoder import COLUMNS


def on_pairs() -> ConfigDict:
    config = minilm_l3(name="cosent", temperature=0.05)
    config.data.columns = COLUMNS
    config.teacher.targets = "labels"
    config.student.model = TEACHER
    config.optimizer.learning_rate = 5e-5
    return config


def small() -> ConfigDict:
    """On the embedded graded pairs, without their scores."""
    config = tiny(on_pairs())
    config.data.columns = COLUMNS
    config.data.text = config.evals.pairs
    config.teacher.targets = "labels"
    return config


PRESETS = {"minilm-l3": on_pairs, "tiny": small}


def get_config(preset: str = "minilm-l3") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("cosent", PRESETS, preset)
