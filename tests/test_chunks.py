"""Long texts in chunks of whole sentences: ends in many languages, lengths, the token store, and a training's batches."""

import numpy as np
import pytest

from jaxdistill.data.chunks import Chunking, sentence_ends
from jaxdistill.data.text import parse_roles
from jaxdistill.data.tokens import build_store
from jaxdistill.training.build import build

import program
from program import write_teacher
from tiny_text import byte_level, made_up, sentence_piece, word_piece


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith met J. R. Tolkien at 3.5 p.m. in the U.S. Army. |He said: “Go!” |Then he left. |See Fig. 3, vol. 7. OK?",
        "Er kam am 3. Oktober z. B. nach Wien. |„Ja.“ |Sie ging bzw. blieb.",
        "It was in 1990. |See http://x.y?a=1 is a link... |Wow!",
        "猫は寝る。|「はい。」|と言った。３．５は数。|終わり！",
        "他说：“好。”|然后走了。",
        "هل تنام القطة؟ |نعم.",
        "बिल्ली सोती है। |कुत्ता नहीं।",
        "a line\nof text\n\n|and a paragraph",
        "ไม่มีจุด มีแต่ช่องว่าง",
    ],
)
def test_sentences_end_where_a_reader_of_the_language_ends_them(text):
    sentences, joined = text.split("|"), text.replace("|", "")
    assert sentence_ends(joined) == np.cumsum([len(sentence) for sentence in sentences]).tolist()


ARTICLE = " ".join(f"The {line.partition(' ')[2]} today." for line in made_up(60, words=4, seed=3))


@pytest.mark.parametrize("make", [word_piece, sentence_piece, byte_level])
@pytest.mark.parametrize("least", [0, 8])
def test_chunks_keep_every_word_within_the_tokens_allowed(make, least):
    tokenizer = make()
    tokenizer.no_padding()
    tokenizer.no_truncation()
    long_word, unspaced = "x" * 500, "日本語" * 60
    texts = [ARTICLE, "One.", f"{long_word} and then {ARTICLE}", unspaced]
    all_chunks = list(Chunking(tokenizer=make(), most=40, least=least).split(texts))
    for text, chunks in zip(texts, all_chunks, strict=True):
        assert "".join("".join(chunks).split()) == "".join(text.split())
        lengths = [len(tokenizer.encode(chunk, add_special_tokens=False)) for chunk in chunks]
        assert max(lengths) <= 40  # also where a word's begin has more tokens without the space before it
    assert all_chunks[1] == ["One."]
    assert all(chunk.endswith(".") for chunk in all_chunks[0])
    if least:
        assert len(all_chunks[0]) > len(list(Chunking(tokenizer=make(), most=40).split(texts))[0])
    assert all_chunks == list(Chunking(tokenizer=make(), most=40, least=least).split(texts))


@pytest.fixture
def passages(tmp_path):
    """A table of titles and texts, one title empty, one text twice, and a plain file."""
    rows = ["title\ttext", "the cat?\t" + ARTICLE, "\tThe dog sleeps. Rain.", "the cat?\tThe dog sleeps. Rain."]
    (tmp_path / "passages.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "sentences.txt").write_text("the rain\n\nthe cat?\n")
    return [str(tmp_path / "passages.tsv"), str(tmp_path / "sentences.txt")]


COLUMNS = {"text": "text", "title": "title"}


def store_of(passages, folder, chunking=None, tokenizer=None, **options):
    roles = parse_roles("title=query,text=document", columns=tuple(COLUMNS), sources=2)
    prompts = {"": "", "query": "the ", "document": ""}
    return build_store(
        passages, tokenizer=tokenizer or word_piece(), max_length=64, columns=COLUMNS, cache_folder=folder / "cache",
        prompts=prompts, roles=roles, dedupe=True, chunking=chunking or Chunking(tokenizer=word_piece(), most=40), **options,
    )  # fmt: skip


def test_titles_and_chunks_are_rows_of_their_own_with_their_roles(passages, tmp_path):
    store = store_of(passages, tmp_path)
    texts, roles = list(store.texts()), store.roles("text", range(store.rows))
    assert store.columns == ("text",) and sum(store.source_rows) == store.rows
    assert [text for text, role in zip(texts, roles, strict=True) if role == "query"] == ["the cat?"]
    documents = [text for text, role in zip(texts, roles, strict=True) if role == "document"]
    assert documents[-3:] == ["The dog sleeps. Rain.", "the rain", "the cat?"]  # a plain file has documents alone
    assert " ".join(documents[:-3]) == ARTICLE
    assert store.source_rows[1] == 2


def test_excluded_texts_are_found_before_they_are_split(passages, tmp_path):
    (tmp_path / "test.txt").write_text(ARTICLE.upper() + "\n")
    store = store_of(passages, tmp_path, exclude=[str(tmp_path / "test.txt")])
    assert store.rows == store_of(passages, tmp_path).rows - len(
        next(Chunking(tokenizer=word_piece(), most=40).split([ARTICLE]))
    )


def test_student_and_teacher_of_a_training_read_the_same_chunks(passages, tmp_path):
    write_teacher(tmp_path)
    options = {
        "data.text": ",".join(passages), "data.columns": tuple(COLUMNS.items()), "data.chunk_tokens": 32,
        "data.max_length": 32, "data.cache_folder": str(tmp_path / "cache"), "data.batch_size": 8, "data.pack_groups": 2,
        "teacher.model": str(tmp_path / "model"), "data.roles": "title=query", "student.query_prompt": "the ",
        "student.layers": "0", "evals.pairs": "", "evals.best": "last",
    }  # fmt: skip
    run = build(program.config_of("configs/l2.py:tiny", options), tmp_path / "w", progress=False)
    assert run.store.longest("text") <= 32 and run.store.rows > 30
    batch = run.batches.batch_at(0)
    assert batch.student.ids.shape == batch.teacher.ids.shape
