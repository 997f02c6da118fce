"""Writes a second view of a text: a table of sentences and their rewritten forms, for `objective.generalize_view`.

  python -m jaxdistill.augment --method=synonyms --input=text.txt --output=synonyms.tsv
  python -m jaxdistill.augment --method=mlm --model=bert-folder --input='texts/*.gz' --output=mlm/
  python -m jaxdistill.augment --method=translate --model=en-de --back_model=de-en --input=text.txt --output=back.tsv

OUTPUT is a .tsv file, or a folder of .parquet parts whose name ends in `/`. Training reads the table with
  --config.data.text=synonyms.tsv --config.data.columns='(("text","text"),("synonyms","synonyms"))'
  --config.objective.generalize_view=synonyms
and a folder with --config.data.text='mlm/*.parquet'.

If the program is killed, the same command computes the missing parts. The parts of a .tsv file are in a hidden folder beside
it until all are done. A row depends only on the seed, the method, its text and its number (for mlm and translate, up to
rounding). Several processes, started as for training, share the parts of a folder that all of them see.

Source: Limkonchotiwat et al., ConGen, Findings of EMNLP 2022, whose Table 6 compares these views.
"""

import argparse
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jaxdistill.augmentation import wordnet
from jaxdistill.bars import Advance
from jaxdistill.checkpoints.locate import locate
from jaxdistill.cli import Parser, did_you_mean, local_path, run
from jaxdistill.cluster import processes
from jaxdistill.core import InputError
from jaxdistill.data import vectors
from jaxdistill.data.fill_parts import Made, filled_from_text
from jaxdistill.data.part_folder import read_origin
from jaxdistill.data.sources import TEXT, Watched, local_files, read
from jaxdistill.data.tables import finished, one_line, refuse_changes, write_table
from jaxdistill.files import folder_digest, refuse_overwriting, without_links
from jaxdistill.versions import source_digest

PART_ROWS = 1024
"""Rows per part, which are computed in order of length; a killed run repeats at most this many."""

Rewrite = Callable[[Sequence[str], Sequence[random.Random], Callable[[int], object]], list[str]]
"""Rewrites sentences, given a random generator for each and a callback that takes the number of finished ones."""

REQUIRED = object()
OPTIONS: dict[str, tuple[type, dict[str, Any], str]] = {
    "rate": (float, {"synonyms": 0.1, "mlm": 0.15}, "probability that a word or token is replaced, in (0, 1)"),
    "wordnet": (str, {"synonyms": ""}, "folder of WordNet's files (index.noun, ...); default: the usual places"),
    "senses": (int, {"synonyms": 0}, "number of most frequent senses of a word per part of speech; 0: all"),
    "model": (str, {"mlm": REQUIRED, "translate": REQUIRED}, "folder of the masked language or translation model"),
    "top_k": (int, {"mlm": 10}, "number of most likely words to draw a replacement from; 1: always the most likely"),
    "back_model": (
        str,
        {"translate": None},
        "folder of a model that translates back; without it, text is translated one way",
    ),
    "source_language": (str, {"translate": ""}, "code of the text's language, for models of many languages"),
    "target_language": (str, {"translate": ""}, "code of the language to translate to, for models of many languages"),
    "prefix": (str, {"translate": ""}, "text that --model expects before each sentence"),
    "back_prefix": (str, {"translate": ""}, "text that --back_model expects before each sentence"),
    "beams": (int, {"translate": 4}, "width of the beam search; 1: greedy"),
    "max_length": (int, {"translate": 128}, "maximum tokens of a sentence, read and written"),
    "batch_size": (int, {"mlm": 128, "translate": 32}, "sentences per batch"),
}
"""Options that only some methods have: type, default for each of these methods, and help."""

FOLDERS = ("wordnet", "model", "back_model")
"""Options that name a folder whose content determines the rows."""


