"""Composes the embedded text from patterns and words.

Sentences are made by filling the slots of patterns with typed vocabulary, so that every
sentence is grammatical and sensible without being copied from anywhere.  Running
`python -m quickstart_text.compose --out DIR` in `tests` writes `train.txt` and `heldout.txt`, always
the same bytes for the same vocabulary and patterns.
"""

import argparse
import collections
import itertools
import pathlib
import random
import re

from quickstart_text import patterns, vocabulary

SEED = 20
TRAIN_COUNT = 26000
PAIR_COUNT = 1000
FRAME_SHARE = 0.12
# A pattern whose combinations are used up fails this often in a row and is retired.
PATIENCE = 25
# These blocks gather patterns by form, so two of their sentences need not be related.
TOPICLESS = ("paraphrase", "longer", "tiny", "videos", "captions")

ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")
SLOT = re.compile(r"\{(a )?([a-z_]+)(\d?)(?:\.([a-z_]+))?\}")
# Sound, not spelling, decides between "a" and "an".
VOWEL_SOUND = re.compile(r"(?!uni[cfqtv]|us[eu]|eu|uku|one\b)[aeiou]|hour|heir|honest|x-ray", re.IGNORECASE)


def pattern_lines(text):
    """Return the patterns of one block."""
    return [line.strip() for line in text.strip().splitlines() if line.strip()]


def pattern_list(topics):
    """Return (topic, pattern) for all patterns of a mapping from topic to block."""
    return [(topic, line) for topic, text in topics.items() for line in pattern_lines(text)]


def paraphrase_groups():
    """Return the groups of held-out patterns which share one meaning."""
    return [line.split(" / ") for line in pattern_lines(patterns.HELDOUT_PARAPHRASES)]


def normalize(sentence):
    """Return the form under which two sentences count as the same."""
    return " ".join(re.sub(r"[^a-z0-9 ]", "", sentence.lower()).split())


def choose_alternatives(pattern, randomness):
    """Settle every "[x|y]" of a pattern."""
    return ALTERNATIVES.sub(lambda match: randomness.choice(match[1].split("|")), pattern)


def slot_keys(pattern):
    """Return the distinct (slot, digit) keys of a pattern in order of appearance."""
    return list(dict.fromkeys((match[2], match[3]) for match in SLOT.finditer(pattern)))


def bind(pattern, slots, randomness, bound=None):
    """Return an entry for each slot key; no two keys share their text."""
    bound = dict(bound or {})
    used = {chosen[""] for chosen in bound.values()}
    for key in slot_keys(pattern):
        if key not in bound:
            bound[key] = randomness.choice([item for item in slots[key[0]] if item[""] not in used])
            used.add(bound[key][""])
    return bound


def indefinite(text):
    """Put "a" or "an" before a text."""
    return ("an " if VOWEL_SOUND.match(text) else "a ") + text


def capitalize(sentence):
    """Capitalize the first letter, and the first letter after an opening quotation mark."""
    return re.sub(r'^("?)([a-z])', lambda match: match[1] + match[2].upper(), sentence)


def fill(pattern, bound):
    """Write out a pattern whose alternatives are settled."""

    def written(match):
        text = bound[match[2], match[3]][match[4] or ""]
        return indefinite(text) if match[1] else text

    sentence = re.sub(r" +", " ", SLOT.sub(written, pattern.lstrip("~"))).strip()
    return capitalize(sentence.replace(" ,", ",").replace(" .", "."))


def framed(pattern, randomness):
    """Put some of the plain statements into a frame."""
    if pattern.startswith("~") and randomness.random() < FRAME_SHARE:
        return randomness.choice(pattern_lines(patterns.FRAMES)).replace("{}", pattern[1:])
    return pattern


