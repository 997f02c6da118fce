"""Embedded text: training sentences, held-out pairs and graded pairs."""
