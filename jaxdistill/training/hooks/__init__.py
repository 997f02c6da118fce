"""What a training does besides updates, with one hook per file. `training/train.py` wires hooks in their order."""
