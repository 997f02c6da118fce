"""Base classes for the options of teachers: of any teacher, and of teachers that are models."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

from jax.typing import DTypeLike

from jaxdistill.core import CountOrNone, InputError, Objective, Precision
from jaxdistill.data import targets
from jaxdistill.data.options import Data
from jaxdistill.data.text import split_specs, used_roles
from jaxdistill.data.tokens import TokenStore
from jaxdistill.models.checkpoints.model import SentenceModel, load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.models.model_text import sentence_roles
from jaxdistill.models.outside import Reranker

Labeller = SentenceModel | Reranker  # a model that scores the pairs of the text

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelContext:
    """What a training's models are made from, besides their options."""

    data: Data
    student_views: Sequence[str]
    seed: int = 0
    precision: Precision = "auto"
    located: Callable[[str], str] = str
    """Maps the name of a model to its location: for an earlier stage, the folder of its student."""


class TargetInputs(NamedTuple):
    """What stored targets are made from."""

    text: TokenStore
    data: Data
    objective: Objective
    embedders: Sequence[Embedder]  # the models whose vectors are the targets
    labellers: Sequence[Labeller]
    compute_dtype: DTypeLike
    progress: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teacher:
    """The options of a teacher. A kind overrides what it does differently; everything but `kind` has a default."""

    kind: str
    """The kind of teacher: one of `jaxdistill/models/teachers`, or your own class as `my_file.py:MyTeacher`."""

    scores_pairs = False
    """Whether the targets are scores of sentence pairs, and not vectors."""
    of_rows = False
    """Whether targets belong to whole rows of the text's files, so that long rows cannot be split."""
    transforms = False
    """Whether targets are whitened or reduced, and so differ from the models' vectors."""
    source_option = "model"
    """The option that names the source of the targets."""
    models = ()
    """Names of its models, as in the options."""

    @property
    def target_sources(self) -> Sequence[str]:
        """Names of the models or files that the targets come from, as a model card shows them; empty if there are none."""
        source = getattr(self, self.source_option, self.kind)  # your own class may have no such option
        return self.models or ([source] if source else [])

    def check(self) -> None:
        """Raises `InputError` for options that exclude each other."""

    def digest(self) -> str:
        """A digest of what makes the targets, if neither a model from `load` or `labellers` does nor they are your own; otherwise empty."""
        return ""

    def load(self, context: ModelContext) -> tuple[SentenceModel, ...]:
        """The models whose vectors are the targets."""
        return ()

    def labellers(self, context: ModelContext) -> Sequence[Labeller]:
        """The models that score the pairs of the text."""
        return []

    def width(self, widths: Sequence[int]) -> int:
        """Width of the targets, from the widths of the models' vectors; 0 if the targets are not vectors."""
        return 0 if self.scores_pairs else sum(widths)

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        """The targets, one array per teacher view, with one row per row of the text; empty if they are not stored."""
        return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompting:
    """The prompts prepended to a model's sentences; of teachers and students."""

    prompt: str = ""
    """Prompt of every sentence without a role: the name of one of the checkpoint's prompts, or a text, in which `\\n` is a
    line break; `none`: no prompt; empty: the default prompt of the checkpoint or of an earlier stage's student. A student's
    export lists it among its prompts."""
    query_prompt: str = ""
    """Prompt of queries (see `data.roles`): the name of one of the checkpoint's prompts, or a text; `none`: no prompt; empty:
    the checkpoint's prompt `query`, if it has one. A student's export stores it as its prompt `query`."""
    document_prompt: str = ""
    """The same for documents; empty: the checkpoint's prompt `document`, `passage` or `corpus`, if any. Exported as `document`."""

    def prompted(self, data: Data, model: SentenceModel, section: str) -> SentenceModel:
        """The model with these prompts; raises `InputError`, naming the config's `section`, for a prompt of a role that no text has."""
        model = model.with_prompt(self.prompt) if self.prompt else model
        used = () if model.definition.reads_pairs else used_roles(sentence_roles(data))  # a cross-encoder has no roles
        if used:
            model = model.with_role_prompts({role: getattr(self, f"{role}_prompt") for role in used})
        self.check_prompts(used, model.role_prompts, section, model.source)
        return model

    def check_prompts(self, used: Sequence[str], prompts: Mapping[str, str], section: str, source: str) -> None:
        """Logs the prompt of each role in `used`; raises `InputError` if an option has a prompt for another role."""
        for role, prompt in {"query": self.query_prompt, "document": self.document_prompt}.items():
            if prompt and role not in used:
                raise InputError(
                    f"{section}.{role}_prompt={prompt!r} is for sentences with the role {role}, of which {source} reads none; "
                    f"leave it empty, or set --config.data.roles={role}, or one role for each source or column."
                )
        for role in used:
            log.info("%s: the prompt of a %s is %r", section, role, prompts[role])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder(Prompting, Teacher):
    """A model that computes targets."""

    model: str = dataclasses.field(default="", kw_only=False)
    """Folder, also at `s3://` or `gs://`, `package:NAME/PATH`, hub name, or an earlier stage (`previous`, `stage2`). Empty if the objective
    needs no teacher. The kinds `stored` and `labels` take several models, separated by commas; `pooling`, `prompt`, `query_prompt` and
    `document_prompt` then apply to all of them or list one value per model, separated by `|`: `--config.teacher.prompt="none|query: "`."""
    pooling: str = ""
    """Pooling of token states, such as `mean` or `cls`; empty: the checkpoint's. Required if it states none."""
    max_length: CountOrNone = 0
    """Maximum tokens per sentence; longer sentences are truncated. 0: the checkpoint's."""

    @property
    def models(self) -> Sequence[str]:
        return split_specs(self.model)

    def per_model(self) -> list[Self]:
        """The options of each model in `model`. Raises `InputError` unless each option has one value, or one per model."""
        count = len(self.models)
        values = {}  # maps each option to a list, one value per model
        for option in ("pooling", "prompt", "query_prompt", "document_prompt"):
            text = getattr(self, option)
            parts = text.split("|") if count > 1 else [text]  # a single model's prompt may contain the separator
            if len(parts) not in (1, count):
                raise InputError(f"teacher.{option}={text!r} must be one value, or {count} separated by |.")
            values[option] = parts if len(parts) == count else parts * count
        models = []
        for index, name in enumerate(self.models):
            options = {option: parts[index] for option, parts in values.items()}
            models.append(dataclasses.replace(self, model=name, **options))
        return models

    def read(self, context: ModelContext, *, frozen: bool) -> SentenceModel:
        """Loads the model, with its prompts; `frozen` keeps weights in the stored dtype."""
        model = load_model(context.located(self.model), pooling=self.pooling, max_length=self.max_length, frozen=frozen)
        return self.prompted(context.data, model, "teacher")
