"""A teacher that sentence-transformers loads and runs on torch. The package of that name is imported in `models.outside`."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxdistill.core import ROLES, Count, CountOrNone
from jaxdistill.data import targets
from jaxdistill.data.text import used_roles
from jaxdistill.models import outside
from jaxdistill.models.checkpoints.model import NO_PROMPT, prompt_text
from jaxdistill.models.model_text import sentence_roles
from jaxdistill.models.teacher import ModelContext, OutsideVectors, Prompting, TargetInputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceTransformers(Prompting, OutsideVectors):
    """Any model that sentence-transformers loads, which computes its vectors of the text once, on torch."""

    kind: str = "sentence_transformers"
    model: str = dataclasses.field(default="", kw_only=False)
    """Folder, also at `s3://` or `gs://`, `package:NAME/PATH` or hub name."""
    max_length: CountOrNone = 0
    """Maximum tokens per sentence; 0: the checkpoint's."""
    dims: CountOrNone = 0
    """Above 0: truncates the teacher's vectors to this width."""
    batch_size: Count = 32
    """Sentences that are computed together."""
    trust_remote_code: bool = False
    """Run the Python files that come with the model, with all of your rights. Read them first."""

    def load(self, context: ModelContext) -> tuple[()]:
        self.check_prompts(used_roles(sentence_roles(context.data)), _loaded(self)[1], "teacher", self.model)
        return ()

    def vector_width(self) -> int:
        return self.embed(["a"], "").shape[1]

    def digest(self) -> str:
        model, prompts = _loaded(self)
        facts = outside.content_digest(self.model), model.max_seq_length, self.dims, sorted(prompts.items())
        return f"sentence_transformers {facts}"

    def embed(self, texts: Sequence[str], role: str) -> Float[np.ndarray, "n e"]:
        model, prompts = _loaded(self)
        # A model may route the roles through different layers.
        encode = {"query": model.encode_query, "document": model.encode_document}.get(role, model.encode)
        return encode(texts, prompt=prompts[role], batch_size=self.batch_size, show_progress_bar=False)

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        arrays = super().stored(inputs)
        _loaded.cache_clear()  # the training needs its memory
        return arrays


@functools.lru_cache(maxsize=1)
def _loaded(options: SentenceTransformers) -> tuple[Any, dict[str, str]]:
    """The model, and the prompt of each role; the empty key is for sentences without a role."""
    how = {"trust_remote_code": options.trust_remote_code, "truncate_dim": options.dims or None}
    model = outside.loaded("SentenceTransformer", options.model, **how)
    if options.max_length:
        model.max_seq_length = options.max_length
    chosen = {"": options.prompt, "query": options.query_prompt, "document": options.document_prompt}
    prompts: dict[str, str] = {}
    for role, names in {"": (model.default_prompt_name,), **ROLES}.items():
        first = next((name for name in names if name in model.prompts), NO_PROMPT)
        prompts[role] = prompt_text(model.prompts, chosen[role] or first)
    return model, prompts
