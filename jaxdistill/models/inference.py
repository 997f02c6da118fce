"""Turns sentences into vectors, and pairs into scores, outside of training.

Sentences are grouped by length and padded to one of a few shapes, so that little padding is computed and few shapes are
compiled. Up to rounding, results do not depend on the order of the sentences.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial, partialmethod
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.core import Array, Embed, InputError, PairScorer, Params, Precision, Tokens, did_you_mean, platform
from jaxdistill.core.cluster.mesh import batch_devices, batch_sharding, make_mesh, place, place_frozen, replicated
from jaxdistill.core.ops.dense import dtype_of
from jaxdistill.core.runtime import Advance, counted
from jaxdistill.data.packing import pad
from jaxdistill.encoders.architecture import EncoderDefinition
from jaxdistill.encoders.sentence import embed, embed_tokens
from jaxdistill.models.checkpoints.model import NO_PROMPT, SentenceModel, check_size, load_model
from jaxdistill.models.outside import Reranker
from jaxdistill.models.vectors import similarities, unit_rows

LENGTHS = (6, 8, *(steps * step for step in (2, 4, 8, 16, 32, 64) for steps in range(5, 9)))
"""Padded lengths on CPUs, four per doubling; longer sentences are padded to a multiple of the last one, 512."""
FEWER_LENGTHS = (16, *(steps * step for step in (8, 16, 32, 64, 128) for steps in (3, 4)))
"""Padded lengths on GPUs and TPUs, two per doubling: compiling a length takes seconds there, computing padding milliseconds."""
SERVED = (16, 32, 64, 128, 256, 512)
"""Padded lengths of requests of at most 8 sentences, because each is compiled."""
SLOTS_PER_SENTENCE = 32
"""A batch has at most `batch_size * SLOTS_PER_SENTENCE` token slots, so it holds more short sentences than long ones."""


class TokenVectors(NamedTuple):
    """The vectors of a sentence's tokens."""

    vectors: Float[np.ndarray, "t e"]
    """Before pooling; of special tokens and the prompt too, because poolings count them."""
    offsets: Integer[np.ndarray, "t 2"]
    """First character of each token in the sentence, and the one after its last; (0, 0) for special tokens and the prompt."""


