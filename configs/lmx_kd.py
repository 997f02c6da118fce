"""LMX-KD, a baseline of SimTDE: matches a narrower student's embeddings and layers to the teacher's, through matrices.

    python -m jaxdistill.main --config=configs/lmx_kd.py:PRESET --workdir=runs/NAME

minilm-l3   a fresh encoder of 3 layers and width 384 on your text; as wide as all-MiniLM-L6-v2, so it needs no matrices
minilm-192  a fresh encoder of 3 layers and width 192, with matrices
quickstart  the default: on text that comes with the project, offline, in a minute or two
tiny        a one-minute smoke test from text to export; says nothing about quality
paper       LMX-KD-384-L12(384) of SimTDE's Table 2: 79.11. Settings that the paper omits are as in configs/simtde.py

TinyBERT (Jiao et al., Findings of EMNLP 2020) without its attention loss, as described in SimTDE's section 4.
"""

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import chosen, embedded, minilm_l3, set_kind
from jaxdistill.config.shipped.simtde import paper as simtde_paper
from jaxdistill.config.shipped.simtde import simtde


def fresh(width: int) -> ConfigDict:
    config = minilm_l3(**simtde(sentence_loss="cosine_mae", hidden_weight=1.0, hidden_map="even"))
    set_kind(config, "student", "fresh", width=width, depth=3)
    if width != 384:
        config.student.head = "linear"
    return config


def paper() -> ConfigDict:
    """The sentence vectors meet through a linear layer too, which is dropped at the end."""
    config = simtde_paper("paper-384-l12", hidden_weight=1.0)
    set_kind(config, "student", "fresh", width=384, depth=12, embedding=0)
    config.student.heads = 12  # BERT-base's; the paper names none
    config.student.head = "linear"
    config.student.keep_head = False
    return config


PRESETS = {
    "minilm-l3": lambda: fresh(384),
    "minilm-192": lambda: fresh(192),
    **embedded(lambda: fresh(192)),
    "paper": paper,
}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("lmx_kd", PRESETS, preset)
