"""Evaluations: one file each. They see a model only as `embed`: sentences to vectors."""