class Embedder:
    """A model ready for use: `encode(sentences)` gives float32 [n, e], and `score(first, second)` scores pairs."""

    def __init__(
        self,
        model: SentenceModel,
        *,
        mesh: Mesh | None = None,
        compute_dtype: DTypeLike = jnp.float32,
        batch_size: int = 128,
        params: Params | None = None,
        shardings: Mapping[str, NamedSharding] | None = None,
    ):
        """`mesh` defaults to this process's devices; `params`, already on it, stand for the model's; those without `shardings` are
        replicated."""
        self.model = model
        self.mesh = mesh or make_mesh(devices=jax.local_devices())
        self._shardings = shardings
        if params is not None:
            self.params = params
        self.batch_size = batch_size
        # A static table has no matrix products that a shorter dtype would speed up.
        self.compute_dtype = jnp.dtype(jnp.float32 if model.definition.architecture.is_static else compute_dtype)

    @cached_property
    def params(self) -> Params:
        """Parameters on the mesh; the model's are placed there on first use."""
        params = self.model.frozen_params(self.mesh)
        shardings = self._shardings or dict.fromkeys(params, replicated(self.mesh))
        return place_frozen(params, shardings, self.compute_dtype)

    @property
    def width(self) -> int:
        """Width of the vectors."""
        return self.model.definition.embedding_width

    def prefix(self, prompt_name: str | None = None, role: str = "", *, prompt: str | None = None) -> str:
        """The text to prepend to each sentence: `prompt` if given, else the prompt of `role`, else the one named `prompt_name`
        (None: the default prompt; empty: no prompt). Raises `InputError` for an unknown prompt or role, or for a cross-encoder."""
        model = self.model
        if model.definition.reads_pairs:
            raise InputError(f"{model.source} is a cross-encoder: it has no vectors of sentences; score pairs.")
        if prompt is not None:
            return prompt
        texts = model.role_prompts if role else {"": "", NO_PROMPT: ""} | model.prompts
        name = role or (model.default_prompt if prompt_name is None else prompt_name) or ""
        if name not in texts:
            what, names = "role" if role else "prompt", list(filter(None, texts))
            raise InputError(
                f"{what} {name!r} is unknown to {model.source}; it has: {', '.join(names)}.{did_you_mean(name, names)}"
            )
        return texts[name]

    def encode(
        self,
        sentences: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        role: str | Sequence[str] | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | str | Advance = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        params: Params | None = None,
        output: Literal["sentences", "tokens"] = "sentences",
    ) -> Any:
        """Vectors of `sentences`, float32 `[n, e]`, in their order; for a single string, one vector `[e]`.

        >>> model.encode(["A cat sleeps.", "It rains."]).shape, model.encode("A cat sleeps.", truncate_dim=4).shape
        ((2, 16), (4,))

        Args:
          sentences: any number; truncated to the model's `max_length`.
          prompt_name: name of one of the model's prompts; None: its default one, if it has one; empty or `none`: no prompt.
          prompt: the text itself to prepend to each sentence, instead of a named one or a role's; empty: no prompt.
          role: `query` or `document`, for the model's prompt of this role, or one for each sentence; None or empty: no role.
          batch_size: number of sentences of 32 tokens computed together; of shorter ones, more. None: as loaded.
          show_progress_bar: show a bar; a string is its title; a function is called with counts of finished sentences.
          normalize_embeddings: return vectors of unit length; applies after truncation.
          truncate_dim: return only this many leading dimensions, for a model trained with nested widths; None: all.
          params: other parameters of the same model, on the same mesh (a student in training).
          output: `tokens`: a list of `TokenVectors`, one per sentence; for a single string, one.

        Raises:
          InputError: a sentence is no string, a prompt, role or dimension is not the model's, or it has no such vectors.
        """
        texts = _checked([sentences] if isinstance(sentences, str) else sentences, "encode")
        roles = [role or ""] * len(texts) if isinstance(role, str | None) else role
        prefix_of_role = {name: self.prefix(prompt_name, name, prompt=prompt) for name in dict.fromkeys(roles)}
        prompted = [prefix_of_role[name] + text for name, text in zip(roles, texts, strict=True)]
        if truncate_dim is not None:
            check_size("truncate_dim", truncate_dim, self.width, "the width of the vectors")

        def truncated(vectors: Float[np.ndarray, "n _"]) -> Float[np.ndarray, "n _"]:
            vectors = vectors[:, :truncate_dim]
            return unit_rows(vectors).astype(np.float32) if normalize_embeddings else vectors

        tokens = output == "tokens"
        if tokens and self.model.definition.dense and not self.model.definition.dense_on_tokens:
            raise InputError(f"{self.model.source}: its head is not linear, so it has no vectors of tokens.")
        ids, offsets = [], []
        for name, encoding in zip(roles, self.model.encodings(prompted, offsets=tokens), strict=True):
            ids.append(np.asarray(encoding.ids, np.int32))
            if tokens:
                offsets.append(np.maximum(np.array(encoding.offsets, np.int64) - len(prefix_of_role[name]), 0))
        with counted(len(ids), "sentences", shown=show_progress_bar) as advance:
            vectors = self.encode_ids(ids, advance=advance, params=params, batch_size=batch_size, tokens=tokens)
        result = list(map(TokenVectors, map(truncated, vectors), offsets)) if tokens else truncated(vectors)
        return result[0] if isinstance(sentences, str) else result

    encode_query = partialmethod(encode, role="query")
    """Vectors of queries: `encode` in the role `query`, with its other options."""
    encode_document = partialmethod(encode, role="document")
    """Vectors of documents: `encode` in the role `document`, with its other options."""

    def similarity(self, first: Any, second: Any) -> Float[np.ndarray, "n k"]:
        """Cosine, in [-1, 1], of each vector of `first` with each of `second`, or the dot product if the model's checkpoint says
        so (`similarity_fn_name`); a single vector counts as one row.

        >>> vectors = model.encode(["A cat sleeps.", "It rains."])
        >>> model.similarity(vectors[0], vectors).shape
        (1, 2)
        """
        left, right = (np.atleast_2d(np.asarray(side, np.float64)) for side in (first, second))
        if self.model.definition.similarity == "dot":
            return (left @ right.T).astype(np.float32)
        return np.clip(unit_rows(left) @ unit_rows(right).T, -1.0, 1.0).astype(np.float32)

    def score(
        self,
        first: Sequence[str],
        second: Sequence[str],
        *,
        logits: bool = False,
        show_progress_bar: bool | str | Advance = False,
        params: Params | None = None,
    ) -> Float[np.ndarray, " n"]:
        """Similarity of the two sentences of each pair: cosine in [-1, 1], or a cross-encoder's score in (0, 1).

        A sentence encoder reads each distinct sentence once. A cross-encoder reads the pair as one sequence, after the
        model's prompt if it has one, and truncates the longer sentence of a pair that is too long (`longest_first`). Its
        scores are float64, so that large logits still rank as scores.

        Args:
          logits: return a cross-encoder's logits (float32) instead of their sigmoids; cosines stay cosines.
          show_progress_bar, params: as in `encode`.
        """
        model, first, second = self.model, _checked(first, "score"), _checked(second, "score")
        if not model.definition.reads_pairs:
            embed = partial(self.encode, show_progress_bar=show_progress_bar, params=params)
            return similarities(embed, first, second).astype(np.float32)
        pairs = [(model.prompt + one, other) for one, other in zip(first, second, strict=True)]
        ids, firsts = [], []
        for encoding in self.model.encodings(pairs):
            ids.append(np.asarray(encoding.ids, np.int32))
            firsts.append(encoding.type_ids.count(0))  # tokens of the first sentence
        with counted(len(ids), "sentences", shown=show_progress_bar) as advance:
            scores = self.encode_ids(ids, firsts=np.array(firsts, np.int64), advance=advance, params=params)[:, 0]
        return scores if logits else np.exp(-np.logaddexp(0.0, -scores.astype(np.float64)))

    def as_embed(self, params: Params | None = None, *, progress: bool | str = False) -> Embed:
        """The model as evaluations use it: the function `encode`, or, for a cross-encoder, a scorer of pairs."""
        if self.model.definition.reads_pairs:
            return PairScorer(partial(self.score, params=params, show_progress_bar=progress), self.encode)
        return partial(self.encode, params=params, show_progress_bar=progress)

    def warm_up(self, longest: int = SERVED[-1]) -> None:
        """Compiles the shapes of single-sentence requests of at most `longest` tokens; longer ones compile on first use."""
        longest = min(longest, self.model.max_length)
        for tokens in sorted({min(length, longest) for length in SERVED}):
            firsts = np.array([tokens]) if self.model.definition.reads_pairs else None
            self.encode_ids([np.zeros(tokens, np.int32)], firsts=firsts)

    def encode_ids(
        self,
        ids: Sequence[np.ndarray],
        *,
        firsts: Integer[np.ndarray, " n"] | None = None,
        advance: Advance = lambda rows: None,
        params: Params | None = None,
        batch_size: int | None = None,
        tokens: bool = False,
    ) -> Any:
        """Like `encode`, for tokenised sentences with special tokens; `advance` is called with each batch's row count.

        For pairs, `firsts` holds the token count of each first sentence, and the result is logits `[n, 1]`. With `tokens`, it is a
        list of the vectors of each sentence's tokens.
        """
        params = self.params if params is None else params
        function = make_embed(self.model.definition, self.mesh, self.compute_dtype, tokens=tokens)
        batches = self._batches(ids, firsts, self.batch_size if batch_size is None else batch_size)
        running = ((rows, function(params, batch)) for rows, batch in batches)
        results: Any = [None] * len(ids) if tokens else np.zeros((len(ids), self.width), np.float32)
        # `pairwise` dispatches the next batch before this one is fetched; the extra item makes a pair of the last batch.
        for (rows, result), _ in pairwise(chain(running, [((), None)])):
            vectors = np.asarray(result)[: len(rows), 0]  # each group holds one sentence
            if tokens:
                for row, each in zip(rows, vectors, strict=True):
                    results[row] = each[: len(ids[row])].copy()  # a slice would hold the whole batch with its padding
            else:
                results[rows] = vectors
            advance(len(rows))
        return results

    def _batches(self, ids: Sequence[np.ndarray], firsts: Integer[np.ndarray, " n"] | None, size: int):
        """Yields, for each batch, the indices of its sentences and their padded tokens.

        The longest come first, so that a lack of memory shows at once.
        """
        order = np.argsort([-len(sentence) for sentence in ids], kind="stable")
        devices = batch_devices(self.mesh)
        lengths = SERVED if len(ids) <= 8 else LENGTHS if platform(self.mesh) == "cpu" else FEWER_LENGTHS
        start = 0
        while start < len(order):
            # The next of the padded lengths, but at most the model's.
            longest = len(ids[order[start]])
            length = next((length for length in lengths if length >= longest), -(-longest // lengths[-1]) * lengths[-1])
            length = max(min(length, self.model.max_length), longest)
            full = max(size * SLOTS_PER_SENTENCE // length, 1)
            rows = order[start : start + full]
            # Few counts, as each is compiled: the next power of two, at most a full batch, rounded up to a multiple of the devices.
            count = -(-min(1 << (len(rows) - 1).bit_length(), full) // devices) * devices
            tokens = pad(
                [ids[row] for row in rows], length=length, count=count, pad_id=self.model.definition.architecture.pad_id,
                firsts=None if firsts is None else firsts[rows],
            )  # fmt: skip
            yield rows, place(tokens, batch_sharding(self.mesh))
            start += full


def ensemble(members: Sequence[Embedder], *, progress: bool = False) -> PairScorer:
    """Scores pairs by the mean of the scores of several models of one kind (Trans-Encoder, arXiv 2109.13059, Table 1)."""
    refuse_mixed([member.model for member in members])

    def score(first: Sequence[str], second: Sequence[str]) -> Float[np.ndarray, " n"]:
        scores = [member.score(first, second, show_progress_bar=progress) for member in members]
        return np.stack(scores).mean(axis=0, dtype=np.float64)

    def encode(sentences: Sequence[str]):
        names = "+".join(member.model.source for member in members)
        raise InputError(f"{names} is an ensemble: it has no vectors of sentences; score pairs.")

    return PairScorer(score, encode)


def refuse_mixed(models: Sequence[SentenceModel | Reranker]) -> None:
    """Raises `InputError` if sentence encoders and cross-encoders are mixed: their scores have different scales."""
    if len({isinstance(model, Reranker) or model.definition.reads_pairs for model in models}) > 1:
        names = "+".join(model.source for model in models)
        raise InputError(f"{names} mixes sentence encoders and cross-encoders; name models of one kind.")


def _checked(column: Any, caller: str) -> list[str]:
    """The sentences as a list; raises `InputError` for a single string, a table, or anything but strings."""
    # `list` of a pyarrow column would hold pyarrow's scalars.
    texts = column.to_pylist() if hasattr(column, "to_pylist") else list(column)
    # Iterating over a string, a set or a table gives strings too, but no sentences in order.
    is_list = not (isinstance(column, str | set | frozenset) or hasattr(column, "columns"))
    wrong = [text for text in texts if not isinstance(text, str)] if is_list else [column]
    if wrong:
        raise InputError(f"{caller} takes a list or a column of texts, not {type(wrong[0]).__name__} {wrong[0]!r:.40}.")
    return texts


def load(
    model: str | Path,
    *,
    pooling: str = "",
    max_length: int = 0,
    prompt: str = "",
    batch_size: int = 128,
    precision: Precision = "auto",
    plugins: str | Path | Sequence[str | Path] = "",
) -> Embedder:
    """Loads a model from a folder (also at `s3://` or `gs://`), `package:NAME/PATH` or a hub name, ready for use.

    >>> jaxdistill.load(TEACHER, max_length=16).encode("A cat sleeps.").shape
    (16,)

    Args:
      model: an export of this project, or any sentence-transformers or Hugging Face checkpoint of a known family.
      pooling: required if the checkpoint does not state its pooling.
      max_length: maximum tokens per sentence; 0: the checkpoint's.
      prompt: the default prompt: the name of one of the model's prompts, or the text itself.
      batch_size: number of sentences of 32 tokens that are computed together.
      precision: precision of matrix products. `auto`: bfloat16 if the hardware multiplies it natively; `float32` equals
        sentence-transformers' vectors to 1e-5. Vectors are float32 either way.
      plugins: your own modules or files that define the model's family (docs/extending.md).
    """
    files = ",".join(map(str, [plugins] if isinstance(plugins, str | Path) else plugins))
    loaded = load_model(str(model), pooling=pooling, max_length=max_length, prompt=prompt, plugins=files)
    return Embedder(loaded, batch_size=batch_size, compute_dtype=dtype_of(precision))


@lru_cache(maxsize=16)
def make_embed(
    definition: EncoderDefinition, mesh: Mesh, compute_dtype: DTypeLike, *, tokens: bool = False
) -> Callable[[Params, Tokens], Array]:
    """A jitted function of (parameters, batch) that gives sentence vectors `[g, n, e]` without dropout; with `tokens`, the vectors
    of tokens `[g, r, l, e]`. Groups are split over the mesh, and every process gets all vectors."""
    function = embed_tokens if tokens else embed

    def embed_batch(params: Params, tokens: Tokens) -> Array:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(definition, params, tokens, compute_dtype=compute_dtype)

    return jax.jit(embed_batch, in_shardings=(None, batch_sharding(mesh)), out_shardings=replicated(mesh))
