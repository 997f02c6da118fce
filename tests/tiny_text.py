"""Tokenizers of the three kinds and text for the data tests, made without any download."""

from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from jaxdistill.data.batches import Batches, Viewed
from jaxdistill.data.tokens import TokenStore, build_store

SENTENCES = [
    "The cat sleeps.",
    "A dog, two cats and the neighbour's parrot watch  the rain together!",
    "Überraschung: naïve façades aren't cheap",
    "one",
    "don't stop - it's 3.5 kilometres to go?",
    "Ünïcödé\u00a0spaces\u3000count as white space, too",
    "日本語 と English mixed 🙂 text",
]


def word_piece(max_length: int = 64, *, more_words: int = 0) -> Tokenizer:
    """As BERT's: lower case, punctuation apart, words spelled letter by letter."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + list("0123456789.,:'?!-")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters), "the", "cat", "##s"]
    pieces += [f"extra{i}" for i in range(more_words)]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=max_length, pad_id=0, pad_token="[PAD]")  # baked in, as in MiniLM's file
    tokenizer.enable_truncation(max_length)
    return tokenizer


def untrimmed() -> Tokenizer:
    """The space before a word counts as a token's character, and a mark for it may be a token of its own. Ids have a gap."""
    vocab = {"<s>": 0, "</s>": 1, "\u2581": 2, "<unk>": 3, "a": 4, "\u2581a": 70_000}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("\u2581", "a")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return tokenizer


def byte_level() -> Tokenizer:
    """As RoBERTa's: bytes, a space belongs to the token behind it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "<pad>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer


def sentence_piece() -> Tokenizer:
    """As XLM-R's: unigrams, a mark for the space before each word."""
    return Tokenizer.from_str(_sentence_piece())


@cache
def _sentence_piece() -> str:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer.to_str()  # kept as text: the trainer's order of equal pieces differs from call to call


def bare(tokenizer: Tokenizer) -> Tokenizer:
    """Without the padding and truncation that are baked in."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def made_up(count: int, *, words: int = 12, seed: int = 0) -> list[str]:
    """Distinct sentences of 1 to `words` words."""
    import random

    draw = random.Random(seed)
    vocabulary = ["cat", "the", "dog", "rain", "a", "sleeps", "under", "old", "tree", "sings", "of", "blue"]
    return [f"{i} " + " ".join(draw.choices(vocabulary, k=draw.randint(1, words))) for i in range(count)]


def store_of(folder, lines, *, name="text.txt", tokenizer=None, max_length=64, **options) -> TokenStore:
    """A token store of these lines."""
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    standard = {"tokenizer": tokenizer or word_piece(), "max_length": max_length, "cache_folder": folder / "cache"}
    return build_store([str(path)], **(standard | options))


COLUMNS = {"text": "sentence1", "second": "sentence2"}


def write_pairs(path, pairs):
    rows = ["sentence1\tsentence2", *("\t".join(pair) for pair in pairs)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def batches_of(store, other=None, *, student_views, teacher_views=(), targets=(), **options):
    """Batches of a store, with stored targets or with a teacher that reads the other store."""
    teacher = targets if other is None else Viewed(other, teacher_views)
    return Batches(Viewed(store, student_views), teacher, **options)


def rows_at(batches, step):
    """Store rows of a step's examples, in the order of the batch."""
    plan = batches._plan(step)
    return plan.rows[plan.order]
