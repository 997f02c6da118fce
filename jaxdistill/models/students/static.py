"""A static student: a table of token vectors, initialised from a model's vectors of single tokens and of listed words."""

import dataclasses
import logging
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float
from tokenizers import AddedToken, Tokenizer

from jaxdistill.core import Count, CountOrNone
from jaxdistill.core.ops.dense import dtype_of
from jaxdistill.data.text import read, split_specs
from jaxdistill.encoders.architecture import EncoderDefinition
from jaxdistill.models.checkpoints import static
from jaxdistill.models.checkpoints.model import SentenceModel, check_size
from jaxdistill.models.inference import Embedder
from jaxdistill.models.model_text import evenly_sampled, prompted_rows
from jaxdistill.models.student import Examples, Headed, StudentInputs, affine_map
from jaxdistill.models.teacher import ModelContext

RARITY = 1e-3  # frequency of a token, as a fraction of the text's tokens, at which its weight is one half
MIN_ROWS = 4  # examples per dimension to fit an affine map; from fewer, a rotation, which loses no direction

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Static(Headed):
    """A static encoder: a table of token vectors without layers; a sentence's vector is the mean of its tokens' vectors. The
    table starts from the leading principal components of `model`'s vectors of single tokens, scaled down for tokens that are
    frequent in `data.text`, and mapped to the targets by least squares. The export does not truncate long text."""

    kind: str = "static"
    width: Count = 256
    """Width of the table."""
    words: str = ""
    """Words or phrases, one a line (sources as in `data.text`), each of which becomes one token with a row of its own."""
    clusters: CountOrNone = 0
    """Above 0: maximum number of distinct rows in the export. k-means groups similar rows, and each row becomes its group's mean, as in
    model2vec's quantised vocabularies. The run's scores are measured before that."""

    def make(self, inputs: StudentInputs) -> SentenceModel:
        context = inputs.context
        model = self.loaded(inputs)
        if self.model == "teacher":
            model = model.with_params(model.params)  # to float32: a frozen teacher keeps the stored dtype
        check_size("student.width", self.width, model.definition.embedding_width, f"the width of {model.source}")
        tokenizer = static.without_special_tokens(model.tokenizer)
        lines = read(split_specs(self.words), cache=context.data.cache_folder)
        words = add_words(tokenizer, (line for (line,) in lines))
        tokenizer.enable_truncation(static.MAX_LENGTH)
        student = dataclasses.replace(
            model, prompts={}, default_prompt=None, checkpoint_prompt=None, tokenizer=tokenizer,
            max_length=static.MAX_LENGTH, unread_pooler={},
            source=f"a table of {self.width} numbers per token of {model.source}",
        )  # fmt: skip
        # Ids of added words follow the model's; its table may have more rows than its tokenizer has tokens.
        entries = max(model.definition.architecture.vocab_size, max(words, default=0) + 1)
        log.info("student: vectors of %s tokens by %s", f"{entries:,}", model.source)
        pieces = [words.get(token, [token]) for token in range(entries)]  # for each token, the model's own tokens
        vectors = token_vectors(model, pieces, dtype_of(context.precision))
        dropped = static.dropped_id(tokenizer)
        table = initial_table(vectors, token_frequency(context, student, entries), self.width, dropped)
        architecture = static.architecture_of(table, dropped)
        definition = EncoderDefinition(architecture=architecture, pooling=static.POOLING, normalize=True)
        return self.with_head(inputs, dataclasses.replace(student, definition=definition, params={static.TABLE: table}))

    def exported(self, student: SentenceModel) -> SentenceModel:
        student = super().exported(student)
        if not self.clusters:
            return student
        from scipy.cluster.vq import kmeans2  # 0.2 seconds, which every program would take

        # The head is multiplied into the table, which is then the only parameter.
        definition, params = static.folded(student.definition, student.params)
        table = params[static.TABLE].copy()
        has_vector = np.any(table, axis=1)  # rows of zeros stay
        clusters = min(self.clusters, int(has_vector.sum()))
        centres, nearest = kmeans2(table[has_vector], clusters, minit="points", rng=0)
        table[has_vector] = centres[nearest]
        return dataclasses.replace(student, definition=definition, params={static.TABLE: table})

    def fitted(self, student: SentenceModel, examples: Examples) -> SentenceModel:
        if self.head != "none":
            return super().fitted(student, examples)
        vectors, target_vectors = examples(student)
        if vectors.shape[1] != target_vectors.shape[1]:  # an objective may compare vectors of different widths
            return student
        if len(vectors) < MIN_ROWS * vectors.shape[1]:
            from scipy.linalg import orthogonal_procrustes  # 0.2 seconds, like `kmeans2`

            centred_targets = target_vectors - target_vectors.mean(axis=0)
            kernel, _ = orthogonal_procrustes(vectors - vectors.mean(axis=0), centred_targets)
            affine = {"kernel": kernel, "bias": np.zeros(len(kernel))}
        else:
            affine = affine_map(vectors, target_vectors)
        # The map is applied to the table's rows: it commutes with the mean over a sentence's tokens.
        table = student.params[static.TABLE] @ affine["kernel"] + affine["bias"]
        return student.with_params({static.TABLE: scaled(table, student.definition.architecture.dropped_id)})


