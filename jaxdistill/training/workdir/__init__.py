"""The folder of a run: checkpoints, notes, the lock, and its copy in a bucket."""
