"""The best student for a budget: layers of the teacher, distilled on your text, then fine-tuned on labelled pairs.

    python -m jaxdistill.main --config=configs/recommended.py --workdir=runs/NAME \\
      --config.data.text=TEXT --config.then.data.text=TRIPLETS.tsv

two-stage   3 layers of all-MiniLM-L6-v2: ConGen on 115,200 sentences of your text, then the best student is fine-tuned on
            triplets with the columns text, positive, negative (a premise, what it entails, what contradicts it)
compact     half the size again, 9.3M parameters: SimTDE on 115,200 sentences, then the triplets (TRIPLETS.tsv as above)
short       cosine distillation instead, which learns faster at first: 52,000 sentences, triplets included
unlabelled  the first stage alone, for when there are no triplets: congen.py:minilm-l3
tiny        the path from text to export in a minute; proves nothing about quality

docs/results.md has what each ingredient brought, and what brought nothing.
"""

from _presets import chosen, minilm_l3, tiny
from ckd import second_stage
from congen import minilm_l3 as unlabelled
from l2 import l2
from ml_collections import ConfigDict
from simcse import PLAIN_TRIPLETS
from simtde import minilm_128_l3 as simtde


def fine_tuned(config: ConfigDict, *, steps: int) -> ConfigDict:
    """Adds the second stage, without dropout and at a tenth of the first one's rate: more than 50 steps bring nothing."""
    config = second_stage(config, batch_size=128)
    config.then.data.columns = PLAIN_TRIPLETS
    config.then.evals.every = 50
    config.then.run.epochs, config.then.run.steps = 1.0, steps
    return config


def short() -> ConfigDict:
    """256 x 128 sentences and 50 x 128 triplets are 51,968 sentences."""
    config = minilm_l3(**l2(distance="cosine"))
    config.run.steps = 256
    config.evals.every = 64
    return fine_tuned(config, steps=50)


PRESETS = {
    "two-stage": lambda: fine_tuned(unlabelled(), steps=100),
    "compact": lambda: fine_tuned(simtde(), steps=100),
    "short": short,
    "unlabelled": unlabelled,
    "tiny": lambda: tiny(unlabelled()),
}


def get_config(preset: str = "two-stage") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("recommended", PRESETS, preset)
