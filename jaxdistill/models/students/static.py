"""A static student: a table of token vectors, initialised from a model's vectors of single tokens and of listed words."""

import dataclasses
import logging
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
from jaxtyping import Float
from tokenizers import AddedToken, Tokenizer

from jaxdistill.core import Count, CountOrNone, unknown_id
from jaxdistill.core.ops.dense import dtype_of
from jaxdistill.data.text import read, split_specs
from jaxdistill.encoders.architecture import EncoderDefinition
from jaxdistill.models.checkpoints import static
from jaxdistill.models.checkpoints.model import SentenceModel, check_size
from jaxdistill.models.inference import Embedder
from jaxdistill.models.model_text import evenly_sampled, prompted_rows
from jaxdistill.models.student import Examples, Headed, StudentInputs, affine_map
from jaxdistill.models.teacher import ModelContext

SAMPLE = 1 << 17
"""Maximum number of the text's sentences in which tokens are counted."""
RARITY = 1e-3
"""Frequency of a token, as a fraction of the text's tokens, at which its weight is one half."""
MIN_ROWS = 4
"""Targets for each number of a vector that determine an affine map; fewer give a rotation, which loses no direction."""

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
        model = self.loaded(inputs)
        if self.model == "teacher":
            model = model.with_params(model.params)  # float32, which the teacher's file need not have
        most, rows = model.definition.embedding_width, model.definition.architecture.vocab_size
        check_size("student.width", self.width, most, f"the width of the vectors of {model.source}")
        tokenizer = static.without_special_tokens(model.tokenizer)
        lines = (line for (line,) in read(split_specs(self.words), cache=inputs.context.data.cache_folder))
        words = add_words(tokenizer, lines)
        entries = max([rows, *(token + 1 for token in words)])
        tokenizer.enable_truncation(static.MAX_LENGTH)
        dropped = unknown_id(tokenizer)
        bare = dataclasses.replace(model.without_prompts(), tokenizer=tokenizer, max_length=static.MAX_LENGTH)
        log.info("student: vectors of %s tokens by %s", f"{entries:,}", model.source)
        texts = chain.from_iterable(prompted_rows(inputs.context.data, inputs.context.student_views, bare))
        encodings = bare.encodings(evenly_sampled(texts, SAMPLE))
        ids = np.fromiter(chain.from_iterable(one.ids for one in encodings), np.int64)
        share = np.bincount(ids, minlength=entries) / max(len(ids), 1)
        pieces = [words.get(token, [token]) for token in range(entries)]
        table = start(token_vectors(inputs.context, model, pieces), share, self.width, dropped=dropped)
        architecture = static.architecture_of(table, dropped=dropped)
        definition = EncoderDefinition(architecture=architecture, pooling=static.POOLING, normalize=True)
        source = f"a table of {self.width} numbers per token of {model.source}"
        return self.with_head(inputs, bare.remade(definition, {static.TABLE: table}, source, unread_pooler={}))

    def exported(self, student: SentenceModel) -> SentenceModel:
        student = super().exported(student)
        if not self.clusters:
            return student
        table = clustered(static.folded(student.definition, student.params), self.clusters)
        architecture = static.architecture_of(table, dropped=unknown_id(student.tokenizer))
        definition = dataclasses.replace(student.definition, architecture=architecture, dense=())
        return student.remade(definition, {static.TABLE: table})

    def fitted(self, student: SentenceModel, examples: Examples) -> SentenceModel:
        if self.head != "none":
            return super().fitted(student, examples)
        x, y = examples(student)
        if x.shape[1] != y.shape[1]:
            return student
        if len(x) < MIN_ROWS * x.shape[1]:
            from scipy.linalg import orthogonal_procrustes  # 0.2 seconds, like `kmeans2`

            kernel, _ = orthogonal_procrustes(x - x.mean(axis=0), y - y.mean(axis=0))
            affine = {"kernel": kernel, "bias": np.zeros(len(kernel))}
        else:
            affine = affine_map(x, y)
        # Means of the mapped rows are, up to a factor, the affine map of the means.
        table = student.params[static.TABLE] @ affine["kernel"] + affine["bias"]
        return student.with_params({static.TABLE: scaled(table, student.definition.architecture.dropped_id)})


def add_words(tokenizer: Tokenizer, words: Iterable[str]) -> dict[int, list[int]]:
    """Adds words that the tokenizer splits; maps each one's id to the ids of the tokens that it had before."""
    pieces = {word: tokenizer.encode(word).ids for word in (word.strip() for word in words)}
    split = {word: ids for word, ids in pieces.items() if len(ids) > 1}
    # `lstrip`: the space before a word is part of it, as in byte-level BPE.
    tokenizer.add_tokens([AddedToken(word, single_word=True, lstrip=True, normalized=True) for word in split])
    return {token: ids for word, ids in split.items() if (token := tokenizer.token_to_id(word)) is not None}


def clustered(table: Float[np.ndarray, "v d"], clusters: int) -> Float[np.ndarray, "v d"]:
    """The table with each row replaced by the mean of its cluster; rows of zeros stay."""
    from scipy.cluster.vq import kmeans2  # 0.2 seconds, which every program would take

    table, used = table.copy(), np.any(table, axis=1)
    centres, nearest = kmeans2(table[used], min(clusters, int(used.sum())), minit="points", rng=0)
    table[used] = centres[nearest]
    return table


def token_vectors(context: ModelContext, model: SentenceModel, pieces: Sequence[list[int]]) -> Float[np.ndarray, "v e"]:
    """The model's vector, not normalised, of each entry of `pieces`: the tokens of one row of the table, read as a sentence with its
    special tokens."""
    # Any sentence shows which special tokens the tokenizer puts before and after the text.
    encoding = model.tokenizer.encode("a")
    ids, special = encoding.ids, encoding.special_tokens_mask
    first = special.index(0) if 0 in special else 1
    after = ids[len(ids) - special[::-1].index(0) :] if 0 in special else ids[first:]
    embedder = Embedder(model.as_pooled(), compute_dtype=dtype_of(context.precision))
    return embedder.encode_ids([np.array([*ids[:first], *piece, *after], np.int32) for piece in pieces])


def start(
    vectors: Float[np.ndarray, "v e"], share: Float[np.ndarray, " v"], width: int, *, dropped: int | None
) -> Float[np.ndarray, "v d"]:
    """The initial table of a student, from a model's vector of each token and the token's share of all tokens in the text.

    Projects the vectors to the first principal components of the tokens that occur in the text, and multiplies each row by a
    weight that falls with the token's frequency (smooth inverse frequency; Arora et al., A Simple but Tough-to-Beat Baseline
    for Sentence Embeddings, ICLR 2017). The row of the token `dropped`, which the mean ignores, is zero.
    """
    occurs = share > 0
    centred = vectors.astype(np.float64) - vectors[occurs].mean(axis=0)
    _, basis = np.linalg.eigh(np.cov(centred[occurs], rowvar=False))
    table = (centred @ basis[:, ::-1][:, :width]) * (RARITY / (RARITY + share))[:, None]
    return scaled(table, -1 if dropped is None else dropped)


def scaled(table: Float[np.ndarray, "v d"], dropped: int) -> Float[np.ndarray, "v d"]:
    """The table with rows of unit length on average, zero for the id `dropped`; -1: none."""
    table = table / np.sqrt(np.mean(np.sum(table * table, axis=1)))
    table[[dropped] * (dropped >= 0)] = 0.0
    return table.astype(np.float32)
