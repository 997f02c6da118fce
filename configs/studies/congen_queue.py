"""ConGen's size of the instance queue (its Figure 4).

    python -m jaxdistill.sweep --grid=congen_queue --workdir=runs/queue --config.data.text=TEXT
    python -m jaxdistill.sweep --grid=congen_queue --workdir=runs/queue-base --config=configs/congen.py:paper:bert-base

The paper tries these four sizes for BERT-base and RoBERTa-base. The figure has no numbers; its text says that the
largest is not always best, that 1024 is for RoBERTa-base, and that the differences are relatively small. Its Table 7
has 65536 for BERT-base. The points have both terms of the loss (alpha 0.5), as in the paper; `minilm-l3` has the control
term alone. The queue starts with sentences that are then no anchors, so that the text must have more
than 65536.
"""

CONFIG = "configs/congen.py:minilm-l3"
GRID = {"objective.alpha": [0.5], "objective.queue_size": [128, 1024, 16384, 65536]}
