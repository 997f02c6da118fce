"""Sphinx configuration: `sphinx-build -W docs build/docs`."""

import pathlib
import sys

import jaxdistill

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import options_page  # noqa: E402 - beside this file
import scores_page  # noqa: E402

project = "jaxdistill"
author = "the jaxdistill authors"
release = jaxdistill.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["build"]
myst_heading_anchors = 3
autodoc_typehints = "description"
html_theme = "alabaster"
html_theme_options = {"description": "Small sentence encoders from large ones", "page_width": "1100px"}


for name, made in {"options": options_page, "scores": scores_page}.items():
    pathlib.Path(__file__).with_name(f"{name}.md").write_text(made.page(), encoding="utf-8")


def setup(app):
    """Shows Mermaid, which GitHub draws, as its text."""
    from pygments.lexers.special import TextLexer

    app.add_lexer("mermaid", TextLexer)
