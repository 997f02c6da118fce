"""Embedded text: training sentences, held-out pairs and graded pairs.

The sentences were composed for this project by filling patterns with words, none is copied from a text, and they have its licence.
Patterns and words of the held-out sentences do not occur in the training sentences.
"""

HELDOUT = "package:jaxdistill/core/assets/heldout.txt.bz2"
"""The held-out sentences, as a source of text."""
