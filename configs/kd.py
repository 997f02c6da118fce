"""KD of DistilCSE (Xu et al., 2021): the student's vector, through a linear layer, equals the teacher's.

    python -m jaxdistill.main --config=configs/kd.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text; the linear layer starts as the identity and is dropped at the end
tiny        the path from text to export in a minute; proves nothing about quality
paper       BERT-base from sup-SimCSE-RoBERTa-large, batch 512 (its Table 2: 83.05)
code        the same with the code's batch of 8 x 512

Two stages: see configs/ckd.py:two-stage, and set `--config.objective` there to this one's by hand if you want KD first.
The text, NEWS5M, is on the hub.
"""

from _presets import chosen, minilm_l3, tiny
from ckd import distilcse
from l2 import l2
from ml_collections import ConfigDict

KD = l2(normalize=False)


def aligned() -> ConfigDict:
    config = minilm_l3(**KD)
    config.student.head = "linear"
    config.student.head_init = "identity"
    config.student.keep_head = False
    return config


def paper(batch_size: int = 512) -> ConfigDict:
    """The code clips no gradient here."""
    config = distilcse(KD, batch_size=batch_size)
    config.optimizer.clip_norm = 0.0
    return config


PRESETS = {
    "minilm-l3": aligned,
    "tiny": lambda: tiny(aligned()),
    "paper": paper,
    "code": lambda: paper(4096),
}


def get_config(preset: str = "minilm-l3") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("kd", PRESETS, preset)
