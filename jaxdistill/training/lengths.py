"""Chooses the maximum length of a sentence in training, in tokens."""

import dataclasses
import logging
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Integer

from jaxdistill.config.options import Config
from jaxdistill.core import Objective
from jaxdistill.core.cluster import processes
from jaxdistill.data.chunks import bare
from jaxdistill.data.tokens import TokenStore
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.model_text import SAMPLE, columns_of_views, evenly_sampled, prompted_rows
from jaxdistill.training.workdir.folder import INPUTS, LENGTH, read_note

WHOLE = 0.99
"""Fraction of rows that a chosen length must not truncate."""
STEP, MAX_LENGTH = 16, 512
"""A chosen length is a multiple of `STEP`, and at most `MAX_LENGTH`, because attention's work grows with its square."""
MAX_TRUNCATED = 0.05
"""Fraction of truncated sentences in a column above which a run warns."""

log = logging.getLogger(__name__)


def training_length(
    config: Config, student: SentenceModel, teachers: Sequence[SentenceModel], workdir: pathlib.Path
) -> int:
    """Maximum tokens per sentence: `data.max_length` or `data.chunk_tokens` if set; otherwise the length that the run in the
    workdir began with, or a new one that suits the text.

    Args:
      teachers: models whose vectors are the targets.
    """
    longest = student.definition.architecture.longest
    length = config.data.max_length or config.data.chunk_tokens
    if not length:
        length = int(processes.gathered(read_note(workdir / INPUTS).get(LENGTH, 0))[0])
    if not length:
        most = min(MAX_LENGTH, longest, max((teacher.max_length for teacher in teachers), default=MAX_LENGTH))
        lengths = _lengths(
            student, evenly_sampled(prompted_rows(config.data, config.objective.student_views, student), SAMPLE)
        )
        quantile = int(np.quantile(lengths, WHOLE, method="higher")) if len(lengths) else 1
        fitting = -(-quantile // STEP) * STEP
        length = processes.gathered(min(fitting, most))[0]
        limit = f"; a choice is at most {most} here" if fitting > most else ""
        log.info(
            "data.max_length: %d, because %.0f %% of the rows have at most %d tokens%s",
            length,
            100 * WHOLE,
            fitting,
            limit,
        )
    return min(length, longest)


def truncation_warnings(objective: Objective, student: SentenceModel, store: TokenStore) -> list[str]:
    """A line for each column of the student's text with many truncated sentences."""
    longest, lines = student.definition.architecture.longest, []
    for column in columns_of_views(store, objective.student_views):
        if (share := store.truncated(column)) > MAX_TRUNCATED:
            remedy = f"set --config.data.max_length (at most {longest}) to read more of them"
            if longest <= store.max_length:
                remedy = f"the student reads no more; --config.data.chunk_tokens={longest} splits long texts instead"
            lines.append(
                f"warning: data.max_length={store.max_length} truncates {share:.0%} of the sentences of column {column}; {remedy}"
            )
    return lines


def _lengths(student: SentenceModel, rows: Sequence[Sequence[str]]) -> Integer[np.ndarray, " rows"]:
    """Tokens of each row's longest sentence (for a cross-encoder: of its pair), without truncation."""
    whole = dataclasses.replace(student, tokenizer=bare(student.tokenizer))
    if student.definition.reads_pairs:
        return np.array([len(one) for one in whole.encodings([(row[0], row[1]) for row in rows if len(row) == 2])])
    tokens = iter(whole.encodings([text for row in rows for text in row]))
    return np.array([max(len(next(tokens)) for _ in row) for row in rows if row])
