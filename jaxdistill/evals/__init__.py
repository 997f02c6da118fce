"""Evaluations, one file each. They see a model only as `embed`, a function from sentences to vectors."""
