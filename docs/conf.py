"""Sphinx configuration: `sphinx-build -W docs build/docs`."""

import jaxdistill

project = "jaxdistill"
author = "the jaxdistill authors"
release = jaxdistill.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["build"]
myst_heading_anchors = 3
autodoc_typehints = "description"
html_theme = "alabaster"
html_theme_options = {"description": "Small sentence encoders from large ones", "page_width": "1100px"}


def setup(app):
    """Shows Mermaid, which GitHub draws, as its text."""
    from pygments.lexers.special import TextLexer

    app.add_lexer("mermaid", TextLexer)
