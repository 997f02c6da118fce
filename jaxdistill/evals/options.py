"""Options of `jaxdistill.evaluate` that name tasks, their sets and their models, and the units that follow from them."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jaxdistill.cli import Parser, any_path, local_path
from jaxdistill.cluster import processes
from jaxdistill.core import InputError, Split
from jaxdistill.data.sources import file_of, files_of, split_specs
from jaxdistill.evals import documents, pairs, suite
from jaxdistill.evals.beir_files import SPLITS
from jaxdistill.evals.evaluation import Sources, Unit
from jaxdistill.evals.in_memory import InMemory
from jaxdistill.ops.small_vectors import STORED_AS

SPLIT: Split = "test"
"""Default split of judgements for scoring documents."""
TASK_OF = {"pairs": "pairs", "bitext": "bitext", "entities": "entities", "retrieval": "documents", "text": "agreement"}
"""Maps options that name sets to the tasks that read them, which are the default tasks if the option is given."""
READ_BY = {
    "pairs": ("pairs",),
    "bitext": ("retrieval", "bitext"),
    "entities": ("retrieval", "entities"),
    "retrieval": ("documents",),
    "text": ("agreement",),
    "split": ("documents",),
    "reranker": ("documents",),
    "query_prompt": ("documents",),
    "document_prompt": ("documents",),
    "index_model": ("retrieval", "bitext", "entities", "documents"),
}
"""Maps options to the tasks that read them; tasks of `--parts` may read any."""


def add_options(parser: Parser) -> None:
    """Adds the options of evaluations to a parser whose description lists the tasks."""
    add = parser.add_argument
    tasks = "names from the list above, separated by commas; default: the tasks of the given sets, or sts"
    add("--tasks", default="", help=tasks)
    data = "data folder with sts/, transfer/ and so on; default: $JAXDISTILL_DATA, or else the Hugging Face hub for STS"
    add("--data", type=local_path, default=os.environ.get("JAXDISTILL_DATA", ""), help=data)
    add("--strict", action="store_true", help="refuse to start if a set is absent")
    graded = "your graded pairs for the task pairs, with columns score, sentence1, sentence2"
    add("--pairs", type=any_path, default="", help=graded)
    bitext = "your translations: files or globs NAME.en-de.tsv with columns en and de, or folders, separated by commas"
    add("--bitext", default="", help=bitext)
    entities = "files with columns query, entity, label, one per language, separated by commas"
    add("--entities", default="", help=entities)
    retrieval = "folders or hub names in BEIR's form, separated by commas; A+B: A's queries, B's documents; default: DATA/retrieval/*"
    add("--retrieval", default="", help=retrieval)
    text = "sentences on which the task agreement compares models with --teacher: files or globs, separated by commas"
    add("--text", default="", help=text)
    add("--split", choices=SPLITS, default=SPLIT, help=f"judgements of the sets of documents; default: {SPLIT}")
    reranker = "cross-encoder with which the first 100 documents are also reordered; it keeps its own maximum length"
    add("--reranker", type=any_path, default="", help=reranker)
    index_model = (
        "model that makes the index of asymmetric retrieval, such as the teacher; --max_length and --document_prompt apply to it, "
        "pooling and other prompts are its own"
    )
    add("--index_model", type=any_path, default="", help=index_model)
    dims = "score the first numbers of each vector: widths separated by commas; default: all"
    add("--dims", default="", help=dims)
    dtypes = f"score stored vectors: {', '.join(STORED_AS)}, separated by commas, each at each of --dims"
    add("--dtypes", default="", help=dtypes)


def planned(given: argparse.Namespace, own: InMemory) -> suite.Suite:
    """The units that can run; raises `InputError` if there are none, or if --strict is set and a set is absent."""
    in_memory = [TASK_OF[option] for option in own.described()]
    names = _tasks(given, default=() if in_memory else ("sts",))
    sources = Sources(
        data=given.data,
        pairs=str(file_of("--pairs", given.pairs)) if given.pairs else "",
        entities=tuple(map(str, files_of("--entities", split_specs(given.entities)))),
        bitext=tuple(split_specs(given.bitext)),
        retrieval=tuple(map(os.path.expanduser, split_specs(given.retrieval))),
        split=given.split,
        text=tuple(files_of("--text", split_specs(given.text))) if given.teacher else (),
        asymmetric=bool(given.index_model),
        reranked=bool(given.reranker),
    )
    plan = suite.planned(names, sources)
    plan = replace(plan, units=(*_units_in_memory(own, sources), *plan.units))
    _refuse_unread(given, [*names, *in_memory])
    if plan.absent and (given.strict or not plan.units):
        also = f" ({len(plan.absent)} sets are absent, and --strict refuses that.)" if given.strict else ""
        raise InputError(f"{plan.absent[0].reason}{also}")
    for missing in plan.absent if processes.is_first() else ():
        print(f"skipped: {missing.reason}", file=sys.stderr)
    return plan


def _tasks(given: argparse.Namespace, *, default: Sequence[str]) -> Sequence[str]:
    """The named tasks, or else the tasks of the given sets, or else the defaults."""
    names = split_specs(given.tasks)
    if given.tasks and not names:
        raise InputError(f"--tasks names no task; there are {', '.join(suite.tasks())}.")
    return names or [task for option, task in TASK_OF.items() if getattr(given, option)] or default


def _units_in_memory(own: InMemory, sources: Sources) -> Iterator[Unit]:
    if own.pairs:
        yield pairs.own_unit(own.pairs)
    if own.retrieval:
        yield from documents.units_of(own.retrieval, own.retrieval.name, replace(sources, split=own.retrieval.split))


def _refuse_unread(given: argparse.Namespace, names: Sequence[str]) -> None:
    """Raises `InputError` for an option that none of the tasks reads."""
    outside = suite.tasks_from_outside()
    for option, readers in READ_BY.items():
        value = getattr(given, option)
        if value and (option, value) != ("split", SPLIT) and not {*readers, *outside} & set(names):
            raise InputError(
                f"--{option}={value} is read by --tasks={' or '.join(readers)}, but the tasks are {', '.join(names)}; add that "
                f"task, or leave out --{option}."
            )
