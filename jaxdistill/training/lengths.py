"""Chooses the maximum length of a sentence in training, in tokens."""

import dataclasses
import logging
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Integer

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.cluster import processes
from jaxdistill.config import Config
from jaxdistill.core import Objective
from jaxdistill.data.chunks import bare
from jaxdistill.data.tokens import TokenStore
from jaxdistill.reading import SAMPLE, ModelContext, columns_of_views, evenly_sampled, prompted_rows
from jaxdistill.training.models import context_of
from jaxdistill.workdir.folder import INPUTS, LENGTH, read_note

WHOLE = 0.99
"""Fraction of rows that a chosen length must not truncate."""
STEP, MOST = 16, 512
"""A chosen length is a multiple of `STEP`, and at most `MOST`, because attention's work grows with its square."""
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
        most = min(MOST, longest, max((teacher.max_length for teacher in teachers), default=MOST))
        length = processes.gathered(_length_of_text(context_of(config, workdir), student, most))[0]
    return min(length, longest)


def truncation_warnings(
    objective: Objective, student: SentenceModel, teachers: Sequence[SentenceModel], store: TokenStore, *, advise: bool
) -> list[str]:
    """A line for each column of the student's text, or its pairs, with many truncated sentences; `advise` to read more."""
    columns = columns_of_views(store, objective.student_views)
    together = [columns] if student.definition.reads_pairs else [[column] for column in columns]
    rows = range(0, len(store), -(-len(store) // SAMPLE))
    lines = []
    for read in together:
        if len(read) == 1 and store.truncated(read[0]) <= MAX_TRUNCATED:
            continue
        prompts = [[student.role_prompts[role] for role in store.roles(column, rows)] for column in read]
        texts = [
            [before[index] + store.text(column, row) for column, before in zip(read, prompts, strict=True)]
            for index, row in enumerate(rows)
        ]
        lengths = _lengths(student, texts)
        cut = float(np.mean(lengths > store.max_length))
        if cut > MAX_TRUNCATED:
            of = f"data.max_length={store.max_length} truncates {100 * cut:.0f} % of the sentences of column"
            advice = f"; {_advice(_fitting(lengths), store.max_length, student, teachers)}" if advise else ""
            lines.append(f"warning: {of} {' and '.join(read)}{advice}")
    return lines


def _advice(fitting: int, length: int, student: SentenceModel, teachers: Sequence[SentenceModel]) -> str:
    """The options that truncate less."""
    most = min(fitting, *(model.definition.architecture.longest for model in (student, *teachers)))
    if most <= length:
        return f"the models read no more, and --config.data.chunk_tokens={length} splits long texts instead"
    given = ["data", *(["teacher"] if any(teacher.max_length < most for teacher in teachers) else [])]
    options = " ".join(f"--config.{section}.max_length={most}" for section in given)
    return f"set {options} to read {f'{100 * WHOLE:.0f} % of them whole' if most == fitting else 'more of them'}"


def _length_of_text(context: ModelContext, student: SentenceModel, most: int) -> int:
    fitting = _fitting(_lengths(student, evenly_sampled(prompted_rows(context, student), SAMPLE)))
    length = min(fitting, most)
    limit = f"; a choice is at most {most} here" if fitting > most else ""
    log.info(
        "data.max_length: %d, because %.0f %% of the rows have at most %d tokens%s", length, 100 * WHOLE, fitting, limit
    )
    return length


def _fitting(lengths: Integer[np.ndarray, " rows"]) -> int:
    return -(-int(np.quantile(lengths, WHOLE, method="higher")) // STEP) * STEP if len(lengths) else STEP


def _lengths(student: SentenceModel, rows: Sequence[Sequence[str]]) -> Integer[np.ndarray, " rows"]:
    """Tokens of each row's longest sentence (for a cross-encoder: of its pair), without truncation."""
    whole = dataclasses.replace(student, tokenizer=bare(student.tokenizer))
    if student.definition.reads_pairs:
        return np.array([len(one) for one in whole.encodings([(row[0], row[1]) for row in rows if len(row) == 2])])
    tokens = iter(whole.encodings([text for row in rows for text in row]))
    return np.array([max(len(next(tokens)) for _ in row) for row in rows if row])
