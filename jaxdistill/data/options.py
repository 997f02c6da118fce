"""The options of the training text, `data.X`."""

import dataclasses
from typing import Annotated

from jaxdistill.core import Count, CountOrNone, Fraction, Positive, Range

Columns = tuple[tuple[str, str], ...]
"""Pairs of a view and the column of a file that it reads."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """The training text and its batches."""

    text: str = ""
    """Sources, separated by commas: paths or globs (local, `s3://` or `gs://`), `hf:NAME[:CONFIG]:SPLIT:COLUMN`, `tfds:NAME:SPLIT:COLUMN`,
    `package:NAME/PATH`, or `data:PATH`, a file or glob in the folder that JAXDISTILL_DATA names. `files:` before a file, glob or folder
    makes each file one text. `raw:` or `quoted:` before a `.tsv` says how its quotes are read; otherwise its first rows decide."""
    exclude: str = ""
    """Sources, as for `text`, whose sentences or pairs (in either order) are not trained on; case is ignored."""
    weights: tuple[Positive, ...] = ()
    """Relative sampling weight of each source; empty: all sentences are sampled equally often."""
    objectives: tuple[str, ...] = ()
    """For each source, which of `config.objectives` it trains, such as `("embedding+gram", "contrastive")`; an empty name: all. Each batch
    then has sentences of one source, and sources share the batches by their `weights` or else sizes. Empty: batches mix all sources."""
    columns: Columns = ()
    """For tables: pairs of a view and the file's column, such as `(("text", "en"), ("translation", "de"))`. A single word, such as `body`,
    names the column of the sentences. `sentence1|premise` reads the first of these columns that the file has, `translation.en` the field
    `en` of a column of structs. `subject+body` joins two columns with a space, and leaves out empty ones. Empty: files have one column."""
    roles: str = ""
    """Which sentences are queries and which are documents; teacher and student each prepend their own prompt for the
    role, or their `prompt` to sentences without a role. Values: `query` or `document` for the whole text, one role per source
    (`query,document`) or per column (`text=query,second=document`). `none`: no role."""
    chunk_tokens: CountOrNone = 0
    """Above 0: splits texts of any length at sentence ends into chunks of at most this many student tokens, including
    special tokens and the prompt. Each column of `columns` then counts as a separate text with its own role, and a
    source may lack any column but `text`. 0: each row is one sentence."""
    chunk_least: CountOrNone = 0
    """Above 0: draws each chunk's target length from this many tokens up to `chunk_tokens`, so that the student reads
    short and long texts. The same text always gives the same chunks. 0: chunks are as long as possible."""
    dedupe: bool = True
    """Keep only the first of duplicate rows. All columns are compared, pairs in either order; case is ignored."""
    max_length: CountOrNone = 0
    """Maximum tokens per sentence in training, including special tokens and the prompt; longer sentences are truncated, and
    columns with more than 5 % truncated are reported. 0: `chunk_tokens` if set; otherwise the 0.99 quantile of the lengths of up
    to 4,096 rows, rounded up to a multiple of 16, but at most 512, the teacher's maximum length and the student's positions."""
    batch_size: Count = 128
    """Sentences per step, over all devices."""
    max_unknown: Fraction = 0.05
    """Maximum share of unknown tokens, and of characters in them, for each column and tokenizer; exceeding either is an error."""
    pack_groups: Count = 8
    """Number of groups of a batch, each packed independently. It is reduced to a divisor of `batch_size`, and then raised to a
    multiple of the devices that split the batch. Unless it is raised, results do not depend on the number of devices."""
    pack_shapes: Annotated[int, Range(least=0, most=4)] = 0
    """Maximum number of batch shapes, each compiled once; more shapes mean less padding. The last holds any batch, and is
    compiled only if one needs it. 0: 4 on CPUs, 3 on GPUs and TPUs, whose compilers are slow."""
    cache_folder: str = ""
    """Folder that caches tokenised text and teacher targets; empty: $JAXDISTILL_CACHE or ~/.cache/jaxdistill."""
