"""DistilCSE's KD on the teacher's labelled text alone, against five million sentences of news (Tables 2 and 4).

    python -m jaxdistill.sweep --grid=distilcse_text --workdir=runs/kd-text \\
      [--config=configs/kd.py:paper-nli:tinybert-l6]

STS averages (x 100) in the paper, one stage of KD, teacher sup-SimCSE-RoBERTa-large (83.76):

                 NLI    News-5m
    BERT-base   81.95    83.05
    Tiny-L6     81.75    82.29
    Tiny-L4     79.20    80.43

Students trained on the labelled text stay 1.81 (BERT-base) to 4.56 points below the teacher, so DistilCSE distils on
unlabelled text first. The paper's NLI set is SimCSE's 275K triplets; the grid has all 1,885,708 premises and hypotheses
of SNLI and MultiNLI, from which these triplets were selected.
"""

CONFIG = "configs/kd.py:paper-nli"
NLI = (
    "hf:stanfordnlp/snli:train:premise,hf:stanfordnlp/snli:train:hypothesis,"
    "hf:nyu-mll/multi_nli:train:premise,hf:nyu-mll/multi_nli:train:hypothesis"
)
GRID = {"data.text": ["news5m.txt", NLI]}
