"""Teachers outside of JAX: your function, such as a service's API, and models that sentence-transformers runs on torch."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from jaxdistill.core import ROLES, Count, CountOrNone, InputError, alias
from jaxdistill.core.files import foreign_errors
from jaxdistill.core.paths import cache_folder
from jaxdistill.core.plugins import load_module, source_digests
from jaxdistill.core.runtime import Advance
from jaxdistill.data import targets
from jaxdistill.data.text import used_roles
from jaxdistill.models import outside
from jaxdistill.models.checkpoints.model import NO_PROMPT, prompt_text
from jaxdistill.models.model_text import sentence_roles
from jaxdistill.models.teacher import ModelContext, Prompting, TargetInputs
from jaxdistill.models.teachers.vectors import StoredVectors

BLOCK_ROWS = 1024  # rows in a block of the cache: fewer than for a model, because a service's vectors may cost money
functions: dict[str, Callable[..., Any]] = {}  # functions by the names that `Function.of` registers


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutsideVectors(StoredVectors):
    """Vectors that are computed once, by a function or a model outside of JAX; finished blocks are cached on disk."""

    dims: CountOrNone = 0
    """Width of the vectors, which a function must state. Above 0, those of a model are truncated to it."""

    texts_per_call = BLOCK_ROWS

    def vector_width(self) -> int:
        return self.dims or self.embed(["a"], "").shape[1]  # that of any text's vector

    def embed(self, texts: Sequence[str], role: str) -> Float[np.ndarray, "n e"]:
        """The vectors of at most `texts_per_call` texts of one `role`, which is empty for texts without a role."""
        raise NotImplementedError

    def width(self, widths: Sequence[int]) -> int:
        return super().width([self.vector_width()])

    def vectors(self, inputs: TargetInputs, view: str) -> Float[np.ndarray, "rows e"]:
        text = inputs.text
        width = self.vector_width()
        source = f"teacher.{self.source_option}={getattr(self, self.source_option)}"

        def embed_rows(rows: Sequence[int], advance: Advance) -> Float[np.ndarray, "n e"]:
            """The vectors of some rows, from calls of `embed` with texts of one role each."""
            vectors = np.zeros((len(rows), width), np.float32)
            roles = np.array(text.roles(view, rows))
            for role in dict.fromkeys(roles.tolist()):
                with_role = np.flatnonzero(roles == role)
                for begin in range(0, len(with_role), self.texts_per_call):
                    batch = with_role[begin : begin + self.texts_per_call]  # positions in `rows` and `vectors`
                    texts = [text.text(view, rows[position]) for position in batch]
                    failure = f"{source} failed at row {rows[batch[0]] + 1:,} of the text"
                    with foreign_errors(f"{failure}; run it again to continue after the last block"):
                        result = self.embed(texts, role)
                    if result.shape != (len(batch), width):
                        raise InputError(f"{source} gives {list(result.shape)} numbers, not {[len(batch), width]}.")
                    vectors[batch] = result
                    advance(len(batch))
            return vectors

        folder = cache_folder(inputs.data.cache_folder) / "targets"
        origin = f"{self.digest()} {text.content_digest} {inputs.data.roles} {view}"
        rows = cast(Any, range(text.rows))  # in place of texts, because `embed_rows` also reads their roles
        return targets.cached_vectors(
            folder, origin, embed_rows, rows, width,
            what=f"targets of {source}", progress=inputs.progress, block_rows=BLOCK_ROWS,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Function(OutsideVectors):
    """Your own function from a list of texts to an array with one vector for each text. If it has an argument `role`, it also gets
    `query`, `document` or an empty string. A resumed run calls it only for unfinished blocks."""

    kind: str = "function"
    function: str = dataclasses.field(default="", kw_only=False)
    """`FILE.py:NAME` or `MODULE:NAME`."""
    batch_size: Count = 64
    """Maximum texts per call; all of them have the same role."""

    source_option = "function"
    texts_per_call = alias("batch_size")

    @classmethod
    def of(cls, function: Callable[..., Any], *, name: str, **options: Any) -> "Function":
        """The teacher for a Python function. `name`, without a colon, identifies its cached vectors: change it when the vectors change."""
        functions[name] = function
        return cls(name, **options)

    def check(self) -> None:
        if not self.dims:
            raise InputError("teacher.dims=0: give the width of its vectors, such as --config.teacher.dims=768.")

    def load(self, context: ModelContext) -> tuple[()]:
        self._callable()  # raises an error for a missing function now, before any text is read
        return ()

    def digest(self) -> str:
        file, _, name = self.function.rpartition(":")
        code = source_digests([file])[file] if file else ""
        return f"function {code} {name} {self.dims}"

    def embed(self, texts: Sequence[str], role: str) -> Float[np.ndarray, "n e"]:
        function = self._callable()
        has_role = "role" in inspect.signature(function).parameters
        return np.asarray(function(texts, role=role) if has_role else function(texts), np.float32)

    def _callable(self) -> Callable[..., Any]:
        """The function, imported from its file or module, or registered by `of`."""
        file, _, name = self.function.rpartition(":")
        found = getattr(load_module(file), name, None) if file else functions.get(name)
        if not callable(found):
            raise InputError(f"teacher.function={self.function!r} is no function; give FILE.py:NAME or MODULE:NAME.")
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceTransformers(Prompting, OutsideVectors):
    """Any model that sentence-transformers loads, which computes its vectors of the text once, on torch."""

    kind: str = "sentence_transformers"
    model: str = dataclasses.field(default="", kw_only=False)
    """Folder, also at `s3://` or `gs://`, `package:NAME/PATH` or hub name."""
    max_length: CountOrNone = 0
    """Maximum tokens per sentence; 0: the checkpoint's."""
    batch_size: Count = 32
    """Sentences that are computed together."""
    trust_remote_code: bool = False
    """Run the Python files that come with the model, with all of your rights. Read them first."""

    def load(self, context: ModelContext) -> tuple[()]:
        self.check_prompts(used_roles(sentence_roles(context.data)), _loaded(self)[1], "teacher", self.model)
        return ()

    def digest(self) -> str:
        model, prompts = _loaded(self)
        settings = outside.content_digest(self.model), model.max_seq_length, self.dims, sorted(prompts.items())
        return f"sentence_transformers {settings}"

    def embed(self, texts: Sequence[str], role: str) -> Float[np.ndarray, "n e"]:
        model, prompts = _loaded(self)
        # Not only the prompts: a model may route the roles through different layers.
        encode = {"query": model.encode_query, "document": model.encode_document}.get(role, model.encode)
        return encode(texts, prompt=prompts[role], batch_size=self.batch_size, show_progress_bar=False)

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        arrays = super().stored(inputs)
        _loaded.cache_clear()  # the training needs its memory
        return arrays


@functools.lru_cache(maxsize=1)
def _loaded(options: SentenceTransformers) -> tuple[Any, dict[str, str]]:
    """The model, and the prompt of each role; the empty key is for sentences without a role."""
    model = outside.loaded(
        "SentenceTransformer", options.model, trust_remote_code=options.trust_remote_code, truncate_dim=options.dims or None
    )  # fmt: skip
    if options.max_length:
        model.max_seq_length = options.max_length
    chosen = {"": options.prompt, "query": options.query_prompt, "document": options.document_prompt}
    prompts: dict[str, str] = {}
    for role, default_names in {"": (model.default_prompt_name,), **ROLES}.items():  # a role's usual names
        default = next((name for name in default_names if name in model.prompts), NO_PROMPT)
        prompts[role] = prompt_text(model.prompts, chosen[role] or default)
    return model, prompts
