"""ConGen's size of the instance queue (its Figure 4).

    python -m jaxdistill.sweep --grid=congen_queue --workdir=runs/queue --config.data.text=TEXT
    python -m jaxdistill.sweep --grid=congen_queue --workdir=runs/queue-base --config=configs/congen.py:paper:bert-base

The paper tries these four sizes for BERT-base and RoBERTa-base. The figure has no numbers. The text says that the
largest is not always best, that 1024 suits RoBERTa-base, and that the differences are relatively small; Table 7 has
65536 for BERT-base. As in the paper, the points have both terms of the loss (alpha 0.5); `minilm-l3` alone has only
the control term. The queue first holds sentences that are never anchors, at most a quarter of the text: the largest
needs 262,144 sentences.
"""

CONFIG = "configs/congen.py:minilm-l3"
GRID = {"objective.alpha": [0.5], "objective.queue_size": [128, 1024, 16384, 65536]}
