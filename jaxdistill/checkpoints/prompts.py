"""The prompts of a checkpoint, and the one that is put before every sentence."""

import logging
from collections.abc import Mapping
from pathlib import Path

from jaxdistill.checkpoints.modules import Modules
from jaxdistill.core import ROLES, InputError

NO_PROMPT = "none"
"""Name that stands for no prompt."""

logger = logging.getLogger(__name__)


def with_asked(prompts: dict[str, str], asked: str) -> tuple[dict[str, str], str]:
    """All prompts, and the name of the requested one, which is given by name or as a text."""
    return (prompts, asked) if asked in prompts else (prompts | {"prompt": prompt_text(prompts, asked)}, "prompt")


def prompt_text(prompts: Mapping[str, str], asked: str) -> str:
    """The prompt of this name; empty for `none`; otherwise the text itself.

    A backslash followed by n becomes a line break, which is hard to type in a shell (`Instruct: ...\\nQuery: `).
    """
    if asked in prompts:
        return prompts[asked]
    if asked.isidentifier() and asked != NO_PROMPT:
        logger.warning(
            "prompt %r is put before every sentence as it is: the model has no prompt of this name (it has %s)",
            asked, ", ".join(prompts) or "none",
        )  # fmt: skip
    return "" if asked == NO_PROMPT else asked.replace(r"\n", "\n")


def prompts_of(modules: Modules, asked: str, folder: Path) -> tuple[dict[str, str], str | None]:
    """A checkpoint's prompts, with the requested one among them, and the name of the default; raises `InputError` if it has none."""
    prompts, default = modules.prompts, modules.default_prompt
    if asked:
        return with_asked(prompts, asked)
    if default in ROLES and default not in prompts:
        return prompts | {default: ""}, default  # sentence-transformers always has these two
    if default is not None and default not in prompts:
        raise InputError(f"{folder}: default_prompt_name {default!r} is not one of its prompts: {', '.join(prompts)}.")
    return prompts, default
