"""Gives teacher and student their prompts for the roles of the text."""

import logging
from collections.abc import Sequence

from jaxdistill.config import Config, Student, Teacher
from jaxdistill.core import InputError
from jaxdistill.data import roles
from jaxdistill.encoders.model import SentenceModel
from jaxdistill.training.text import sentence_roles

log = logging.getLogger(__name__)


def with_role_prompts(config: Config, model: SentenceModel, section: str) -> SentenceModel:
    """The model with its prompts for the roles that occur in the text; logs them.

    Args:
      section: `teacher` or `student`, whose options ask for prompts.

    Raises:
      InputError: a prompt for a role that no sentence has, or for a cross-encoder.
    """
    spec = getattr(config, section)
    wanted = _asked(spec)
    used = roles.used_roles(sentence_roles(config.data))
    if model.definition.reads_pairs:
        refuse_role_prompts(spec, section, f"is for sentence encoders; {model.source} is a cross-encoder")
        return model
    for role, prompt in wanted.items():
        if prompt and role not in used:
            raise InputError(
                f"{section}.{role}_prompt={prompt!r} is for sentences with the role {role}, which none has; set "
                f"--config.data.roles={role}, or one role for each source or column."
            )
    if not used:
        return model
    model = model.with_role_prompts({role: wanted[role] for role in used})
    for role in used:
        log.info("%s: the prompt of a %s is %r", section, role, model.role_prompts[role])
    return model


def refuse_role_prompts(spec: Teacher | Student, section: str, why: str) -> None:
    """Raises `InputError` if a prompt for a role is asked for."""
    for role, prompt in _asked(spec).items():
        if prompt:
            raise InputError(f"{section}.{role}_prompt={prompt!r} {why}; leave it empty.")


def check_roles(config: Config, models: Sequence[SentenceModel]) -> None:
    """Raises `InputError` if the text has roles, and every model reads them as sentences without a role."""
    used = roles.used_roles(sentence_roles(config.data))
    if used and all(model.role_prompts[role] == model.prompt for role in used for model in models):
        raise InputError(
            f"data.roles={config.data.roles} has no effect: neither teacher nor student has a prompt of its own for the role "
            f"{' or '.join(used)}; set --config.teacher.{used[0]}_prompt or --config.student.{used[0]}_prompt."
        )


def _asked(spec: Teacher | Student) -> dict[str, str]:
    """Each role to the prompt that is asked for it."""
    return {"query": spec.query_prompt, "document": spec.document_prompt}
