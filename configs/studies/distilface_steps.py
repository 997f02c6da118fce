"""DistilFACE's number of steps (its Figure 2).

    python -m jaxdistill.sweep --grid=distilface_steps --workdir=runs/face-steps \\
      --config.data.text=wiki1m_for_simcse.txt

In the paper, the model "starts to overfit at 20,000 steps and above", where it scores 72.10. Its authors' notebooks
have averages of STS12 to STS15 and STS-B (x 100), batch 128, learning rate 1e-5. Independent runs score 70.19 at
10,000, 70.53 at 15,000 and 70.58 at 20,000 steps. The later points (71.42, 71.12, 69.85, 69.22 at 50,000, 100,000,
200,000 and 500,000 steps in total) continue one model, and restart the learning rate each time. Here every point is a
separate run. As in the notebooks, a point is the model after its last step (`evals.best=last`), so that overfitting shows;
the best checkpoint of a long run would hide it.
"""

CONFIG = "configs/simcse.py:distilface"
GRID = {"run.steps": [10_000, 15_000, 20_000, 50_000, 100_000, 200_000, 500_000]}
