"""Fills the templates of `assets/`: the page of a report and the model card."""

from typing import Any


def filled(name: str, **values: Any) -> str:
    """Fills a template with values; escapes them in .html. A name without a value is an error."""
    # Imported here, because most programs need no template.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxdistill", "assets"),
        autoescape=jinja2.select_autoescape(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=name.endswith(".md"),  # .html keeps the line break after a tag
        keep_trailing_newline=True,
    )
    return environment.get_template(name).render(**values)
