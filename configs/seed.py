"""SEED (Fang et al., ICLR 2021): ConGen's control term alone, over the own positive and a queue without the batch.

    python -m jaxdistill.main --config=configs/seed.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text, temperatures of 0.1
tiny        the path from text to export in a minute; proves nothing about quality
code        SEED's released code: temperatures 0.2 and 0.0001, a queue that starts with random vectors
congen      what ConGen's paper calls SEED (alpha = 1 of its Table 5): its own keys, temperatures and initialisation

SEED was made for images. ConGen's Table 5 has 76.25 (BERT-tiny) to 79.29 (BERT-base) for its form of it, below ConGen's own
76.85 and 80.06.
"""

from _presets import chosen, congens_setting, minilm_l3, tiny
from congen import congen
from ml_collections import ConfigDict


def seed(**changed) -> dict:
    """ConGen's objective as SEED's code has it."""
    form = dict(
        alpha=1.0,
        student_temperature=0.2,
        teacher_temperature=1e-4,
        queue_size=65536,
        key_set="queue+own",
        queue_init="random",
        generalize_view="text",
    )
    return congen(**(form | changed))


def hub(objective: dict) -> ConfigDict:
    """With ConGen's teacher, student and text."""
    config = congens_setting(**objective)
    config.student.head = "tanh"
    return config


def aligned() -> dict:
    return seed(student_temperature=0.1, teacher_temperature=0.1, queue_size=16384)


PRESETS = {
    "minilm-l3": lambda: minilm_l3(**aligned()),
    "tiny": lambda: tiny(minilm_l3(**aligned())),
    "code": lambda: hub(seed()),
    "congen": lambda: hub(
        seed(
            student_temperature=0.07,
            teacher_temperature=0.05,
            key_set="queue+batch",
            queue_init="sentences",
        )
    ),
}


def get_config(preset: str = "minilm-l3") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("seed", PRESETS, preset)
