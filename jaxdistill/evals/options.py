"""Options of `jaxdistill.evaluate` that name tasks, sets and the models that tasks ask, and the units that they stand for."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxdistill import processes
from jaxdistill.cli import Parser, any_path, local_path
from jaxdistill.core import InputError, Split
from jaxdistill.data.sources import split_specs
from jaxdistill.evals import suite
from jaxdistill.evals.beir_files import SPLITS
from jaxdistill.evals.evaluation import Sources
from jaxdistill.paths import fetched

SPLIT: Split = "test"
"""Judgements that documents are scored by, by default."""
READ_BY = {
    "pairs": ("pairs",),
    "entities": ("retrieval",),
    "retrieval": ("documents",),
    "split": ("documents",),
    "reranker": ("documents",),
    "query_prompt": ("documents",),
    "document_prompt": ("documents",),
    "index_model": ("retrieval", "bitext", "documents"),
}
"""The tasks that read an option; those of `--parts` may read any."""


def add_options(parser: Parser) -> None:
    """Adds them to a parser whose description lists the tasks."""
    parser.add_argument("--tasks", default="sts", help="names from the list above, separated by commas; default: sts")
    parser.add_argument(
        "--data",
        type=local_path,
        default=os.environ.get("JAXDISTILL_DATA", ""),
        help="data folder with sts/, transfer/ and so on; default: $JAXDISTILL_DATA, or else the Hugging Face hub for STS",
    )
    parser.add_argument("--strict", action="store_true", help="refuse to start if a set is absent")
    parser.add_argument(
        "--pairs",
        type=any_path,
        default="",
        help="your graded pairs for the task pairs, with columns score, sentence1, sentence2",
    )
    parser.add_argument(
        "--entities", default="", help="files with columns query, entity, label, one per language, separated by commas"
    )
    parser.add_argument(
        "--retrieval",
        default="",
        help="folders or hub names in BEIR's form, separated by commas; A+B: A's queries, B's documents; default: DATA/retrieval/*",
    )
    parser.add_argument(
        "--split", choices=SPLITS, default="", help=f"judgements of the sets of documents; default: {SPLIT}"
    )
    parser.add_argument(
        "--reranker",
        type=any_path,
        default="",
        help="cross-encoder that also puts the first 100 documents in order; it reads pairs at its own length",
    )
    parser.add_argument(
        "--index_model",
        type=any_path,
        default="",
        help="model that makes the index of asymmetric retrieval, such as the teacher; it reads at most --max_length "
        "tokens, and documents behind --document_prompt, with its own pooling and other prompts",
    )


def planned(given: argparse.Namespace) -> suite.Suite:
    """The units that can run; raises `InputError` if there are none, or if --strict is set and a set is absent."""
    names = split_specs(given.tasks)
    if not names:
        raise InputError(f"--tasks names no task; there are {', '.join(suite.tasks())}.")
    pairs = str(fetched(given.pairs)) if given.pairs else ""
    entities = tuple(map(os.path.expanduser, split_specs(given.entities)))
    for option, paths in (("pairs", filter(None, [pairs])), ("entities", entities)):
        for path in paths:
            if not Path(path).is_file():
                raise InputError(f"--{option}={path} is no file; give one that exists.")
    plan = suite.planned(
        names,
        Sources(
            data=given.data,
            pairs=pairs,
            entities=entities,
            retrieval=tuple(map(os.path.expanduser, split_specs(given.retrieval))),
            split=given.split or SPLIT,
            asymmetric=bool(given.index_model),
            reranked=bool(given.reranker),
        ),
    )
    _refuse_unread(given, names)
    if plan.absent and (given.strict or not plan.units):
        also = f" ({len(plan.absent)} sets are absent, and --strict refuses that.)" if given.strict else ""
        raise InputError(f"{plan.absent[0]}{also}")
    for line in plan.absent if processes.is_first() else ():
        print(f"skipped: {line}", file=sys.stderr)
    return plan


def _refuse_unread(given: argparse.Namespace, names: Sequence[str]) -> None:
    """Raises `InputError` for an option that none of the tasks reads."""
    outside = suite.tasks_from_outside()
    for option, readers in READ_BY.items():
        value = getattr(given, option)
        if value and not {*readers, *outside} & set(names):
            raise InputError(
                f"--{option}={value} is read by --tasks={' or '.join(readers)}, but the tasks are {', '.join(names)}; add that "
                f"task, or leave out --{option}."
            )
