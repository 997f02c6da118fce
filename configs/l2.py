"""L2: the student's vector equals the teacher's, by the mean squared difference of their numbers.

    python -m jaxdistill.main --config=configs/l2.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text: --config.data.text=PATH_OR_GLOB
cosine      the same with 1 - cosine as the distance, which sentence-transformers recommends
tiny        the path from text to export in a minute; proves nothing about quality
paper       ConGen's baseline (its Table 1), teacher and student from the hub

The paper has STS averages of 73.32 (BERT-tiny) to 79.00 (RoBERTa-base). Its code is not public: that vectors are of unit
length is in its section 3.1, weights, learning rate and head of its baselines are not in its text.
"""

from _presets import chosen, congens_setting, minilm_l3, tiny
from ml_collections import ConfigDict


def l2(**changed) -> dict:
    """The objective with its options."""
    defaults = dict(name="embedding", distance="squared", normalize=True, view="text", second_view="", third="none")
    return defaults | changed


def paper(**changed) -> ConfigDict:
    """ConGen's baseline for BERT-base; what its text leaves open is as in ConGen's own row of Table 7."""
    config = congens_setting(**l2(**changed))
    config.student.head = "linear"
    config.run.seed = 1000
    return config


PRESETS = {
    "minilm-l3": lambda: minilm_l3(**l2()),
    "tiny": lambda: tiny(minilm_l3(**l2())),
    "paper": paper,
    "cosine": lambda: minilm_l3(**l2(distance="cosine")),
}


def get_config(preset: str = "minilm-l3") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("l2", PRESETS, preset)
