"""SKD: Dual-L2, and the student's vectors of the two views equal each other.

    python -m jaxdistill.main --config=configs/skd.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text, word deletion as the second view
tiny        the path from text to export in a minute; proves nothing about quality
paper       as ConGen's text has it (its Table 1): the third term is between the student's two views
code        as the code of CL-ReLKT has it, where SKD comes from: between the teacher's second view and the student's first

The paper has STS averages of 68.83 (BERT-tiny) to 77.44 (RoBERTa-base); its own code of SKD is not public.
"""

from _presets import chosen, minilm_l3, tiny
from dual_l2 import dual_l2
from l2 import paper as l2_paper
from ml_collections import ConfigDict


def skd(**changed) -> dict:
    """Dual-L2's objective with a third term."""
    return dual_l2(**(dict(third="views") | changed))


def code() -> ConfigDict:
    """CL-ReLKT's form, whose teacher reads both views and so runs in the step."""
    config = l2_paper(**skd(third="teacher"))
    config.teacher.targets = "live"
    return config


PRESETS = {
    "minilm-l3": lambda: minilm_l3(**skd()),
    "tiny": lambda: tiny(minilm_l3(**skd())),
    "paper": lambda: l2_paper(**skd()),
    "code": code,
}


def get_config(preset: str = "minilm-l3") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("skd", PRESETS, preset)
