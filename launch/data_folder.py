"""Builds the data folder (docs/guide/data.md) from public sources: the sets that the papers' rows need.

    hf download princeton-nlp/datasets-for-simcse senteval.tar --repo-type=dataset --local-dir=. && tar xf senteval.tar
    python launch/data_folder.py DATA --senteval=.                      # STS12 to STS16, STS-B, SICK and the transfer sets
    python launch/data_folder.py DATA snli sts17 qnli parallel          # from the Hugging Face hub, by `datasets`
    export JAXDISTILL_DATA=DATA

A set whose number of rows is not the published one is not written.
"""

import argparse
import gzip
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

Row = Sequence[str]
STS = {
    12: (3108, "MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    13: (1500, "FNWN", "headlines", "OnWN"),
    14: (3750, "deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    15: (3000, "answers-forums", "answers-students", "belief", "headlines", "images"),
    16: (1186, "answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
"""Number of graded pairs and subsets of each year."""
POLARITY = {
    "mr": (10_662, "MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "cr": (3771, "CR/custrev.pos", "CR/custrev.neg"),
    "subj": (10_000, "SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "mpqa": (10_603, "MPQA/mpqa.pos", "MPQA/mpqa.neg"),
}
"""Number of sentences, and SentEval's files of sentences with label 1 and with label 0."""
STS17 = {"ar-ar": "ar-ar", "en-ar": "en-ar", "en-de": "en-de", "en-en": "en-en", "en-fr": "fr-en", "en-tr": "en-tr",
         "es-en": "es-en", "es-es": "es-es"}  # fmt: skip
"""Maps tracks to the hub's subsets."""
LANGUAGES = ("ar", "de", "es", "fr", "tr")
MAX_TRANSLATIONS = 50_000
"""Pairs per language."""
NLI_LABELS = ("entailment", "neutral", "contradiction")


Set = tuple[str, Row, Iterable[Row], int | None]
"""Path without its suffix, columns, rows and their published number, if there is one."""
GRADED, LABELLED = ("subset", "score", "sentence1", "sentence2"), ("label", "sentence")
PAIRS, ENTAILED = ("label", "sentence1", "sentence2"), ("premise", "hypothesis", "label")


def write(data: Path, name: str, columns: Row, rows: Iterable[Row], expected: int | None) -> None:
    """Writes a table; ends the program if the number of rows is not `expected`."""
    path = data / f"{name}.tsv.gz"
    lines = ["\t".join(" ".join(str(cell).split()) for cell in row) for row in rows]
    if expected is not None and len(lines) != expected:
        sys.exit(f"{path}: the source has {len(lines):,} rows, the published set {expected:,}. Nothing was written.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(["\t".join(columns), *lines, ""]).encode(), mtime=0))
    print(f"{path}: {len(lines):,} rows")


def lines_of(path: Path) -> list[str]:
    encoding = "latin-1" if path.parent.name in ("MR", "CR", "SUBJ", "MPQA", "TREC") else "utf-8-sig"
    return path.read_text(encoding=encoding).splitlines()


def senteval(folder: Path) -> Iterator[Set]:
    """STS12 to STS16, STS-B, SICK, and the transfer sets, from the folders of SentEval's download."""
    if not (folder / "MR").is_dir():
        below = sorted(folder.rglob("MR/rt-polarity.pos"))
        if not below:
            sys.exit(f"--senteval={folder}: holds no MR/rt-polarity.pos, directly or in a folder below.")
        folder = below[0].parent.parent
    for year, (count, *subsets) in STS.items():
        yield f"sts/sts{year}.test", GRADED, graded_pairs(folder / f"STS/STS{year}-en-test", subsets), count
    for split, count in (("train", 5749), ("dev", 1500), ("test", 1379)):
        rows = (line.split("\t") for line in lines_of(folder / f"STS/STSBenchmark/sts-{split}.csv"))
        yield f"sts/stsb.{split}", GRADED, ((f"{row[0]}/{row[1]}", row[4], row[5], row[6]) for row in rows), count
    for split, name, count in (("train", "train", 4500), ("trial", "trial", 500), ("test", "test_annotated", 4927)):
        sick = [line.split("\t") for line in lines_of(folder / f"SICK/SICK_{name}.txt")[1:]]
        yield f"sts/sick.{split}", GRADED, (("SICK", row[3], row[1], row[2]) for row in sick), count
        yield f"nli/sick.{split}", ENTAILED, ((row[1], row[2], row[4].strip().lower()) for row in sick), count
    for name, (count, *files) in POLARITY.items():
        rows = ((label, line) for label, file in zip("10", files, strict=True) for line in lines_of(folder / file))
        yield f"transfer/{name}.all", LABELLED, (row for row in rows if row[1].strip()), count
    for split, count in (("train", 67_349), ("dev", 872), ("test", 1821)):
        rows = (line.split("\t")[::-1] for line in lines_of(folder / f"SST/binary/sentiment-{split}"))
        yield f"transfer/sst2.{split}", LABELLED, rows, count
    for split, name, count in (("train", "train_5500", 5452), ("test", "TREC_10", 500)):
        questions = (line.partition(" ") for line in lines_of(folder / f"TREC/{name}.label"))
        rows = ((label.partition(":")[0], question) for label, _, question in questions)
        yield f"transfer/trec.{split}", LABELLED, rows, count
    for split, count in (("train", 4076), ("test", 1725)):
        rows = (line.split("\t") for line in lines_of(folder / f"MRPC/msr_paraphrase_{split}.txt")[1:])
        yield f"transfer/mrpc.{split}", PAIRS, ((row[0], row[3], row[4]) for row in rows), count


def graded_pairs(folder: Path, subsets: Sequence[str]) -> Iterator[Row]:
    """Pairs with a score; SentEval leaves out those without one."""
    for subset in subsets:
        pairs, scores = lines_of(folder / f"STS.input.{subset}.txt"), lines_of(folder / f"STS.gs.{subset}.txt")
        for pair, score in zip(pairs, scores, strict=True):
            if score.strip():
                yield subset.removeprefix("surprise."), score, *pair.split("\t")[:2]


def snli() -> Iterator[Set]:
    """SNLI, without pairs that have no label."""
    for split, name, count in (("train", "train", 549_367), ("dev", "validation", 9842), ("test", "test", 9824)):
        rows = (row for row in hub("stanfordnlp/snli", split=name) if row["label"] >= 0)
        named = ((row["premise"], row["hypothesis"], NLI_LABELS[row["label"]]) for row in rows)
        yield f"nli/snli.{split}", ENTAILED, named, count


def sts17() -> Iterator[Set]:
    """STS 2017: eight tracks of 250 pairs."""
    for track, subset in STS17.items():
        rows = hub("mteb/sts17-crosslingual-sts", subset, split="test")
        graded = [(f"sts17-{track}", row["score"], row["sentence1"], row["sentence2"]) for row in rows]
        yield f"multilingual/sts17.{track}.test", GRADED, graded, 250


def qnli() -> Iterator[Set]:
    """QNLI's dev set of GLUE; label 1 means that the sentence answers the question."""
    rows = hub("nyu-mll/glue", "qnli", split="validation")
    yield "pairs/qnli.dev", PAIRS, ((1 - row["label"], row["question"], row["sentence"]) for row in rows), 5463


def parallel() -> Iterator[Set]:
    """Talks with translations: at most `MAX_TRANSLATIONS` pairs of English and each language."""
    for language in LANGUAGES:
        split = f"train[:{MAX_TRANSLATIONS}]"
        rows = hub("sentence-transformers/parallel-sentences-talks", f"en-{language}", split=split)
        full = ([" ".join(row[side].split()) for side in ("english", "non_english")] for row in rows)
        yield f"parallel/en-{language}", ("en", language), (pair for pair in full if all(pair)), None


def hub(*name: str, split: str) -> Iterable:
    import datasets

    return datasets.load_dataset(*name, split=split)


SETS = {"snli": snli, "sts17": sts17, "qnli": qnli, "parallel": parallel}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder to write to")
    names = f"sets of the hub: {', '.join(SETS)}"
    parser.add_argument("sets", nargs="*", choices=[*SETS, []], metavar="SET", help=names)
    parser.add_argument("--senteval", type=Path, help="folder with SentEval's sets: MR, CR, SST, STS, SICK and so on")
    args = parser.parse_args(arguments)
    sources = ([senteval(args.senteval)] if args.senteval else []) + [SETS[name]() for name in args.sets]
    for name, columns, rows, expected in itertools.chain(*sources):
        write(args.data, name, columns, rows, expected)


if __name__ == "__main__":
    main()