def _changes(texts: Sequence[str], rewritten: Sequence[str]) -> Counter[str]:
    """Counts changed rows, words, and words that are missing from the rewritten sentence."""
    counts = Counter()
    for text, new in zip(texts, rewritten, strict=True):
        words = Counter(text.split())
        counts.update(changed=int(text != new), words=words.total(), lost=(words - Counter(new.split())).total())
    return counts


def _synonyms(options: Mapping[str, Any]) -> Rewrite:
    database = wordnet.WordNet(options["wordnet"], senses=options["senses"])

    def rewrite(texts, rngs, advance):
        advance(len(texts))
        pairs = zip(texts, rngs, strict=True)
        return [wordnet.replaced(text, database, rate=options["rate"], rng=rng) for text, rng in pairs]

    return rewrite


def _mlm(options: Mapping[str, Any]) -> Rewrite:
    from jaxdistill.augmentation.substitute import Substituter
    from jaxdistill.checkpoints import masked_lm

    numbers = {name: options[name] for name in ("rate", "top_k", "batch_size")}
    return Substituter(masked_lm.load_masked_lm(options["model"]), **numbers)


def _translate(options: Mapping[str, Any]) -> Rewrite:
    from jaxdistill.augmentation.translate import Translator

    shared = {name: options[name] for name in ("beams", "max_length", "batch_size")}
    source, target = options["source_language"], options["target_language"]
    there = Translator(
        options["model"], source_language=source, target_language=target, prefix=options["prefix"], **shared
    )
    if not options["back_model"]:
        return lambda texts, rngs, advance: there(texts, advance)
    back = Translator(
        options["back_model"], source_language=target, target_language=source, prefix=options["back_prefix"], **shared
    )
    return lambda texts, rngs, advance: back(there(texts), advance)


