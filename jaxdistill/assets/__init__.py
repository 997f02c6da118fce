"""Embedded text: training sentences, held-out pairs and graded pairs."""

HELDOUT = "package:jaxdistill/assets/heldout.txt.bz2"
"""The held-out sentences, as a source of text."""
