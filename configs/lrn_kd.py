"""LRN-KD, a baseline of SimTDE: layers of the teacher at full width, trained on sentence vectors and layer outputs.

    python -m jaxdistill.main --config=configs/lrn_kd.py:PRESET --workdir=runs/NAME

minilm-l3   layers 1, 3, 5 of all-MiniLM-L6-v2 on your text, compared with the teacher's layers 1, 3, 5
quickstart  the default: on text that comes with the project, offline, in a minute or two
tiny        a one-minute smoke test from text to export; says nothing about quality
paper       LRN-KD-768-L2(768) of SimTDE's Table 2: 79.53. Settings that the paper omits are as in configs/simtde.py

BERT-PKD (Sun et al., EMNLP 2019) without its soft targets, as described in SimTDE's section 4, which does not give the
weight of the layers.
"""

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import chosen, embedded, minilm_l3
from jaxdistill.config.shipped.simtde import paper as simtde_paper
from jaxdistill.config.shipped.simtde import simtde


def aligned() -> ConfigDict:
    return minilm_l3(**simtde(alpha=0.0, sentence_loss="cosine_mae", hidden_weight=0.1, hidden_map="even"))


def paper() -> ConfigDict:
    config = simtde_paper("paper-384-l3", alpha=0.0, hidden_weight=1.0)
    config.student.embedding = 0
    config.student.layers = "last:2"
    return config


PRESETS = {"minilm-l3": aligned, **embedded(aligned), "paper": paper}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("lrn_kd", PRESETS, preset)
