"""SKD: Dual-L2 with a third term, which pulls the student's vectors of the two views together.

    python -m jaxdistill.main --config=configs/skd.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text; word deletion as the second view
quickstart  the default: on text that comes with the project, offline, in a minute or two
tiny        a one-minute smoke test from text to export; says nothing about quality
paper:STUDENT   as in ConGen's paper: the third term compares the student's two views; `paper` alone is bert-base
code:STUDENT    as in the code of CL-ReLKT, the source of SKD: the third term compares the teacher's second view with
            the student's first

ConGen's own code of SKD is not public.
"""

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import chosen, embedded, minilm_l3, set_kind
from jaxdistill.config.shipped.congen import STUDENTS
from jaxdistill.config.shipped.dual_l2 import dual_l2
from jaxdistill.config.shipped.l2 import paper as l2_paper


def skd(**changed) -> dict:
    """Dual-L2's objective with a third term."""
    return dual_l2(**(dict(third="views") | changed))


def paper(student: str = "bert-base") -> ConfigDict:
    """Section 4.2 of ConGen's paper."""
    return l2_paper(student, **skd())


def code(student: str = "bert-base") -> ConfigDict:
    """CL-ReLKT's form, whose teacher reads both views and so runs in the step."""
    config = l2_paper(student, **skd(third="teacher"))
    set_kind(config, "teacher", "live")
    return config


PRESETS = {
    "minilm-l3": lambda: minilm_l3(**skd()),
    **embedded(lambda: minilm_l3(**skd())),
    "paper": paper,
    "code": code,
}
ARGUMENTS = {"paper": STUDENTS, "code": STUDENTS}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("skd", PRESETS, preset, ARGUMENTS)
