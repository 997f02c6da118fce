"""Evaluations, and the report of their scores. An evaluation sees a model only as functions from texts to vectors or scores."""
