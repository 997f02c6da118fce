"""Models: checkpoints, what students and teachers are made from, and surgery."""
