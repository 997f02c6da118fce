"""Embedded text: training sentences, held-out pairs, graded pairs and their generator."""
