"""SKD: Dual-L2, and the student's vectors of the two views equal each other.

    python -m jaxdistill.main --config=configs/skd.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text, word deletion as the second view
tiny        the path from text to export in a minute; proves nothing about quality
paper       as ConGen's text has it (its Table 1): the third term is between the student's two views
code        as the code of CL-ReLKT has it, where SKD comes from: between the teacher's second view and the student's first

The paper has STS averages of 68.83 (BERT-tiny) to 77.44 (RoBERTa-base); its own code of SKD is not public.
"""

from _presets import NLI, chosen, minilm_l3, options, tiny
from ml_collections import ConfigDict


def objective(**changed) -> dict:
    """The objective with its options."""
    defaults = dict(
        name="embedding", distance="squared", normalize=True, view="text", second_view="delete_words", third="views"
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


def code() -> ConfigDict:
    """CL-ReLKT's form, whose teacher reads both views and so runs in the step."""
    config = paper()
    config.teacher.targets = "live"
    config.objective.third = "teacher"
    return config


PRESETS = {
    "minilm-l3": lambda: minilm_l3(**objective()),
    "tiny": lambda: tiny(minilm_l3(**objective())),
    "paper": paper,
    "code": code,
}


def get_config(preset: str = "minilm-l3") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("skd", PRESETS, preset)
