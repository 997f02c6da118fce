"""DistilFACE's batch size (its section 5.5).

    python -m jaxdistill.sweep --grid=distilface_batch_size --workdir=runs/face-batch \\
      --config.data.text=wiki1m_for_simcse.txt

The paper's grid: each point runs for 30,000 steps with the settings of Table 1 (learning rate 5e-5, temperature 0.05,
mean of first and last layer), scored on STS12 to STS15 and STS-B. 128 is best, but "the model is not too sensitive to
batch sizes if a suitable learning rate is used"; the figure has no numbers. The paper chose on test sets; here STS-B
dev chooses.
"""

CONFIG = "configs/simcse.py:distilface-alternative"
GRID = {"data.batch_size": [64, 128, 256], "student.pooling": ["mean:first_last"]}
