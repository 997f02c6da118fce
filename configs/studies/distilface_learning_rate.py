"""DistilFACE's learning rate (its section 5.3).

    python -m jaxdistill.sweep --grid=distilface_learning_rate --workdir=runs/face-rate \\
      --config.data.text=wiki1m_for_simcse.txt

The paper's grid: each point runs for 30,000 steps with the settings of Table 1 (batch 64, temperature 0.05, mean of
first and last layer), scored on STS12 to STS15 and STS-B. 1e-5 is best, and "smaller the learning rate, the greater
the Spearman correlation"; the figure has no numbers. The paper chose on test sets; here STS-B dev chooses.
"""

CONFIG = "configs/simcse.py:distilface-alternative"
GRID = {"optimizer.learning_rate": [1e-5, 3e-5, 5e-5], "student.pooling": ["mean:first_last"]}
