"""KD of DistilCSE (Gao et al., 2021): matches the student's vector, through a linear layer, to the teacher's.

    python -m jaxdistill.main --config=configs/kd.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text; the linear layer starts as the identity and is not exported
quickstart  the default: on text that comes with the project, offline, in a minute or two
tiny        a one-minute smoke test from text to export; says nothing about quality
paper:STUDENT   teacher sup-SimCSE-RoBERTa-large, batch 512, then stage 2 at batch 128. STUDENT is bert-base (Table 2:
            83.05, after stage 2 84.57), tinybert-l6 (82.29, 83.85) or tinybert-l4 (80.43, 82.56); `paper` alone is
            bert-base
paper-nli:STUDENT   stage 1 only (Table 4: 81.95, 81.75, 79.20), on all 1,885,708 premises and hypotheses of SNLI and
            MultiNLI; the paper's NLI set is SimCSE's 275K triplets, which were selected from them
code:STUDENT    both stages with the code's batches of 8 x 512 and 4 x 128, and a learned scale in stage 2

Text: `news5m.txt`, and SimCSE's `nli_for_simcse.csv` (docs/guide/data.md downloads both). Name the triplets with
--config.stage2.data.text.
"""

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import NLI, chosen, embedded, minilm_l3
from jaxdistill.config.shipped.ckd import STUDENTS, distilcse, distilcse_stages
from jaxdistill.config.shipped.l2 import l2

KD = l2(normalize=False)


def aligned() -> ConfigDict:
    config = minilm_l3(**KD)
    config.student.head = "linear"
    config.student.head_init = "identity"
    config.student.keep_head = False
    return config


def first_stage(student: str, *, batch_size: int) -> ConfigDict:
    """The code clips no gradient here, and its script leaves the seed at 42."""
    config = distilcse(KD, student, batch_size=batch_size)
    config.optimizer.clip_norm = 0.0
    config.run.seed = 42
    return config


def paper(student: str = "bert-base") -> list[ConfigDict]:
    """Section 4.2."""
    return distilcse_stages(first_stage(student, batch_size=512), student, code=False)


def paper_on_nli(student: str = "bert-base") -> ConfigDict:
    """Appendix A."""
    config = first_stage(student, batch_size=512)
    config.data.text = NLI
    return config


def code(student: str = "bert-base") -> list[ConfigDict]:
    """The released scripts."""
    return distilcse_stages(first_stage(student, batch_size=8 * 512), student, code=True)


PRESETS = {
    "minilm-l3": aligned,
    **embedded(aligned),
    "paper": paper,
    "paper-nli": paper_on_nli,
    "code": code,
}
ARGUMENTS = {preset: tuple(STUDENTS) for preset in ("paper", "paper-nli", "code")}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("kd", PRESETS, preset, ARGUMENTS)
