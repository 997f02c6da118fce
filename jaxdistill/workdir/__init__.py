"""The folder of a run: checkpoints, notes, its one writer, and its copy in a bucket."""
