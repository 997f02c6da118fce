"""A tokenizer trained on the user's text: its entries, that equal texts give equal ones, and that transformers loads it."""

import numpy as np
import pytest
import transformers
from sentence_transformers import SentenceTransformer

from jaxdistill import config as configs
from jaxdistill.config import load_config
from jaxdistill.core import unknown_id
from jaxdistill.data import wordpiece, words
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.checkpoints.tokenizer import read_tokenizer
from jaxdistill.models.inference import Embedder
from jaxdistill.training.build import build

from program import write_teacher
from tiny_text import made_up

pytestmark = pytest.mark.usefixtures("one_device")


ENGLISH = ["The girl drinks coffee.", "She sells nice beach chairs!", "A café is already beautiful."]
GERMAN = ["Das Mädchen trinkt Kaffee.", "Sie verkauft schöne Liegestühle!", "Ein Café ist schon schön."]
HARD = [
    "SCHÖNE Mädchen & Liegestühle", "schon schön", "a\u0308 decomposed", "日本語 unknown 🙂", "[MASK] in the text",
    "tabs\tand\u00a0spaces", "", "café" * 40, "don't stop: 3.5 km",
]  # fmt: skip


def read(folder):
    return read_tokenizer(folder, vocab_size=None, lower_case=False)


@pytest.fixture
def table(tmp_path):
    lines = [f"{row} {en}\t{row} {de}" for row in range(40) for en, de in zip(ENGLISH, GERMAN, strict=True)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["en\tde", *lines]) + "\n", encoding="utf-8")
    return str(tmp_path / "pairs.tsv")


BOTH = {"text": "en", "translation": "de"}


def test_words_are_lower_case_keep_their_accents_and_come_from_all_columns(table, tmp_path):
    tokenizer = read(wordpiece.train_wordpiece([table], columns=BOTH, entries=300, cache_folder=tmp_path / "c"))
    assert tokenizer.encode("The MÄDCHEN trinkt schon schön").tokens == [
        "[CLS]", "the", "mädchen", "trinkt", "schon", "schön", "[SEP]",
    ]  # fmt: skip
    english = read(wordpiece.train_wordpiece([table], columns={"text": "en"}, entries=300, cache_folder=tmp_path / "c"))
    assert english.token_to_id("mädchen") is None and english.token_to_id("girl") is not None


def test_the_same_text_gives_the_same_tokenizer(tmp_path):
    """Without a fixed order of the characters, each training with `tokenizers` gives another vocabulary."""
    path = tmp_path / "a.txt"
    path.write_text("\n".join(made_up(300) + GERMAN * 3), encoding="utf-8")
    folders = [wordpiece.train_wordpiece([str(path)], entries=400, cache_folder=tmp_path / cache) for cache in "abc"]
    assert len({(folder / "tokenizer.json").read_text() for folder in folders}) == 1


def bilingual(folder, **student) -> configs.Config:
    """The `en-de` preset with a random teacher, small sizes and `pairs.tsv`, for 4 steps."""
    raw = load_config("dual_l2.py:en-de").to_dict()
    raw["data"] |= dict(
        text=str(folder / "pairs.tsv"), batch_size=16, max_length=32, cache_folder=str(folder / "cache")
    )
    raw["teacher"]["model"] = str(folder / "model")
    raw["student"] |= dict(width=16, depth=1, vocabulary=300) | student
    raw["evals"] |= dict(every=2, best="agreement/spearman")
    raw["run"] |= dict(steps=4, precision="float32")
    return configs.parse_config(raw)


def test_the_export_is_a_plain_bert_with_the_same_ids_everywhere(table, tmp_path):
    write_teacher(tmp_path)
    student = build(bilingual(tmp_path), tmp_path / "w", progress=False).student
    save(student, tmp_path := tmp_path / "export")
    expected = [encoding.ids for encoding in student.tokenizer.encode_batch(HARD)]
    reloaded = load_model(str(tmp_path))
    assert [encoding.ids for encoding in reloaded.tokenizer.encode_batch(HARD)] == expected
    reference = SentenceTransformer(str(tmp_path), device="cpu")
    assert reference.tokenizer(HARD, truncation=True)["input_ids"] == expected
    np.testing.assert_allclose(reference.encode(HARD), Embedder(reloaded).encode(HARD), atol=1e-5)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(auto).__name__.startswith("BertTokenizer")
    assert auto(HARD, truncation=True)["input_ids"] == expected
    (tmp_path / "tokenizer.json").unlink()  # leaves vocab.txt and tokenizer_config.json, which older programs read
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)(HARD, truncation=True)["input_ids"] == expected


THAI = ["แมวนอนหลับ", "สุนัขวิ่ง", "ในสวน", "เด็กหญิงดื่มกาแฟ", "ทุกเช้า", "ฝนตก", "ที่บ้าน", "กับเพื่อน", "สวยมาก"]


def test_a_language_without_spaces_gets_tokens_and_not_one_unknown_word(tmp_path):
    *texts, fresh = ["".join(THAI[row:] + THAI[:row]) * 2 for row in range(len(THAI))]
    (tmp_path / "thai.txt").write_text("\n".join(texts), encoding="utf-8")
    folder = wordpiece.train_wordpiece([str(tmp_path / "thai.txt")], entries=400, cache_folder=tmp_path / "cache")
    tokenizer = read(folder)
    with_rare = f"{fresh}\u2603{fresh}"
    assert len(fresh) > 100
    tokenised = words.tokenised_words(tokenizer, [fresh, with_rare], ["", ""], 500, unknown=unknown_id(tokenizer))
    assert tokenised.unknown.unknown_tokens == tokenised.unknown.unknown_characters == 1  # the snowman alone
    assert tokenised.unknown.characters == 3 * len(fresh) + 1
    reference = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert reference(with_rare)["input_ids"] == tokenizer.encode(with_rare).ids