METHODS = {"synonyms": _synonyms, "mlm": _mlm, "translate": _translate}


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.augment`."""
    given = _parser().parse_args(arguments)
    facts = {name: value for name, value in vars(given).items() if name != "quiet"}
    with processes.connected(lambda: {"jaxdistill": source_digest()[:12]} | facts):
        _augment(given)


def _augment(given: argparse.Namespace) -> None:
    """Writes the table or the folder, and prints a summary."""
    options = method_options(given.method, vars(given))
    column, output = _column(given, options), without_links(Path(given.output))
    is_folder = given.output.endswith("/") or read_origin(output) is not None
    if not is_folder and output.suffix != ".tsv":
        raise InputError(f"--output={given.output} must end in .tsv, or in / for a folder of .parquet parts.")
    if not is_folder and processes.count() > 1:
        raise InputError(
            f"several processes can only write a folder of parts; give --output={Path(given.output).with_suffix('')}/."
        )
    common = {"method": given.method, "seed": given.seed, "column": column, "text_column": given.text_column}
    folders = {name: _folder(name, options[name]) for name in FOLDERS if name in options and options[name] is not None}
    text = Watched(given.input, {TEXT: given.text_column})
    origin = (
        common | options | {name: folder_digest(folder) for name, folder in folders.items()} | {"input": text.digest}
    )
    if not is_folder and (made := finished(output, origin)):
        _say_complete(given.output, made)
        return
    place = output if is_folder else output.with_name(f".{output.name[:200]}.parts")
    if there := read_origin(place):
        refuse_changes(place, {name: there[name] for name in there if name in origin}, origin)
    refuse_overwriting(place, local_files(given.input))
    rewrite = METHODS[given.method](options | {name: str(folder) for name, folder in folders.items()})

    def make(rows: range, texts: Sequence[str], advance: Advance) -> Made:
        rngs = [random.Random(f"{given.seed} {given.method} {row} {of}") for row, of in zip(rows, texts, strict=True)]
        rewritten = rewrite(texts, rngs, advance)
        return partial(vectors.write_part, columns={TEXT: texts, column: rewritten}), _changes(texts, rewritten)

    sentences = lambda: (sentence for (sentence,) in text.rows())  # noqa: E731 - said once
    parts = filled_from_text(place, origin, text, sentences, make=make, part_rows=PART_ROWS, shown=not given.quiet)
    counts = parts.counts()
    if is_folder and parts.is_complete:
        _say_complete(given.output, counts)
        return
    if not is_folder:
        rows = read([vectors.source(place)], (TEXT, column))
        write_table(output, (TEXT, column), rows, origin, counts=counts)
        shutil.rmtree(place)
    if processes.is_first():
        print(f"{given.output}: {counts['rows']:,} rows with the columns {TEXT} and {column}")
        print(
            f"{counts['changed'] / counts['rows']:.1%} of the rows and"
            f" {counts['lost'] / max(counts['words'], 1):.1%} of {counts['words']:,} words changed"
        )


def _column(given: argparse.Namespace, options: Mapping[str, Any]) -> str:
    """Name of the second column."""
    back = "back_translation" if options.get("back_model") else "translation"
    column = given.column or (back if given.method == "translate" else given.method)
    if column == TEXT or column != one_line(column):
        raise InputError(f"--column={column!r} cannot be the second column's name; {TEXT!r} is the first's.")
    return column


def _say_complete(output: str, counts: Mapping[str, int]) -> None:
    if processes.is_first():
        print(f"{output} is complete: {counts['rows']:,} rows, made with these options; nothing was done.")


def method_options(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The method's own options, as given or by default; raises `InputError` for invalid ones."""
    if method not in METHODS:
        raise InputError(
            f"unknown method {method!r}; known: {', '.join(METHODS)}.{did_you_mean(method, list(METHODS))}"
        )
    options = {}
    for name, (_, defaults, _) in OPTIONS.items():
        value = given[name]
        if value is not None and method not in defaults:
            raise InputError(f"--{name} is an option of --method={' and '.join(defaults)}, not of {method}.")
        if method in defaults:
            options[name] = defaults[method] if value is None else value
        if options.get(name) is REQUIRED:
            raise InputError(f"--method={method} needs --{name}: {OPTIONS[name][2]}.")
    if not 0.0 < options.get("rate", 0.5) < 1.0:
        raise InputError(f"--rate={options['rate']} must lie between 0 and 1, both excluded.")
    for name, least in {"top_k": 1, "beams": 1, "max_length": 1, "batch_size": 1, "senses": 0}.items():
        if options.get(name, least) < least:
            raise InputError(f"--{name}={options[name]} must be at least {least}.")
    return options


def _folder(option: str, spec: str) -> Path:
    """The local folder that an option names; models are not downloaded from a hub."""
    if option == "wordnet":
        return wordnet.found_folder(spec)
    if not spec.startswith("package:") and not Path(os.path.expanduser(spec)).is_dir():
        raise InputError(f"--{option}={spec} is not a local folder; give one, or package:NAME/PATH.")
    return locate(spec)


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.augment", description=__doc__)
    add = parser.add_argument
    add("--method", required=True, help=", ".join(METHODS))
    text = "text as for training: file, glob, hf:..., tfds:...; repeatable"
    add("--input", required=True, action="append", help=text)
    output = "the .tsv file, or folder of .parquet parts, DIR/, to write"
    add("--output", type=local_path, required=True, help=output)
    add("--text_column", default=TEXT, help="column of the sentences in a table; default: text")
    add("--column", default="", help="name of the second column; default: the kind of view, such as synonyms")
    add("--seed", type=int, default=0, help="seed of all random choices; default: 0")
    add("--quiet", action="store_true", help="no progress bar")
    for name, (kind, defaults, text) in OPTIONS.items():
        known = [f"{value} for {method}" for method, value in defaults.items() if value not in (REQUIRED, "", None)]
        default = f"; default: {', '.join(known)}" if known else ""
        add(f"--{name}", type=kind, help=f"(only {', '.join(defaults)}) {text}{default}")
    return parser


if __name__ == "__main__":
    run(main)
