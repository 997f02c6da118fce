"""SimTDE (Xie et al., SIGIR 2023): compact embedding tables, a projection, and the teacher's last layers.

    python -m jaxdistill.main --config=configs/simtde.py:PRESET --workdir=runs/NAME

minilm-128-l3   SIMTDE-128-L3(384) of all-MiniLM-L6-v2 on your text, tables from the teacher's by SVD (ours): 9.5M
                parameters as the paper counts them, with a pooler; its Table 2 has 78.09
tiny            the path from text to export in a minute; proves nothing about quality
paper-384-l3 paper-384-l12 paper-128-l3 paper-64-l2 paper-32-l2
                the paper's rows: 34.1M parameters (its Tables 1 and 2 have 80.47), 97.9M (80.51), 9.5M (78.09), and
                2.4M and 1.4M (its Table 3); random tables, alpha 0.5
paper-no-tokens paper-hidden paper-kl paper-cosine-mse paper-cosine-mae
                the ablations of its Table 2, on paper-384-l3

The paper's BERT teacher is the authors' own, not public (a mean-pooled supervised SimCSE, configs/simcse.py:simtde-teacher);
the presets name the public one. Exported as ELECTRA, which sentence-transformers and AutoModel load as it is.
"""

from functools import partial

from _presets import NLI, TEACHER, chosen, minilm_l3, options, tiny
from ml_collections import ConfigDict

# Rows: teacher, its pooling, compact width, layers.
ROWS = {
    "paper-384-l3": ("princeton-nlp/sup-simcse-bert-base-uncased", "mean", 384, 3),
    "paper-384-l12": ("princeton-nlp/sup-simcse-bert-base-uncased", "mean", 384, 12),
    "paper-128-l3": ("sentence-transformers/all-MiniLM-L6-v2", "", 128, 3),
    "paper-64-l2": ("nreimers/BERT-Tiny_L-2_H-128_A-2", "mean", 64, 2),
    "paper-32-l2": ("nreimers/BERT-Tiny_L-2_H-128_A-2", "mean", 32, 2),
}


def simtde(**changed) -> dict:
    """The objective with its options."""
    defaults = dict(
        name="simtde",
        alpha=0.5,
        token_loss="batch",
        sentence_loss="mse",
        hidden_weight=0.0,
        hidden_map="last",
        view="text",
    )
    return defaults | changed


def paper(row: str, **changed) -> ConfigDict:
    """A row of the paper; learning rate, epochs and text are not in it."""
    teacher, pooling, width, layers = ROWS[row]
    config = options(**simtde(**changed))
    config.data.text = NLI
    config.data.max_length = 64
    config.teacher.model = teacher
    config.teacher.pooling = pooling
    config.student.model = "teacher"
    config.student.layers = f"last:{layers}"
    config.student.pooling = ""
    config.student.embedding = width
    config.student.embedding_init = "random"
    config.optimizer.learning_rate = 1e-4
    config.run.epochs = 3.0
    return config


def minilm_128_l3() -> ConfigDict:
    """Sentence vectors of all-MiniLM-L6-v2 have unit length, so that their squares are small: compared by cosine."""
    config = minilm_l3(**simtde(sentence_loss="cosine_mae", alpha=0.1))
    config.teacher.model = TEACHER
    config.student.layers = "last:3"
    config.student.embedding = 128
    return config


PRESETS = {
    "minilm-128-l3": minilm_128_l3,
    "tiny": lambda: tiny(minilm_128_l3()),
    **{row: partial(paper, row) for row in ROWS},
    "paper-no-tokens": partial(paper, "paper-384-l3", alpha=0.0),
    "paper-hidden": partial(paper, "paper-384-l3", hidden_weight=1.0),
    "paper-kl": partial(paper, "paper-384-l3", sentence_loss="kl"),
    "paper-cosine-mse": partial(paper, "paper-384-l3", sentence_loss="cosine_mse"),
    "paper-cosine-mae": partial(paper, "paper-384-l3", sentence_loss="cosine_mae"),
}


def get_config(preset: str = "minilm-128-l3") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("simtde", PRESETS, preset)
