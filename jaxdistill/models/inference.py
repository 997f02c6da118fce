"""Turns sentences into vectors, and pairs into scores, outside of training.

Sentences are grouped by length and padded to one of a few shapes, so that little padding is computed and few shapes are
compiled. Up to rounding, results do not depend on the order of the sentences.
"""

import math
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
from jaxdistill.models.vectors import sigmoid, similarities, unit_rows

LENGTHS = (6, 8, *(count * unit for unit in (2, 4, 8, 16, 32, 64) for count in (5, 6, 7, 8)))
"""Padded lengths on CPUs, four per doubling. Sentences above 512, the last one, are padded to a multiple of it."""
FEWER_LENGTHS = (16, *(count * unit for unit in (8, 16, 32, 64, 128) for count in (3, 4)))
"""Padded lengths on GPUs and TPUs, two per doubling: there, compiling takes seconds and computing padding milliseconds."""
SERVING_LENGTHS = (16, 32, 64, 128, 256, 512)
"""Padded lengths in calls with at most 8 sentences: few, because each length is compiled."""
SLOTS_PER_SENTENCE = 32
"""A batch has at most `batch_size * SLOTS_PER_SENTENCE` token slots, so it holds more short sentences than long ones."""


class TokenVectors(NamedTuple):
    """The vectors of a sentence's tokens."""

    vectors: Float[np.ndarray, "t e"]  # before pooling; also of special tokens and the prompt, which poolings count
    offsets: Integer[np.ndarray, "t 2"]
    """Begin and end of each token in the sentence, in characters; (0, 0) for special tokens and the prompt."""


