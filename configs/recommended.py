"""The best student for a budget: layers of the teacher, its vectors by cosine, then what labelled pairs add.

    python -m jaxdistill.main --config=configs/recommended.py --workdir=runs/NAME \\
      --config.data.text=TEXT --config.then.data.text=TRIPLETS.tsv

two-stage   3 layers of all-MiniLM-L6-v2: cosine distillation on your text, then contrastive fine-tuning of the best student on
            triplets with the columns text, positive, negative (a premise, what it entails, what contradicts it)
unlabelled  the first stage alone, for when there are no triplets
tiny        the path from text to export in a minute; proves nothing about quality

Both stages are as long as `--config.run.steps` and `--config.then.run.steps` say; docs/results.md has what each ingredient
brought, and what brought nothing.
"""

from _presets import chosen, minilm_l3, options, tiny
from l2 import l2
from ml_collections import ConfigDict
from simcse import PLAIN_TRIPLETS, VIEWS_OF_TRIPLETS, simcse


def unlabelled() -> ConfigDict:
    return minilm_l3(**l2(distance="cosine"))


def two_stage() -> ConfigDict:
    """No dropout in either stage, one pass over the triplets at a tenth of the first stage's rate."""
    config = unlabelled()
    then = options(**simcse(views=VIEWS_OF_TRIPLETS))
    then.data.text = ""
    then.data.columns = PLAIN_TRIPLETS
    then.data.max_length = 64
    then.student.model = "previous"
    then.student.pooling = ""
    then.student.dropout = 0.0
    then.optimizer.learning_rate = 5e-5
    then.evals.every = 50
    config.then = then
    return config


PRESETS = {
    "two-stage": two_stage,
    "unlabelled": unlabelled,
    "tiny": lambda: tiny(unlabelled()),
}


def get_config(preset: str = "two-stage") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("recommended", PRESETS, preset)
