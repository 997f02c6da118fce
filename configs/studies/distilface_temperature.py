"""DistilFACE's temperature (its section 5.4).

    python -m jaxdistill.sweep --grid=distilface_temperature --workdir=runs/face-temperature \\
      --config.data.text=wiki1m_for_simcse.txt

The paper's grid: each point runs for 30,000 steps with the settings of Table 1 (batch 64, learning rate 5e-5, mean of
first and last layer), scored on STS12 to STS15 and STS-B. 0.05 is best: the temperature "needs to be neither too large
nor small"; the figure has no numbers. The paper chose on test sets; here STS-B dev chooses.
"""

CONFIG = "configs/simcse.py:distilface-alternative"
GRID = {"objective.temperature": [0.001, 0.01, 0.05, 0.1, 1.0], "student.pooling": ["mean:first_last"]}
