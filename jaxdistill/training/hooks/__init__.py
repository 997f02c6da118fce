"""What a training does beside its updates: one hook a file. `training/train.py` wires them in their order."""
