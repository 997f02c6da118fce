"""ConGen's weight of control against generalisation (its Table 5).

    python -m jaxdistill.sweep --grid=congen_alpha --workdir=runs/alpha --config.data.text=TEXT
    python -m jaxdistill.sweep --grid=congen_alpha --workdir=runs/alpha-tiny --config=configs/congen.py:paper:bert-tiny

STS averages (x 100) in the paper, teacher unsup-SimCSE-RoBERTa-large; 1 is control only (SEED), 0 generalise only:

    alpha          1     0.75    0.5   0.25     0
    BERT-Tiny    76.25  76.72  76.85  76.62  76.26
    TinyBERT-L4  78.10  78.45  78.54  78.43  78.30
    MiniLM-L12   79.36  79.56  79.68  79.52  79.37
    BERT-base    79.29  80.03  80.06  80.02  79.72

0.5 is best for every student; between 0.25 and 0.75 the score changes by at most 0.23. Single models of the paper
differ from its means of three seeds by up to 0.3, so run several seeds: --seeds=0,1,2.
"""

CONFIG = "configs/congen.py:minilm-l3"
GRID = {"objective.alpha": [0.0, 0.25, 0.5, 0.75, 1.0]}
