"""Turns sentences into vectors, and pairs into scores, outside of training.

Sentences are grouped by length and padded to one of a few shapes, so that little is computed for padding and little is
compiled. The result does not depend on the order of the sentences beyond rounding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.bars import progress_bar
from jaxdistill.compile_cache import keep_compiled
from jaxdistill.core import ROLES, Array, Embed, InputError, Params, Precision, Tokens
from jaxdistill.data.packing import pad
from jaxdistill.encoders.architecture import EncoderDefinition
from jaxdistill.encoders.model import SentenceModel, load_model, model_name
from jaxdistill.encoders.sentence import embed
from jaxdistill.evals.similarity import cosines
from jaxdistill.inference.sentences import checked_sentences, prompt_text
from jaxdistill.mesh import batch_devices, batch_sharding, make_mesh, place, place_frozen, replicated
from jaxdistill.ops.dense import dtype_of

LENGTHS = (6, 8, *(steps * step for step in (2, 4, 8, 16, 32, 64) for steps in range(5, 9)))
"""Padded lengths, four from each power of 2 to the next; longer sentences are padded to a multiple of the last, 512."""
FEW = 8
"""A request of at most this many sentences is padded to one of `SERVED`, because each shape has to be compiled."""
SERVED = (16, 32, 64, 128, 256, 512)
"""Padded lengths of small requests."""
TOKENISED = 4096
"""Texts that are tokenised in one call, on all cores."""
SLOTS_PER_SENTENCE = 32
"""A batch of short sentences holds more of them: `batch_size * SLOTS_PER_SENTENCE` token slots at the most."""


class Embedder:
    """A model ready for use: `encode(sentences) -> float32 [n, e]`, and `score(first, second)` for pairs of
    sentences."""

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
        """
        Args:
          model: definition, parameters and tokenizer.
          mesh: devices to use; None: all of this process.
          compute_dtype: of matrix products.
          batch_size: sentences of 32 tokens that are computed together; more of shorter ones.
          params: parameters that already lie on the mesh, instead of the model's own.
          shardings: how each of the model's own parameters lies on the mesh; None: whole on every device.
        """
        self.model = model
        self.mesh = mesh or make_mesh(devices=jax.local_devices())
        self._shardings = shardings or dict.fromkeys(model.params, replicated(self.mesh))
        if params is not None:
            self.params = params
        self.batch_size = batch_size
        # A table has no matrix products that a shorter dtype would speed up.
        self.compute_dtype = jnp.dtype(jnp.float32 if model.definition.architecture.is_static else compute_dtype)
        self._embed = make_embed(model.definition, self.mesh, self.compute_dtype)

    @cached_property
    def params(self) -> Params:
        """Parameters on the mesh; the model's own are placed when they are first used."""
        return place_frozen(self.model.params, self._shardings, self.compute_dtype)

    @property
    def width(self) -> int:
        """Width of the vectors."""
        return self.model.definition.embedding_width

    def prefix(self, prompt: str | None = None, role: str = "") -> str:
        """The text before each sentence; InputError for an unknown prompt, or a cross-encoder, which has no vectors."""
        if self.model.definition.reads_pairs:
            raise InputError(f"{self.model.source} is a cross-encoder: it has no vectors of sentences; score pairs.")
        if not role:
            return prompt_text(self.model, prompt)
        if prompt is not None:
            raise InputError(f"prompt {prompt!r} and role {role!r} exclude each other; give one of them.")
        if role not in ROLES:
            raise InputError(f"role {role!r} is unknown; allowed: {', '.join(ROLES)}.")
        return self.model.role_prompts[role]

    def encode(
        self,
        sentences: Sequence[str],
        *,
        prompt: str | None = None,
        role: str | Sequence[str] = "",
        progress: bool | str = False,
        params: Params | None = None,
    ) -> Float[np.ndarray, "n e"]:
        """Vectors of `sentences`, one row each, in their order.

        Args:
          sentences: any number; longer ones than the model's `max_length` are truncated.
          prompt: name of one of the model's prompts; None: its default one, if it has one; empty: none.
          role: `query` or `document`, or one for each sentence: the model's prompt for it goes before the sentence, and
            none if it has no such prompt. Empty: no role.
          progress: show a bar; a text is its title.
          params: other parameters of the same model, on the same mesh (a student in training).

        Raises:
          InputError: anything but several texts, an unknown prompt or role, or a cross-encoder, which has no vectors.
        """
        sentences = checked_sentences(sentences, "encode")
        if not isinstance(role, str) and len(role) != len(sentences):
            raise InputError(
                f"got {len(role)} roles for {len(sentences)} sentences; give one for each, or one for all."
            )
        roles = {role} if isinstance(role, str) else set(role)
        prefixes = {one: self.prefix(prompt, one) for one in roles}
        of_sentences = [role] * len(sentences) if isinstance(role, str) else role
        texts = [prefixes[one] + sentence for one, sentence in zip(of_sentences, sentences, strict=True)]
        ids = [np.asarray(encoding.ids, np.int32) for encoding in self._encodings(texts)]
        with progress_bar(len(ids), "sentences", shown=progress) as bar:
            return self.encode_ids(ids, advance=bar.update, params=params)

    def encode_query(self, sentences: Sequence[str], *, progress: bool = False) -> Float[np.ndarray, "n e"]:
        """Vectors of queries: `encode` with the role `query`."""
        return self.encode(sentences, role="query", progress=progress)

    def encode_document(self, sentences: Sequence[str], *, progress: bool = False) -> Float[np.ndarray, "n e"]:
        """Vectors of documents: `encode` with the role `document`."""
        return self.encode(sentences, role="document", progress=progress)

    def score(
        self,
        first: Sequence[str],
        second: Sequence[str],
        *,
        logits: bool = False,
        progress: bool | str = False,
        params: Params | None = None,
    ) -> Float[np.ndarray, " n"]:
        """Similarity of the two sentences of each pair: cosine in [-1, 1], or a cross-encoder's score in (0, 1).

        A sentence encoder reads each distinct sentence once. A cross-encoder reads the pair as one sequence, the first
        sentence first, behind the model's prompt if it has one; a pair that is too long is truncated in its longer sentence
        (`longest_first`). Its scores are float64, so that they rank as its logits do where these are large.

        Args:
          first, second: of the same length.
          logits: of a cross-encoder, its scores before the sigmoid: any number, float32.
          progress, params: as in `encode`.
        """
        first, second = checked_sentences(first, "score"), checked_sentences(second, "score")
        if len(first) != len(second):
            raise InputError(f"got {len(first)} first and {len(second)} second sentences; score takes as many of both.")
        if logits and not self.model.definition.reads_pairs:
            raise InputError(
                f"{self.model.source} is a sentence encoder: its scores are cosines; leave out logits=True."
            )
        if not self.model.definition.reads_pairs:
            embed = partial(self.encode, progress=progress, params=params)
            return cosines(embed, first, second).astype(np.float32)
        prompt = self.model.prompt
        pairs = [(prompt + sentence, other) for sentence, other in zip(first, second, strict=True)]
        ids, firsts = [], []
        for encoding in self._encodings(pairs):
            ids.append(np.asarray(encoding.ids, np.int32))
            firsts.append(encoding.type_ids.count(0))
        with progress_bar(len(ids), "sentences", shown=progress) as bar:
            scores = self.encode_ids(ids, firsts=np.array(firsts, np.int64), advance=bar.update, params=params)[:, 0]
        return scores if logits else np.exp(-np.logaddexp(0.0, -scores.astype(np.float64)))

    def as_embed(self, params: Params | None = None, *, progress: bool | str = False) -> Embed:
        """The model as evaluations see it: the function `encode`, or a scorer of pairs for a cross-encoder."""
        if self.model.definition.reads_pairs:
            return _PairScorer(partial(self.score, params=params, progress=progress), self.encode)
        return partial(self.encode, params=params, progress=progress)

    def warm_up(self, longest: int = SERVED[-1]) -> None:
        """Compiles what requests of one sentence need, so that none of them waits for the compiler.

        Args:
          longest: in tokens; sentences beyond it compile when they come.
        """
        most = min(longest, self.model.max_length)
        for tokens in sorted({min(length, most) for length in SERVED}):
            firsts = np.array([tokens]) if self.model.definition.reads_pairs else None
            self.encode_ids([np.zeros(tokens, np.int32)], firsts=firsts)

    def encode_ids(
        self,
        ids: Sequence[np.ndarray],
        *,
        firsts: Integer[np.ndarray, " n"] | None = None,
        advance: Callable[[int], object] = lambda rows: None,
        params: Params | None = None,
    ) -> Float[np.ndarray, "n e"]:
        """As `encode`, for tokenised sentences with their special tokens; or for pairs, whose logits it gives.

        Args:
          firsts: for pairs, tokens of type 0, those of the first sentence.
          advance: called with each batch's row count.
        """
        vectors = np.zeros((len(ids), self.width), np.float32)
        params = self.params if params is None else params
        waiting = None
        for rows, tokens in self._batches(ids, firsts):
            result = self._embed(params, tokens)
            if waiting is not None:
                advance(_fetch(vectors, *waiting))
            waiting = (rows, result)
        if waiting is not None:
            advance(_fetch(vectors, *waiting))
        return vectors

    def _encodings(self, texts: Sequence[str] | Sequence[tuple[str, str]]) -> Iterator[tokenizers.Encoding]:
        """The tokenised texts, block by block, because an encoding takes 40 times the memory of its ids."""
        for start in range(0, len(texts), TOKENISED):
            yield from self.model.encodings(texts[start : start + TOKENISED])

    def _batches(self, ids: Sequence[np.ndarray], firsts: Integer[np.ndarray, " n"] | None):
        """(rows, padded tokens), longest first so that a lack of memory shows at once."""
        order = np.argsort([-len(sentence) for sentence in ids], kind="stable")
        devices = batch_devices(self.mesh)
        lengths = SERVED if len(ids) <= FEW else LENGTHS
        start = 0
        while start < len(order):
            length = padded_length(len(ids[order[start]]), self.model.max_length, lengths)
            most = max(self.batch_size * SLOTS_PER_SENTENCE // length, 1)
            rows = order[start : start + most]
            count = min(1 << (len(rows) - 1).bit_length(), most)
            count = -(-count // devices) * devices
            tokens = pad(
                [ids[row] for row in rows],
                length=length,
                count=count,
                pad_id=self.model.definition.architecture.pad_id,
                firsts=None if firsts is None else firsts[rows],
            )
            yield rows, place(tokens, batch_sharding(self.mesh))
            start += most


class _PairScorer(NamedTuple):
    """A cross-encoder for evaluations; raises `InputError` for those that need vectors."""

    score: Callable[..., Float[np.ndarray, " n"]]
    encode: Embed
    """Refuses."""

    def __call__(self, sentences: Sequence[str]):
        return self.encode(sentences)


def _fetch(vectors: np.ndarray, rows: np.ndarray, result: Array) -> int:
    vectors[rows] = np.asarray(result)[: len(rows), 0]
    return len(rows)


def padded_length(tokens: int, max_length: int, lengths: Sequence[int] = LENGTHS) -> int:
    """The shape's length for a sentence: the next of `lengths`, at most the model's longest."""
    longer = [length for length in lengths if length >= tokens]
    length = longer[0] if longer else -(-tokens // lengths[-1]) * lengths[-1]
    return max(min(length, max_length), tokens)


def load(
    model: str,
    *,
    pooling: str = "",
    max_length: int = 0,
    prompt: str = "",
    batch_size: int = 128,
    precision: Precision = "auto",
    parts: str = "",
) -> Embedder:
    """A model ready for use, from a folder (also at `s3://` or `gs://`), `package:NAME/PATH` or a hub name.

    Compiled programs are kept in the cache folder, unless JAX has a compilation cache already.

    Args:
      model: an export of this project, or any sentence-transformers or Hugging Face checkpoint of a known family.
      pooling: required if the checkpoint does not state its pooling.
      max_length: longest sentence in tokens; 0: as the checkpoint says.
      prompt: name of the prompt that is used by default.
      precision: of matrix products. `auto`: bfloat16 where that is fast; `float32`: sentence-transformers' vectors to 1e-5.
      parts: your own modules or files with encoder families, separated by commas, see docs/extending.md.
    """
    for option, value in (("max_length", max_length), ("batch_size", batch_size)):
        if not isinstance(value, int | np.integer) or value < (option == "batch_size"):
            raise InputError(f"{option}={value!r} must be a whole number, at least {int(option == 'batch_size')}.")
    dtype = dtype_of(precision)
    if not jax.config.values["jax_compilation_cache_dir"]:
        keep_compiled()
    read = load_model(model_name(model), pooling=pooling, max_length=max_length, prompt=prompt, own_parts=parts)
    return Embedder(read, batch_size=batch_size, compute_dtype=dtype)


@lru_cache(maxsize=16)
def make_embed(
    definition: EncoderDefinition, mesh: Mesh, compute_dtype: DTypeLike
) -> Callable[[Params, Tokens], Array]:
    """The jitted function `(params, tokens) -> [g, n, e]`, without dropout.

    Groups are split over the mesh; every process gets all vectors. Embedders of one definition share what is compiled.
    """

    def embed_batch(params: Params, tokens: Tokens) -> Array:
        return embed(definition, params, tokens, compute_dtype=compute_dtype, mesh=mesh)

    return jax.jit(embed_batch, in_shardings=(None, batch_sharding(mesh)), out_shardings=replicated(mesh))
