"""Writes the training text of the reference students, from a data folder.

    JAXDISTILL_DATA=DATA python benchmarks/reference_text.py --folder=runs/text

mixture.txt           sentences, titles and questions, and passages behind their titles: each file gives as many rows as the others
                      of its kind, science twice as many. Titles that occur in an evaluation set are left out
documents.txt         another draw of 16,000 sentences, 9,000 titles and 22,000 passages, and the documented functions of Python's
                      standard library with the first paragraphs of their docstrings, for the second stage of l6:documents
queries.txt           short texts, as queries are, for the last stage of l6:retrieval and l6:index: up to 50,000 titles, 24,000
                      sentences and 20,000 questions, and 35,000 ways to ask for functions of Python's standard library and of five
                      packages, by their names and docstrings. Texts that occur in an evaluation set are left out
titles.tsv            up to 15,000 titles and questions with their passages, none of which begins with its title, to mine negatives
pairs.tsv, scores.npy SICK's and STS-B's training pairs for CoSENT, with scores from 0 to 1, without pairs of an evaluation set.
                      STS-B is a selection from STS12 to STS17: 4,798 of its 5,749 training pairs are test pairs of STS12 to STS16,
                      which would not test a student that learned from them
"""

import ast
import glob
import gzip
import random
import re
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxdistill.cli import Parser, positive, run
from jaxdistill.core import InputError
from jaxdistill.data import sources
from jaxdistill.paths import in_package, needed_data_folder

SCIENCE = ("abstracts", "cord19", "semeval2017", "medical")
LEFT_OUT = ("pairs-index", "pairs-squad", "books", "us-presidential", "imdb")
"""An index, repeated texts, and text that nobody searches by questions."""
TESTS = ("sts12.test", "sts13.test", "sts14.test", "sts15.test", "sts16.test", "stsb.test", "stsb.dev", "sick.test")
NO_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "testing", "idle_test", "lib2to3"}
"""Folders left out; lib2to3's tests are programs of Python 2."""
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
PACKAGES = ("numpy", "scipy", "pandas", "matplotlib", "jax")
ASKED = ("python {}", "python {}", "{} in python", "how to {} in python")
"""Forms of a question, one of which is drawn for each function; the first is drawn half of the time."""
SCALES = {"stsb.train": (0.0, 5.0), "sick.train": (1.0, 5.0)}


