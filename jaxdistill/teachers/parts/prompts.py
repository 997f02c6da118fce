"""Prompt options of teachers and students, and how they apply to the roles of the text."""

import dataclasses
import logging
from collections.abc import Sequence

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.config import Data
from jaxdistill.core import InputError
from jaxdistill.data.text import used_roles
from jaxdistill.reading import sentence_roles

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompting:
    """The prompts prepended to a model's sentences."""

    prompt: str = ""
    """Prompt of every sentence without a role: the name of one of the checkpoint's prompts, or a text, in which `\\n` is a
    line break; `none`: no prompt; empty: the default prompt of the checkpoint or of an earlier stage's student. A student's
    export lists it among its prompts."""
    query_prompt: str = ""
    """Prompt of queries (see `data.roles`): the name of one of the checkpoint's prompts, or a text; `none`: no prompt; empty:
    the checkpoint's prompt `query`, if it has one. A student's export stores it as its prompt `query`."""
    document_prompt: str = ""
    """The same for documents; empty: the checkpoint's prompt `document`, `passage` or `corpus`, if it has one. A student's
    export stores it as its prompt `document`."""

    @property
    def of_roles(self) -> dict[str, str]:
        """Maps each role to the option's value."""
        return {"query": self.query_prompt, "document": self.document_prompt}

    def prompted(self, data: Data, model: SentenceModel, section: str) -> SentenceModel:
        """The model with its prompts for the roles that occur in the text; logs them.

        Args:
          section: `teacher` or `student`, for errors.

        Raises:
          InputError: a prompt for a role that no sentence has, or for a cross-encoder.
        """
        used = used_roles(sentence_roles(data))
        if model.definition.reads_pairs:
            for role, prompt in self.of_roles.items():
                if prompt:
                    raise InputError(
                        f"{section}.{role}_prompt={prompt!r} is for sentence encoders, but {model.source} is a cross-encoder; leave "
                        "it empty."
                    )
            return model
        for role, prompt in self.of_roles.items():
            if prompt and role not in used:
                raise InputError(
                    f"{section}.{role}_prompt={prompt!r} is for sentences with the role {role}, which none has; set "
                    f"--config.data.roles={role}, or one role for each source or column."
                )
        if not used:
            return model
        model = model.with_role_prompts({role: self.of_roles[role] for role in used})
        for role in used:
            log.info("%s: the prompt of a %s is %r", section, role, model.role_prompts[role])
        return model


def check_roles(data: Data, models: Sequence[SentenceModel]) -> None:
    """Raises `InputError` if the text has roles but no model has a prompt for any of them."""
    used = used_roles(sentence_roles(data))
    if used and all(model.role_prompts[role] == model.prompt for role in used for model in models):
        raise InputError(
            f"data.roles={data.roles} has no effect: neither teacher nor student has its own prompt for the role "
            f"{' or '.join(used)}; set --config.teacher.{used[0]}_prompt or --config.student.{used[0]}_prompt."
        )