def add_words(tokenizer: Tokenizer, words: Iterable[str]) -> dict[int, list[int]]:
    """Adds the words that the tokenizer splits, each as a new token; maps the new id to the ids of the word's former tokens."""
    pieces = {word: tokenizer.encode(word).ids for word in map(str.strip, words)}
    new_words = {word: ids for word, ids in pieces.items() if len(ids) > 1}
    # Whole words only, after the tokenizer's own normalisation; the space before a word is part of it, as in byte-level BPE.
    tokenizer.add_tokens([AddedToken(word, single_word=True, lstrip=True, normalized=True) for word in new_words])
    return {token: ids for word, ids in new_words.items() if (token := tokenizer.token_to_id(word)) is not None}


def token_frequency(context: ModelContext, student: SentenceModel, entries: int) -> Float[np.ndarray, " v"]:
    """Share of each of the `entries` tokens of the table among the tokens of at most 131,072 sentences of the text."""
    texts = chain.from_iterable(prompted_rows(context.data, context.student_views, student))
    encodings = student.encodings(evenly_sampled(texts, 1 << 17))
    tokens = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int64)
    return np.bincount(tokens, minlength=entries) / max(len(tokens), 1)


def token_vectors(model: SentenceModel, pieces: Sequence[Sequence[int]], dtype: DTypeLike) -> Float[np.ndarray, "v e"]:
    """The model's vector of each entry of `pieces`: one or several of its tokens, read as a sentence between special tokens."""
    encoding = model.tokenizer.encode("a")  # shows which special tokens the tokenizer puts around a text
    inner = [index for index, is_special in enumerate(encoding.special_tokens_mask) if not is_special]
    begin, end = (inner[0], inner[-1] + 1) if inner else (1, 1)  # if "a" has no token: after the first special token
    before, after = encoding.ids[:begin], encoding.ids[end:]
    sentences = [np.array([*before, *ids, *after], np.int32) for ids in pieces]
    return Embedder(model.as_pooled(), compute_dtype=dtype).encode_ids(sentences)


def initial_table(
    vectors: Float[np.ndarray, "v e"], frequency: Float[np.ndarray, " v"], width: int, dropped: int
) -> Float[np.ndarray, "v d"]:
    """The initial table of a student: a model's vectors of tokens, projected to the first principal components of those that occur in
    the text, and weighted by smooth inverse `frequency` (Arora et al., ICLR 2017). `dropped` is as in `scaled`."""
    occurs = frequency > 0
    centred = vectors.astype(np.float64) - vectors[occurs].mean(axis=0)
    # `eigh` sorts ascending: the last eigenvectors are the principal components.
    _, eigenvectors = np.linalg.eigh(np.cov(centred[occurs], rowvar=False))
    components = eigenvectors[:, ::-1][:, :width]
    return scaled((centred @ components) * (RARITY / (RARITY + frequency))[:, None], dropped)


def scaled(table: Float[np.ndarray, "v d"], dropped: int) -> Float[np.ndarray, "v d"]:
    """The table, scaled so that the mean square of its rows' lengths is 1. The row of `dropped`, the id of a token that the mean
    ignores, becomes zero; -1: no such token."""
    table = table / np.sqrt(np.mean(np.sum(table * table, axis=1)))
    if dropped >= 0:
        table[dropped] = 0.0
    return table.astype(np.float32)