def main(arguments: Sequence[str]) -> None:
    parser = Parser(prog="benchmarks/reference_text.py", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder to write to")
    parser.add_argument("--sentences", type=positive, default=130_000, help="sentences and questions of text/")
    parser.add_argument("--titles", type=positive, default=8_000, help="titles of passages alone, as queries are")
    parser.add_argument("--passages", type=positive, default=12_000, help="passages of passages/, behind their titles")
    parser.add_argument("--seed", type=int, default=0, help="of the choice")
    given = parser.parse_args(arguments)
    data, folder, seed = needed_data_folder("the text"), given.folder, given.seed
    folder.mkdir(parents=True, exist_ok=True)
    known, counts = evaluated(data), Counts(given.sentences, given.titles, given.passages)
    texts = read(data, known)
    chosen = mixture(texts, counts, random.Random(seed))
    write_lines(folder / "mixture.txt", chosen)
    longer = mixture(texts, OF_DOCUMENTS, random.Random(seed + 1)) + functions(
        Path(sysconfig.get_path("stdlib")), beginnings(data)
    )
    write_lines(folder / "documents.txt", longer)
    write_lines(folder / "queries.txt", queries(texts, known, random.Random(seed + 3)))
    write_lines(folder / "titles.tsv", ["text\tpositive", *titled(texts, random.Random(seed + 2))])
    rows, scores = graded(data / "sts")
    write_lines(folder / "pairs.tsv", ["sentence1\tsentence2", *rows])
    np.save(folder / "scores.npy", np.asarray(scores, np.float32)[:, None])
    print(f"{len(chosen):,} texts of {sum(len(text.split()) for text in chosen):,} words, {len(rows):,} pairs")


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Writes lines, each with its end."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


class Counts(NamedTuple):
    """Rows of a mixture."""

    sentences: int
    titles: int
    passages: int


OF_DOCUMENTS = Counts(16_000, 9_000, 22_000)
OF_QUERIES = Counts(24_000, 50_000, 0)
QUESTIONS, FUNCTIONS = 20_000, 35_000
BEGINNING = 80  # letters and digits
PAIRS = 15_000  # of which files that have fewer give all of theirs


class Texts(NamedTuple):
    """The unlabelled texts of a data folder, file by file."""

    sentences: Mapping[str, Sequence[str]]
    """By the name of their file."""
    titles: Sequence[Sequence[str]]
    passages: Sequence[Sequence[str]]
    pairs: Sequence[Sequence[str]]
    """Titles of three words or more and their passages, as lines."""
    weights: Sequence[float]
    """Of each file of titles and passages."""


def read(data: Path, known: AbstractSet[str]) -> Texts:
    """All texts that may be drawn, without titles that are `known`."""
    if not (data / "text" / "questions.txt.gz").is_file():
        raise InputError(
            f"{data} has no text/questions.txt.gz; set JAXDISTILL_DATA to the folder of text and evaluation sets."
        )
    files = sorted(data.glob("text/*.txt.gz"))
    sentences = {path.name.removesuffix(".txt.gz"): [row[0] for row in sources.read([str(path)])] for path in files}
    files = [path for path in sorted(data.glob("passages/*.tsv.gz")) if not path.name.startswith(LEFT_OUT)]
    weights = [2.0 if any(word in path.name for word in SCIENCE) else 1.0 for path in files]
    rows = [list(sources.read([str(path)], ("title", "text"))) for path in files]
    unknown = [[(title, text) for title, text in found if plain(title) not in known] for found in rows]
    titles = [list(dict.fromkeys(title for title, _ in found)) for found in unknown]
    passages = [[f"{title} {text}".strip() for title, text in found] for found in rows]
    pairs = [[f"{title}\t{text}" for title, text in found if is_query(title, text)] for found in unknown]
    return Texts(sentences, titles, passages, pairs, weights)


def is_query(title: str, text: str) -> bool:
    """Whether the title is more than the passage's first words."""
    return len(title.split()) > 2 and plain(title)[:30] not in plain(text)[:200]


def titled(texts: Texts, draw: random.Random) -> list[str]:
    """Some of the pairs, in random order."""
    chosen = drawn(texts.pairs, texts.weights, PAIRS, draw)
    draw.shuffle(chosen)
    return chosen


def mixture(texts: Texts, counts: Counts, draw: random.Random) -> list[str]:
    """Some of the texts, in random order."""
    chosen = drawn(list(texts.sentences.values()), [1.0] * len(texts.sentences), counts.sentences, draw)
    chosen += drawn(texts.titles, texts.weights, counts.titles, draw)
    chosen += drawn(texts.passages, texts.weights, counts.passages, draw)
    draw.shuffle(chosen)
    return chosen


def functions(library: Path, known: AbstractSet[str]) -> list[str]:
    """The functions of a folder's modules that have a docstring of three words or more, and the docstrings' first paragraphs.

    Each is one line, and given once. Tests and installed packages are left out, and texts that begin as one of `known`.
    """
    found = dict.fromkeys(one_line(text) for path in modules(library) for text in documented(path))
    return [text for text in found if plain(text)[:BEGINNING] not in known]


def modules(library: Path) -> list[Path]:
    """The modules of a library or a package."""
    return sorted(path for path in library.rglob("*.py") if NO_LIBRARY.isdisjoint(path.relative_to(library).parts))


def queries(texts: Texts, known: AbstractSet[str], draw: random.Random) -> list[str]:
    """Short texts in random order, each given once, and none that is `known`."""
    chosen = mixture(texts, OF_QUERIES, draw) + draw.sample(texts.sentences["questions"], QUESTIONS)
    libraries = {"": Path(sysconfig.get_path("stdlib"))} | {name: in_package(f"package:{name}") for name in PACKAGES}
    calls = dict.fromkeys(
        text for name, path in libraries.items() for module in modules(path) for text in asked(module, name)
    )
    chosen += [draw.choice(ASKED).format(text) for text in draw.sample(list(calls), FUNCTIONS)]
    chosen = [text for text in dict.fromkeys(chosen) if plain(text) not in known]
    draw.shuffle(chosen)
    return chosen


def asked(path: Path, package: str) -> Iterator[str]:
    """What one may ask for in a module, for each public function: its name, also with its class, package or module, and its docstring."""
    owners = (
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace")))
        if isinstance(node, ast.Module | ast.ClassDef)
    )
    for owner in owners:
        subject = words(owner.name) if isinstance(owner, ast.ClassDef) else package or words(path.stem)
        for node in owner.body:
            if isinstance(node, FUNCTION) and not node.name.startswith("_"):
                name, described = words(node.name), one_line(summary(node)).lower().rstrip(".")
                yield f"{name} {subject}"
                yield from (text for text in (name, described) if 1 < len(text.split()) < 25)


def words(name: str) -> str:
    """The words of an identifier, in lower case: `read_csv` and `ReadCSV` are `read csv`."""
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)).lower()


