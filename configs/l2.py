"""L2: the student's vector equals the teacher's, by the mean squared difference of their numbers.

    python -m jaxdistill.main --config=configs/l2.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text: --config.data.text=PATH_OR_GLOB
cosine      the same with 1 - cosine as the distance, which sentence-transformers recommends
leaf        LEAF (Vujanic and Rueckstiess, 2025, arXiv 2509.12539): a 23M BERT in the 768 numbers of snowflake-arctic-embed-m-v1.5,
            through a linear layer that is kept; both from the hub. Their model has 53.55 on BEIR, and 54.03 where the teacher
            embeds the documents (docs/guide/evaluation.md); text, lengths and rates here are ours: not yet measured
tiny        the path from text to export in a minute; proves nothing about quality
paper:STUDENT   ConGen's baseline, teacher and student from the hub; `paper` alone is bert-base. Its Table 1 has 73.32
            (bert-tiny), 76.07 (bert-mini), 77.03 (tinybert-l4), 76.66 (minilm-l3), 77.51 (minilm-l6), 77.30 (bert-small),
            78.79 (minilm-l12), 78.95 (tinybert-l6), 78.97 (bert-base) and 79.00 (roberta-base); its Table 3 has mdistilbert
            and mminilm-l12, which read English alone here

The code of the baselines is not public: that vectors are of unit length is in the paper's section 3.1, the head in 4.1;
learning rates are those of ConGen's own rows. Adam's eps is 1e-8: with 1e-6, ConGen's, mean squares of unit vectors hardly move.
"""

from _presets import chosen, minilm_l3, tiny
from congen import PAPER, of_student
from ml_collections import ConfigDict


def l2(**changed) -> dict:
    """The objective with its options."""
    defaults = dict(
        name="embedding",
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
    config.optimizer.eps = 1e-8
    return config


def leaf() -> ConfigDict:
    """Any text serves: there are no labels, pairs or negatives, and small batches are enough."""
    config = minilm_l3(**l2())
    config.data.max_length = 256
    config.teacher.model = "Snowflake/snowflake-arctic-embed-m-v1.5"
    config.student.model = "nreimers/MiniLM-L6-H384-uncased"
    config.student.layers = ""
    config.student.pooling = "mean"
    config.student.head = "linear"
    config.run.steps, config.run.epochs = 0, 1.0
    return config


PRESETS = {
    "minilm-l3": lambda: minilm_l3(**l2()),
    "tiny": lambda: tiny(minilm_l3(**l2())),
    "paper": paper,
    "leaf": leaf,
    "cosine": lambda: minilm_l3(**l2(distance="cosine")),
}
ARGUMENTS = {"paper": tuple(PAPER)}


def get_config(preset: str = "minilm-l3") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("l2", PRESETS, preset, ARGUMENTS)
