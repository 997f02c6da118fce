"""DistilFACE's pooling: which layers it combines, and how, before the mean over tokens (its section 5.6).

    python -m jaxdistill.sweep --grid=distilface_pooling --workdir=runs/face-pooling \\
      --config.data.text=wiki1m_for_simcse.txt

In the paper, concatenation and mean of the last four layers are best. The last layer is third and better than the
second to last; first and last is among the better ones. Averages of STS12 to STS15 and STS-B (x 100) in its authors'
notebooks; the first is with batch 64, learning rate 5e-5 and 30,000 steps:

    mean of the last four layers   72.17     mean of first and last     70.29     the last layer's first token   69.87
    the last four, concatenated    71.38     mean of the last two       69.26
    the last layer                 70.97     mean of all                67.77

`:max` takes the elementwise maximum over the layers. The paper gives no numbers for it, nor for the second to last
layer. `pooler` is not in the grid, because DistilBERT has none. sentence-transformers has no module for `:concat` and
`:max`, so only `jaxdistill.load` and this project's commands read the exports of these points.
"""

CONFIG = "configs/simcse.py:distilface-alternative"
GRID = {
    "student.pooling": [
        "mean:last4", "mean:last4:concat", "mean", "mean:first_last", "mean:last2", "mean:all", "cls",
        "mean:second_to_last", "mean:last4:max", "mean:first_last:max", "mean:last2:max", "mean:all:max",
    ]
}  # fmt: skip