def documented(path: Path) -> Iterator[str]:
    """The first paragraph of each docstring of a module's functions, and the function."""
    source = path.read_text(encoding="utf-8", errors="replace")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, FUNCTION) and len(summary(node).split()) > 2:
            yield summary(node)
            yield ast.get_source_segment(source, node) or ""


def summary(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The first paragraph of its docstring."""
    return (ast.get_docstring(function) or "").split("\n\n")[0]


def beginnings(data: Path) -> set[str]:
    """How the documents of all retrieval sets begin."""
    found = set()
    for path in sorted(data.glob("retrieval/*/corpus.tsv.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found |= {plain(line.rstrip("\n").split("\t")[-1])[:BEGINNING] for line in file}
    return found


def one_line(text: str) -> str:
    """A text with single spaces for all white space."""
    return " ".join(text.split())


def drawn(kinds: Sequence[Sequence[str]], weights: Sequence[float], count: int, draw: random.Random) -> list[str]:
    """At most `count` texts, each kind's part by its weight; a kind that has fewer gives all."""
    shares = [round(count * weight / sum(weights)) for weight in weights]
    return [
        text for kind, share in zip(kinds, shares, strict=True) for text in draw.sample(kind, min(share, len(kind)))
    ]


def plain(text: str) -> str:
    """A text without case, spacing and punctuation."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


def evaluated(data: Path) -> set[str]:
    """All sentences of the STS sets, their training parts too, and all queries of retrieval sets."""
    found = {""}
    for path in (*glob.glob(f"{data}/sts/*.tsv.gz"), *glob.glob(f"{data}/retrieval/*/queries.tsv.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found |= {plain(cell) for line in file for cell in line.rstrip("\n").split("\t")}
    return found


def graded(folder: Path) -> tuple[list[str], list[float]]:
    """Training pairs as lines, and their scores."""
    known = {frozenset(map(plain, row[1:])) for name in TESTS for row in pairs(folder / f"{name}.tsv.gz")}
    rows, scores = [], []
    for name, (least, most) in SCALES.items():
        for score, first, second in pairs(folder / f"{name}.tsv.gz"):
            if frozenset((plain(first), plain(second))) not in known:
                rows.append(f"{first}\t{second}")
                scores.append((score - least) / (most - least))
    return rows, scores


def pairs(path: Path) -> Iterator[tuple[float, str, str]]:
    """Score and sentences of each row of an STS file."""
    for score, first, second in sources.read([str(path)], ("score", "sentence1", "sentence2")):
        yield float(score), first, second


if __name__ == "__main__":
    run(main)