class Embedder:
    """A loaded model: `encode(sentences)` gives vectors, float32 `[n, e]`, and `score(first, second)` scores pairs."""

    def __init__(
        self,
        model: SentenceModel,
        *,
        mesh: Mesh | None = None,
        compute_dtype: DTypeLike = jnp.float32,
        batch_size: int = 128,
        shardings: Mapping[str, NamedSharding] | None = None,
    ):
        """Prepares `model` for `mesh`, by default this process's devices. `shardings` maps the path of each parameter to its layout on
        the mesh; None: parameters are replicated."""
        self.model = model
        self.mesh = mesh or make_mesh(devices=jax.local_devices())
        self._shardings = shardings
        self.batch_size = batch_size
        # A static table has no matrix products that a shorter dtype would speed up.
        self.compute_dtype = jnp.dtype(jnp.float32 if model.definition.architecture.is_static else compute_dtype)

    @cached_property
    def params(self) -> Params:
        """Parameters on the mesh, copied to it on first use."""
        params = self.model.frozen_params(self.mesh)
        shardings = self._shardings or dict.fromkeys(params, replicated(self.mesh))
        return place_frozen(params, shardings, self.compute_dtype)

    @property
    def width(self) -> int:
        return self.model.definition.embedding_width

    def prefix(self, prompt_name: str | None = None, role: str = "", *, prompt: str | None = None) -> str:
        """The text to prepend to each sentence: `prompt`, or else the prompt of `role`, or else the one named `prompt_name`.
        `prompt_name` None is the default prompt, an empty name no prompt. Raises `InputError` for unknown names, and cross-encoders."""
        model = self.model
        if model.definition.reads_pairs:
            raise InputError(f"{model.source} is a cross-encoder: it has no vectors of sentences; score pairs.")
        if prompt is not None:
            return prompt
        if role:
            kind, name, texts = "role", role, model.role_prompts
        else:
            name = (model.default_prompt or "") if prompt_name is None else prompt_name
            kind, texts = "prompt", {"": "", NO_PROMPT: ""} | model.prompts
        if name not in texts:
            available = [text_name for text_name in texts if text_name]
            hint = did_you_mean(name, available)
            raise InputError(f"{kind} {name!r} is unknown to {model.source}; it has: {', '.join(available)}.{hint}")
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
          prompt: a text to prepend to each sentence; overrides `prompt_name` and `role`. Empty: no prompt.
          role: `query` or `document`, to use the model's prompt of this role; or a role for each sentence. None: no role.
          batch_size: number of sentences of 32 tokens computed together; of shorter sentences, more. None: as in `load`.
          show_progress_bar: True: show a bar; a string: its title; a function: called with counts of finished sentences.
          normalize_embeddings: return vectors of unit length; applies after truncation.
          truncate_dim: return only this many leading dimensions, for a model trained with nested widths; None: all.
          params: other parameters of the same model, on the same mesh (a student in training).
          output: `tokens`: return a list of `TokenVectors`, one per sentence; for a single string, one.

        Raises:
          InputError: a sentence is not a string, roles are missing, or the model has no such prompt, role, dimension or vectors.
        """
        texts = _checked([sentences] if isinstance(sentences, str) else sentences, "encode")
        roles = [role or ""] * len(texts) if isinstance(role, str | None) else role
        if len(roles) != len(texts):
            raise InputError(f"encode takes one role, or a role for each sentence; got {len(roles)} for {len(texts)}.")
        prefix_of_role = {name: self.prefix(prompt_name, name, prompt=prompt) for name in dict.fromkeys(roles)}
        prompted = [prefix_of_role[name] + text for name, text in zip(roles, texts, strict=True)]
        wants_tokens = output == "tokens"
        if wants_tokens and self.model.definition.dense and not self.model.definition.dense_on_tokens:
            raise InputError(f"{self.model.source}: its head is not linear, so it has no vectors of tokens.")
        if truncate_dim is not None:
            check_size("truncate_dim", truncate_dim, self.width, "the width of the vectors")

        def postprocessed(vectors: Float[np.ndarray, "n _"]) -> Float[np.ndarray, "n _"]:
            vectors = vectors[:, :truncate_dim]  # all if it is None
            return unit_rows(vectors).astype(np.float32) if normalize_embeddings else vectors

        ids, offsets = [], []
        for name, encoding in zip(roles, self.model.encodings(prompted, offsets=wants_tokens), strict=True):
            ids.append(np.asarray(encoding.ids, np.int32))
            if wants_tokens:  # the offsets are counted from the sentence's first character, after its prefix
                offsets.append(np.maximum(np.array(encoding.offsets, np.int64) - len(prefix_of_role[name]), 0))
        with counted(len(ids), "sentences", shown=show_progress_bar) as advance:
            vectors = self.encode_ids(ids, advance=advance, params=params, batch_size=batch_size, tokens=wants_tokens)
        if wants_tokens:
            result = [TokenVectors(postprocessed(rows), spans) for rows, spans in zip(vectors, offsets, strict=True)]
        else:
            result = postprocessed(vectors)
        return result[0] if isinstance(sentences, str) else result

    encode_query = partialmethod(encode, role="query")
    """Vectors of queries: `encode` in the role `query`, with its other options."""
    encode_document = partialmethod(encode, role="document")
    """Vectors of documents: `encode` in the role `document`, with its other options."""

    def similarity(self, first: Any, second: Any) -> Float[np.ndarray, "n k"]:
        """Similarity of each vector of `first`, `[n, e]`, with each of `second`, `[k, e]`. A single vector counts as one row.
        It is the cosine, in [-1, 1], or the dot product if the checkpoint's `similarity_fn_name` says so.

        >>> vectors = model.encode(["A cat sleeps.", "It rains."])
        >>> model.similarity(vectors[0], vectors).shape
        (1, 2)
        """
        left = np.atleast_2d(np.asarray(first, np.float64))
        right = np.atleast_2d(np.asarray(second, np.float64))
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
        first = _checked(first, "score")
        second = _checked(second, "score")
        if len(first) != len(second):
            raise InputError(f"score takes pairs, not {len(first)} first and {len(second)} second sentences.")
        if not self.model.definition.reads_pairs:
            encode = partial(self.encode, show_progress_bar=show_progress_bar, params=params)
            return similarities(encode, first, second).astype(np.float32)
        pairs = [(self.model.prompt + left, right) for left, right in zip(first, second, strict=True)]
        ids, first_lengths = [], []
        for encoding in self.model.encodings(pairs):
            ids.append(np.asarray(encoding.ids, np.int32))
            first_lengths.append(encoding.type_ids.count(0))  # all, if the tokenizer has no types
        with counted(len(ids), "sentences", shown=show_progress_bar) as advance:
            lengths = np.array(first_lengths, np.int64)
            scores = self.encode_ids(ids, first_lengths=lengths, advance=advance, params=params)[:, 0]
        return scores if logits else sigmoid(scores)

    def as_embed(self, params: Params | None = None, *, progress: bool | str = False) -> Embed:
        """The model as evaluations use it: the function `encode`, or for a cross-encoder, a scorer of pairs without vectors."""
        if self.model.definition.reads_pairs:
            return PairScorer(partial(self.score, params=params, show_progress_bar=progress), self.encode)
        return partial(self.encode, params=params, show_progress_bar=progress)

    def warm_up(self, longest: int = SERVING_LENGTHS[-1]) -> None:
        """Compiles the shapes of single-sentence requests of at most `longest` tokens; longer ones compile on first use."""
        longest = min(longest, self.model.max_length)
        for length in sorted({min(length, longest) for length in SERVING_LENGTHS}):
            first_lengths = np.array([length]) if self.model.definition.reads_pairs else None
            self.encode_ids([np.zeros(length, np.int32)], first_lengths=first_lengths)

    def encode_ids(
        self,
        ids: Sequence[np.ndarray],
        *,
        first_lengths: Integer[np.ndarray, " n"] | None = None,
        advance: Advance = lambda rows: None,
        params: Params | None = None,
        batch_size: int | None = None,
        tokens: bool = False,
    ) -> Any:
        """Vectors `[n, e]` of tokenised sentences, special tokens included; with `tokens`, a list of each sentence's token vectors `[t, e]`.
        Of pairs, logits `[n, 1]`; `first_lengths` are then the token counts of first sentences. `advance` gets each batch's row count."""
        params = self.params if params is None else params
        embed_batch = make_embed(self.model.definition, self.mesh, self.compute_dtype, tokens=tokens)
        batches = self._batches(ids, first_lengths, self.batch_size if batch_size is None else batch_size)
        running = ((rows, embed_batch(params, batch)) for rows, batch in batches)
        results: Any = [None] * len(ids) if tokens else np.zeros((len(ids), self.width), np.float32)
        # `pairwise` dispatches the next batch before this one is fetched; the extra item makes a pair of the last batch.
        for (rows, result), _ in pairwise(chain(running, [((), None)])):
            vectors = np.asarray(result)[: len(rows), 0]  # of [groups, 1, ...], a sentence each; the last ones pad
            if tokens:
                for row, padded in zip(rows, vectors, strict=True):
                    results[row] = padded[: len(ids[row])].copy()  # a slice would keep the whole batch in memory
            else:
                results[rows] = vectors
            advance(len(rows))
        return results

    def _batches(self, ids: Sequence[np.ndarray], first_lengths: Integer[np.ndarray, " n"] | None, batch_size: int):
        """Yields, for each batch, the indices of its sentences and their padded tokens. The longest sentences come first, so that a
        lack of memory shows at once."""
        order = np.argsort([-len(sentence) for sentence in ids], kind="stable")
        devices = batch_devices(self.mesh)
        lengths = LENGTHS if platform(self.mesh) == "cpu" else FEWER_LENGTHS
        if len(ids) <= 8:
            lengths = SERVING_LENGTHS
        start = 0
        while start < len(order):
            longest = len(ids[order[start]])
            multiple = math.ceil(longest / lengths[-1]) * lengths[-1]
            shortest_fit = next((length for length in lengths if length >= longest), multiple)
            length = max(min(shortest_fit, self.model.max_length), longest)  # `longest` may exceed the model's maximum
            most = max(batch_size * SLOTS_PER_SENTENCE // length, 1)  # sentences in a full batch
            rows = order[start : start + most]
            # Few counts, because each is compiled: a power of two or a full batch, rounded up to a multiple of the devices.
            power_of_two = 1 << (len(rows) - 1).bit_length()
            count = math.ceil(min(power_of_two, most) / devices) * devices
            tokens = pad(
                [ids[row] for row in rows], length=length, count=count, pad_id=self.model.definition.architecture.pad_id,
                firsts=None if first_lengths is None else first_lengths[rows],
            )  # fmt: skip
            yield rows, place(tokens, batch_sharding(self.mesh))
            start += most


def ensemble(members: Sequence[Embedder], *, progress: bool = False) -> PairScorer:
    """Scores pairs by the mean score of several models of one kind (Trans-Encoder, arXiv 2109.13059, Table 1)."""
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
    """The sentences in `column` as a list; raises `InputError`, which names the method `caller`, for anything else."""
    # `list` of a pyarrow column would hold pyarrow's scalars.
    texts = column.to_pylist() if hasattr(column, "to_pylist") else list(column)
    wrong = [text for text in texts if not isinstance(text, str)]
    # Iterating over a string, a set or a table gives strings too, but not sentences in order: `column` itself is wrong.
    if isinstance(column, str | set | frozenset) or hasattr(column, "columns"):
        wrong = [column]
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
    """A jitted function from parameters and a batch to sentence vectors `[g, n, e]`, without dropout. With `tokens`, it gives
    vectors of tokens, `[g, r, l, e]`. The groups `g` are split over the mesh, and every process gets all vectors."""
    function = embed_tokens if tokens else embed

    def embed_batch(params: Params, tokens: Tokens) -> Array:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(definition, params, tokens, compute_dtype=compute_dtype)

    return jax.jit(embed_batch, in_shardings=(None, batch_sharding(mesh)), out_shardings=replicated(mesh))
