"""DistilCSE's amount of unlabelled text (its Figure 3).

    for n in 1 2 3 4 5 10 15 20; do head -n ${n}000000 news.txt > news-${n}m.txt; done
    python -m jaxdistill.sweep --grid=distilcse_scale --workdir=runs/scale --config.then.data.text=nli_for_simcse.csv

The paper: BERT-base after CKD and the second stage, on 1M to 20M sentences. STS-B dev keeps increasing from 1M to 5M,
and beyond varies between 88.9 and 89.0 (x 100); the figure has no other numbers. news.txt holds 20 million sentences, a
sentence a line; News-5m, which the paper's models are trained on, has the first five.
"""

CONFIG = "configs/ckd.py:paper"
GRID = {"data.text": [f"news-{n}m.txt" for n in (1, 2, 3, 4, 5, 10, 15, 20)]}
