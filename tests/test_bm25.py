"""BM25, the lexical baseline: its words against bm25s, its weights by hand, its documents and its cache."""

from pathlib import Path

import bm25s
import numpy as np
import pytest
from test_documents import Reranker

from jaxdistill import evaluate
from jaxdistill.core import InputError
from jaxdistill.evals import bm25, documents
from jaxdistill.evals.ranking import ordered

from eval_cases import read_test, write_set


def test_bm25_reads_words_as_bm25s_does_and_scripts_without_spaces_in_pairs():
    text = "The cat's 3 Mäuse, 10 naïve_dogs; Кот и 고양이 العربية"
    theirs = bm25s.tokenize([text], stopwords="en", return_ids=False, show_progress=False)[0]
    assert bm25.words(text) == theirs != []
    assert bm25.words("iPhone手机壳在2010年。スーパー") == "iphone 手机 机壳 壳在 2010 年 スー ーパ パー".split()
    assert bm25.words("ที่นี่ ๑๒ ก") == ["ที่นี่", "๑๒", "ก"]  # vowels and tones belong to their consonant
    assert bm25.words("किताब पढ़ना अच्छा") == ["किताब", "पढ़ना", "अच्छा"]  # vowel signs do not end a word
    assert bm25.words("বাংলা ভাষা العَرَبِيَّة cafe\u0301s") == ["বাংলা", "ভাষা", "العَرَبِيَّة", "cafés"]
    assert bm25.words("İstanbul ＡＢＣ ﬁre STRASSE") == bm25.words("istanbul abc fire straße") != []
    assert [len(bm25.words(text)) for text in ("ພາສາ", "ភាសា", "မြန်မာ")] == [3, 1, 3]


def test_bm25_weighs_words_and_lengths_as_lucene_does():
    texts = ["cat cat dog", "cat bird bird bird bird", "dog", "rain rain cat dog fish"]
    read, average = [text.split() for text in texts], 14 / 4
    expected = [
        sum(
            np.log(1 + (4.5 - holding) / (holding + 0.5))
            * (count := words.count(word))
            / (count + 0.9 * (0.6 + 0.4 * len(words) / average))
            for word, holding in (("cat", 3), ("rain", 1))
        )
        for words in read
    ]
    scores, rows = bm25.rank(["The Cat, rain?"], texts, 3)
    assert rows[0].tolist() == np.argsort(expected)[::-1][:3].tolist() == [3, 0, 1]
    assert scores[0] == pytest.approx(sorted(expected)[:0:-1], rel=1e-5)


def test_bm25_finds_only_documents_that_share_a_word_with_the_query(tmp_path):
    queries = [("q1", "Do cats sleep?"), ("q2", "Who is the?"), ("q3", "unheard")]
    qrels = [("q1", "d1", 1), ("q2", "d2", 1), ("q3", "d3", 1)]
    known = read_test(write_set(tmp_path / "tiny", queries=queries, qrels=qrels))
    ranking = bm25.rank(list(known.queries.values()), list(known.documents.values()), 3)
    assert ordered(*ranking, list(known.documents)) == [["d1"], [], []]
    for found in (ranking, documents.reranked(ranking, Reranker(), known)):
        assert list(documents.scored(found, known).values()) == pytest.approx([1 / 3] * 5)
    with pytest.raises(InputError, match="finds no word in any of 2 documents"):
        bm25.rank(["cats"], ["a", "the"], 1)


def test_scores_of_bm25_are_remembered_for_the_same_code_and_library_only(tmp_path, monkeypatch):
    folder = str(write_set(tmp_path / "tiny"))
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    made, rank = [], bm25.rank
    monkeypatch.setattr(bm25, "rank", lambda *given: made.append(1) or rank(*given))
    for _ in range(2):
        evaluate("bm25", tasks="documents", retrieval=folder)
    assert len(made) == 1
    changed = tmp_path / "bm25.py"
    changed.write_bytes(Path(bm25.__file__).read_bytes().replace(b"K1, B = 0.9", b"K1, B = 1.2"))
    with monkeypatch.context() as other:
        other.setattr(bm25, "__file__", str(changed))
        evaluate("bm25", tasks="documents", retrieval=folder)
    assert len(made) == 2
    monkeypatch.setattr(bm25, "versions", lambda names: dict.fromkeys(names, "0.0"))
    evaluate("bm25", tasks="documents", retrieval=folder)
    assert len(made) == 3
