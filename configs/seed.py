"""SEED (Fang et al., ICLR 2021): ConGen's control term alone, over each sentence's own positive and a queue.

    python -m jaxdistill.main --config=configs/seed.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text, temperatures of 0.1
quickstart  the default: on text that comes with the project, offline, in a minute or two
tiny        a one-minute smoke test from text to export; says nothing about quality
code        SEED's released code: temperatures 0.2 and 0.0001, a queue that starts with random vectors; with ConGen's
            teacher, student BERT-base and text
congen:STUDENT   what ConGen's paper calls SEED (alpha = 1 in its Table 5): ConGen's own keys, temperatures and
            initialisation, for each student of its Table 1; `congen` alone is bert-base

SEED was designed for images. In ConGen's Table 5, its form of SEED scores 0.32 to 0.77 below ConGen.
"""

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import chosen, embedded, minilm_l3
from jaxdistill.config.shipped.congen import STUDENTS, congen, of_student
from jaxdistill.config.shipped.congen import paper as congens


def seed(**changed) -> dict:
    """ConGen's objective as SEED's code has it."""
    form = dict(
        alpha=1.0,
        student_temperature=0.2,
        teacher_temperature=1e-4,
        queue_size=65536,
        key_set="queue+own",
        queue_init="random",
    )
    return congen(**(form | changed))


def control_alone(student: str = "bert-base") -> ConfigDict:
    """ConGen's row without its second term."""
    config = congens(student)
    config.objective.alpha = 1.0
    return config


def aligned() -> dict:
    return seed(student_temperature=0.1, teacher_temperature=0.1, queue_size=16384)


PRESETS = {
    "minilm-l3": lambda: minilm_l3(**aligned()),
    **embedded(lambda: minilm_l3(**aligned())),
    "code": lambda: of_student("bert-base", seed()),
    "congen": control_alone,
}
ARGUMENTS = {"congen": STUDENTS}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("seed", PRESETS, preset, ARGUMENTS)
