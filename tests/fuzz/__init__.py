"""Coverage-guided fuzzing of every reader: see `run.py`."""
