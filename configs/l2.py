"""L2: the student's vector is trained to equal the teacher's, by the mean squared difference of their components.

    python -m jaxdistill.main --config=configs/l2.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text: --config.data.text=PATH_OR_GLOB
cosine      the same with 1 - cosine as the distance, which sentence-transformers recommends
leaf        LEAF (Vujanic and Rueckstiess, 2025, arXiv 2509.12539): a BERT of 23M parameters learns the 768-dimensional
            space of snowflake-arctic-embed-m-v1.5, through a linear layer that is kept; both from the hub. Their model
            scores 53.55 on BEIR, and 54.03 if the teacher embeds the documents (docs/guide/evaluation.md). Text,
            lengths and rates here are ours: not yet measured
quickstart  the default: on text that comes with the project, offline, in a minute or two
tiny        a one-minute smoke test from text to export; says nothing about quality
paper:STUDENT   ConGen's baseline; teacher and student from the hub; `paper` alone is bert-base. Its Table 3 has mdistilbert
            and mminilm-l12, which read only English here

The code of ConGen's baselines is not public. Unit-length vectors are from the paper's section 3.1, the head from 4.1,
and learning rates from ConGen's own rows. Adam's eps is 1e-8: with ConGen's 1e-6, the small gradients of mean squares
of unit vectors hardly move the student.
"""

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import chosen, embedded, minilm_l3
from jaxdistill.config.shipped.congen import PAPER, of_student


def l2(**changed) -> dict:
    """The objective with its options."""
    defaults = dict(
        kind="embedding",
        distance="squared",
        normalize=True,
        view="text",
        second_view="",
        third="none",
        spread_weight=0.0,
    )
    return defaults | changed


def paper(student: str = "bert-base", **changed) -> ConfigDict:
    """ConGen's baseline; what its text leaves open is as in ConGen's own row of Table 7."""
    config = of_student(student, l2(**changed))
    if not config.objective.second_view:
        config.data.columns = config.data.columns[:1]  # English, without its translations
    config.optimizer.eps = 1e-8
    return config


def leaf() -> ConfigDict:
    """Any text serves: there are no labels, pairs or negatives, and small batches are enough."""
    config = minilm_l3(**l2())
    config.teacher.model = "Snowflake/snowflake-arctic-embed-m-v1.5"
    config.student.model = "nreimers/MiniLM-L6-H384-uncased"
    config.student.layers = ""
    config.student.pooling = "mean"
    config.student.head = "linear"
    config.run.steps, config.run.epochs = -1, 1.0
    return config


PRESETS = {
    "minilm-l3": lambda: minilm_l3(**l2()),
    **embedded(lambda: minilm_l3(**l2())),
    "paper": paper,
    "leaf": leaf,
    "cosine": lambda: minilm_l3(**l2(distance="cosine")),
}
ARGUMENTS = {"paper": tuple(PAPER)}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("l2", PRESETS, preset, ARGUMENTS)
