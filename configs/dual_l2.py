"""Dual-L2: the student's vectors of two views equal the teacher's of the first one.

    python -m jaxdistill.main --config=configs/dual_l2.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text, word deletion as the second view
tiny        the path from text to export in a minute; proves nothing about quality
paper       ConGen's baseline (its Table 1), teacher and student from the hub

Reimers and Gurevych, EMNLP 2020, for translations: give a file with two columns,
`--config.data.columns='(("text", "en"), ("translation", "de"))' --config.objective.second_view=translation`.
The paper has STS averages of 70.76 (BERT-tiny) to 79.06 (RoBERTa-base); its code is not public.
"""

from _presets import NLI, chosen, minilm_l3, options, tiny
from ml_collections import ConfigDict


def objective(**changed) -> dict:
    """The objective with its options."""
    defaults = dict(
        name="embedding", distance="squared", normalize=True, view="text", second_view="delete_words", third="none"
    )
    return defaults | changed


def paper() -> ConfigDict:
    """ConGen's baseline for BERT-base; what its text leaves open is as in ConGen's own row of Table 7."""
    config = options(**objective())
    config.data.text = NLI
    config.teacher.model = "princeton-nlp/unsup-simcse-roberta-large"
    config.teacher.pooling = "mean"
    config.teacher.targets = "store"
    config.student.model = "google-bert/bert-base-uncased"
    config.student.head = "linear"
    config.optimizer.learning_rate = 5e-5
    config.optimizer.bias_correction = False
    config.run.epochs = 20.0
    config.run.seed = 1000
    return config


PRESETS = {
    "minilm-l3": lambda: minilm_l3(**objective()),
    "tiny": lambda: tiny(minilm_l3(**objective())),
    "paper": paper,
}


def get_config(preset: str = "minilm-l3") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("dual_l2", PRESETS, preset)
