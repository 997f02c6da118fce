"""DistilCSE's amount of unlabelled text (its Figure 3).

    for n in 1 2 3 4 5 10 15 20; do head -n ${n}000000 news.txt > news-${n}m.txt; done
    python -m jaxdistill.sweep --grid=distilcse_scale --workdir=runs/scale --config.stage2.data.text=nli_for_simcse.csv

In the paper: BERT-base after CKD and the second stage, on 1M to 20M sentences. STS-B dev rises from 1M to 5M, and then
stays between 88.9 and 89.0 (x 100); the figure has no other numbers. news.txt holds 20 million sentences, one per
line. News-5m, on which the paper's models are trained, is the first five million.
"""

CONFIG = "configs/ckd.py:paper"
GRID = {"stage1.data.text": [f"news-{n}m.txt" for n in (1, 2, 3, 4, 5, 10, 15, 20)]}
