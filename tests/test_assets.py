"""Is the embedded text what it claims to be: distinct, well formed, varied and truly held out?"""

import bz2
import collections
import re

import pytest

from conftest import ROOT
from quickstart_text import compose, patterns, vocabulary

FOLDER = ROOT / "jaxdistill" / "assets"
VOWEL_LETTER_WITH_A = re.compile(r"\ba (?!one\b|us|uni|eu|uku)[aeiou]", re.IGNORECASE)
CONSONANT_LETTER_WITH_AN = re.compile(r"\ban (?!hour|heir|honest|x-ray)[^aeiou\W]", re.IGNORECASE)


def content_of(name):
    content = (FOLDER / name).read_bytes()
    return bz2.decompress(content) if name.endswith(".bz2") else content


def lines_of(name):
    return content_of(name).decode().splitlines()


@pytest.fixture(scope="module")
def train():
    return lines_of("train.txt.bz2")


@pytest.fixture(scope="module")
def heldout():
    return lines_of("heldout.txt.bz2")


@pytest.fixture(scope="module")
def graded():
    header, *rows = [line.split("\t") for line in lines_of("graded_pairs.tsv")]
    assert header == ["score", "sentence1", "sentence2"]
    return rows


def tokens(lines):
    return {token for line in lines for token in compose.normalize(line).split()}


def test_counts_and_distinctness(train, heldout):
    assert len(train) >= 24000 and len(heldout) == 2 * compose.PAIR_COUNT
    normalized_train = {compose.normalize(line) for line in train}
    normalized_heldout = {compose.normalize(line) for line in heldout}
    assert len(normalized_train) == len(train)
    assert len(normalized_heldout) == len(heldout)
    assert not normalized_train & normalized_heldout


def test_composing_again_gives_the_same_bytes(tmp_path):
    compose.main(["--out", str(tmp_path)])
    for name in ("train.txt.bz2", "heldout.txt.bz2"):
        assert (tmp_path / name.removesuffix(".bz2")).read_bytes() == content_of(name)


def test_every_slot_and_form_exists():
    every = [line for _, line in compose.pattern_list(patterns.TRAIN_PATTERNS)]
    every += [line for _, line in compose.pattern_list(patterns.HELDOUT_PATTERNS)]
    every += [line for group in compose.paraphrase_groups() for line in group]
    every += compose.pattern_lines(patterns.FRAMES)
    for line in every:
        for _, slot, _, form in compose.SLOT.findall(line):
            for tables in (vocabulary.TRAIN, vocabulary.HELDOUT):
                assert all(form in item for item in tables.get(slot, [])), line
            assert slot in vocabulary.TRAIN, line


def test_pattern_and_vocabulary_sizes(train, heldout):
    assert len(compose.pattern_list(patterns.TRAIN_PATTERNS)) >= 400
    new_patterns = len(compose.pattern_list(patterns.HELDOUT_PATTERNS)) + len(compose.paraphrase_groups())
    assert new_patterns >= 20
    assert len(tokens(train)) >= 3000
    assert len(tokens(heldout) - tokens(train)) >= 100


def test_no_pattern_dominates():
    rounds = collections.Counter(
        {line: compose.turns(line) for _, line in compose.pattern_list(patterns.TRAIN_PATTERNS)}
    )
    assert max(rounds.values()) < 0.02 * sum(rounds.values())


def test_heldout_words_do_not_occur_in_train(train):
    text = "\n" + "\n".join(compose.normalize(line) for line in train) + "\n"
    words = set(re.findall(r"\S+", text))
    for entries in vocabulary.HELDOUT.values():
        for item in entries:
            phrase = compose.normalize(item[""])
            # Searching the long text only for phrases whose words all occur keeps this fast.
            if set(phrase.split()) <= words:
                assert not re.search(rf"\b{re.escape(phrase)}\b", text), phrase


def pattern_expression(pattern):
    """Return an expression which matches every sentence of a pattern."""
    expression = ""
    for part in re.split(r"(\{[^{}]*\})", pattern):
        expression += ".+?" if part.startswith("{") else re.escape(part)
    return re.compile(expression, re.IGNORECASE)


def test_heldout_patterns_do_not_occur_in_train(train):
    lines = [line for _, line in compose.pattern_list(patterns.HELDOUT_PATTERNS)]
    lines += [line for group in compose.paraphrase_groups() for line in group]
    assert len(set(lines)) == len(lines)
    for line in lines:
        literal = [part for part in re.split(r"\{[^{}]*\}", line) if part.strip()]
        assert "[" not in line and literal
        longest = max(literal, key=len).lower()
        expression = pattern_expression(line)
        # The longest literal part rules out nearly all sentences before the slow match.
        candidates = [sentence for sentence in train if longest in sentence.lower()]
        assert not [sentence for sentence in candidates if expression.fullmatch(sentence)], line


def test_lines_are_well_formed(train, heldout, graded):
    for line in train + heldout + [sentence for row in graded for sentence in row[1:]]:
        assert line == line.strip() and "  " not in line and line.isascii(), line
        assert not re.search(r"[{}\[\]|~]| [,.?!]|\.\.", line), line
        assert line[-1] in '.?!"' and not line.lstrip('"')[0].islower(), line
        assert not VOWEL_LETTER_WITH_A.search(line), line
        assert not CONSONANT_LETTER_WITH_AN.search(line), line


def test_lengths_vary(train):
    lengths = [len(line.split()) for line in train]
    assert sum(length <= 5 for length in lengths) >= 0.05 * len(lengths)
    assert sum(length >= 18 for length in lengths) >= 0.10 * len(lengths)
    assert 10 <= sum(lengths) / len(lengths) <= 14
    assert max(lengths) <= 40


def test_no_word_repeats_by_accident(train, heldout):
    for line in train + heldout:
        assert not re.search(r"\b(a|an|the|to|of|and|in|is|my) \1\b", line, re.IGNORECASE), line


def test_graded_pairs(graded, train, heldout):
    assert len(graded) >= 360 and all(len(row) == 3 for row in graded)
    scores = [float(row[0]) for row in graded]
    assert all(0 <= score <= 5 for score in scores)
    bands = collections.Counter(min(4, int(score)) for score in scores)
    assert all(bands[band] >= 30 for band in range(5))
    assert len({tuple(row[1:]) for row in graded}) == len(graded)
    composed = {compose.normalize(line) for line in train + heldout}
    for _, first, second in graded:
        assert compose.normalize(first) != compose.normalize(second)
        assert compose.normalize(first) not in composed and compose.normalize(second) not in composed


def test_heldout_pairs_are_of_mixed_similarity(heldout):
    shares = []
    for first, second in zip(heldout[::2], heldout[1::2], strict=False):
        words, others = (set(compose.normalize(line).split()) for line in (first, second))
        shares.append(len(words & others) / len(words | others))
    assert sum(share >= 0.4 for share in shares) >= 0.2 * len(shares)
    assert sum(share <= 0.15 for share in shares) >= 0.3 * len(shares)