def turns(pattern):
    """Return how often a pattern comes up in one round: many slots allow many sentences."""
    return max(1, (len(slot_keys(pattern)) + 1) // 2)


def compose_train(count=TRAIN_COUNT, seed=SEED):
    """Return distinct training sentences, the patterns taking turns."""
    randomness = random.Random(seed)
    active = {pattern: 0 for _, pattern in pattern_list(patterns.TRAIN_PATTERNS)}
    seen, sentences = set(), []
    while len(sentences) < count and active:
        for pattern in [each for each in active for _ in range(turns(each))]:
            if pattern not in active:
                continue
            settled = choose_alternatives(framed(pattern, randomness), randomness)
            sentence = fill(settled, bind(settled, vocabulary.TRAIN, randomness))
            if normalize(sentence) in seen:
                active[pattern] += 1
                if active[pattern] >= PATIENCE:
                    del active[pattern]
                continue
            active[pattern] = 0
            seen.add(normalize(sentence))
            sentences.append(sentence)
    sentences = sentences[:count]
    randomness.shuffle(sentences)
    return sentences


class HeldoutComposer:
    """Composes sentences that use a held-out pattern or at least one held-out word."""

    def __init__(self, seed):
        self.randomness = random.Random(seed)
        self.new_patterns = pattern_list(patterns.HELDOUT_PATTERNS)
        self.new_patterns += [("paraphrase", line) for group in paraphrase_groups() for line in group]
        self.new_lines = {line for _, line in self.new_patterns}
        self.old_patterns = [
            item
            for item in pattern_list(patterns.TRAIN_PATTERNS)
            if any(slot in vocabulary.HELDOUT for slot, _ in slot_keys(ALTERNATIVES.sub("", item[1])))
        ]
        self.pattern_counts = collections.Counter(topic for topic, _ in self.new_patterns + self.old_patterns)
        # Where a slot has held-out entries, about half of the choices fall on them.
        self.slots = {slot: self.mixed(slot, entries) for slot, entries in vocabulary.TRAIN.items()}
        self.heldout_texts = {slot: {item[""] for item in entries} for slot, entries in vocabulary.HELDOUT.items()}

    @staticmethod
    def mixed(slot, entries):
        """Return the training entries of a slot with its held-out entries repeated among them."""
        new = vocabulary.HELDOUT.get(slot, [])
        return entries + new * (len(entries) // len(new) if new else 0)

    def is_heldout(self, pattern, bound):
        """Tell whether the pattern or a chosen entry occurs in the held-out part only."""
        return pattern in self.new_lines or any(
            chosen[""] in self.heldout_texts.get(slot, ()) for (slot, _), chosen in bound.items()
        )

    def choose(self, topic=None):
        """Return (topic, pattern, settled pattern, entries) of one held-out sentence."""
        while True:
            pool = self.new_patterns if self.randomness.random() < 0.5 else self.old_patterns
            pool = [item for item in pool if topic is None or item[0] == topic]
            if not pool:
                continue
            topic_found, pattern = self.randomness.choice(pool)
            settled = choose_alternatives(pattern, self.randomness)
            bound = bind(settled, self.slots, self.randomness)
            if self.is_heldout(pattern, bound):
                return topic_found, pattern, settled, bound

    def near_pair(self):
        """Return two wordings of one meaning, or a sentence and itself with one slot changed."""
        if self.randomness.random() < 0.5:
            first, second = self.randomness.sample(self.randomness.choice(paraphrase_groups()), 2)
            bound = bind(first + second, self.slots, self.randomness)
            return fill(first, bound), fill(second, bound)
        while True:
            _, pattern, settled, bound = self.choose()
            keys = slot_keys(settled)
            if not keys:
                continue
            changed = self.randomness.choice(keys)
            others = {key: item for key, item in bound.items() if key != changed}
            rebound = bind(settled, self.slots, self.randomness, others)
            if rebound[changed][""] != bound[changed][""] and self.is_heldout(pattern, rebound):
                return fill(settled, bound), fill(settled, rebound)

    def topic_pair(self):
        """Return two sentences of one topic made from different patterns."""
        topic, pattern, settled, bound = self.choose()
        while topic in TOPICLESS or self.pattern_counts[topic] < 3:
            topic, pattern, settled, bound = self.choose()
        while True:
            _, other, other_settled, other_bound = self.choose(topic)
            if other != pattern:
                return fill(settled, bound), fill(other_settled, other_bound)

    def unrelated_pair(self):
        """Return two sentences of different topics."""
        topic, _, settled, bound = self.choose()
        while True:
            other_topic, _, other_settled, other_bound = self.choose()
            if other_topic != topic:
                return fill(settled, bound), fill(other_settled, other_bound)


def compose_heldout(train, pair_count=PAIR_COUNT, seed=SEED + 1):
    """Return held-out sentences; lines 2i and 2i+1 form a pair of mixed similarity."""
    composer = HeldoutComposer(seed)
    seen, pairs = {normalize(sentence) for sentence in train}, []
    kinds = itertools.cycle((composer.near_pair, composer.topic_pair, composer.unrelated_pair))
    for kind in itertools.islice(kinds, pair_count):
        pair, keys = (), set()
        while len(keys) < 2 or keys & seen:
            pair = kind()
            keys = {normalize(sentence) for sentence in pair}
        seen |= keys
        pairs.append(pair)
    composer.randomness.shuffle(pairs)
    return [sentence for pair in pairs for sentence in pair]


def write_lines(path, lines):
    """Write one sentence per line."""
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def main(arguments=None):
    """Rewrite the composed files."""
    parser = argparse.ArgumentParser(description="Compose the embedded training and held-out text.")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    train = compose_train()
    write_lines(out / "train.txt", train)
    write_lines(out / "heldout.txt", compose_heldout(train))


if __name__ == "__main__":
    main()
