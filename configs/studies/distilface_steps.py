"""DistilFACE's number of steps (its Figure 2).

    python -m jaxdistill.sweep --grid=distilface_steps --workdir=runs/face-steps \\
      --config.data.text=wiki1m_for_simcse.txt

The paper: the model "starts to overfit at 20,000 steps and above", 72.10 there. Its authors' notebooks, averages of
STS12 to STS15 and STS-B (x 100), batch 128, learning rate 1e-5: independent runs have 70.19 at 10,000, 70.53 at
15,000 and 70.58 at 20,000 steps; the later points (71.42, 71.12, 69.85, 69.22 at 50,000, 100,000, 200,000 and 500,000
in all) come from chained trainings of one model, each of which started its learning rate anew. Here every point is a
run of its own.
"""

CONFIG = "configs/simcse.py:distilface"
GRID = {"run.steps": [10_000, 15_000, 20_000, 50_000, 100_000, 200_000, 500_000]}
