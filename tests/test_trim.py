"""Vocabularies trimmed to a text: the text is tokenised as before, here and in transformers, and the table is small."""

import json

import numpy as np
import pytest
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from jaxdistill.data.options import Data
from jaxdistill.encoders.architecture import Architecture, EncoderDefinition, Pooling
from jaxdistill.models import trim
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import SentenceModel, load_model
from jaxdistill.models.inference import Embedder

from tiny_models import random_params
from tiny_text import made_up

ENGLISH = made_up(300, words=6)
GERMAN = ["Das Mädchen trinkt Kaffee.", "Sie verkauft Liegestühle!", "Ein Café ist schön.", "Öl & Übung"] * 5
OTHER_LANGUAGES = ["Ο γάτος κοιμάται στον ήλιο", "Кошка спит на солнце", "猫が寝ている", "القطة نائمة"] * 5
CORPUS = ENGLISH[:150] + GERMAN
BERT = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
XLM_R = {"bos_token": "<s>", "cls_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "sep_token": "</s>"}
XLM_R |= {"unk_token": "<unk>", "mask_token": "<mask>"}
TEXT = [*ENGLISH, *GERMAN, *OTHER_LANGUAGES]


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=list(BERT.values()), show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return tokenizer, {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": False} | BERT


def unigram():
    """As XLM-R's: pieces with their scores, and a mask at the end."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=500, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, {"tokenizer_class": "XLMRobertaTokenizer"} | XLM_R


def bytes_bpe():
    """As Qwen's: byte-level merges, with special tokens behind all others."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(["<|endoftext|>"])
    end = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", end)]
            ),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    end = {"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    return tokenizer, {"tokenizer_class": "GPT2Tokenizer"} | end


def fallback_bpe():
    """As Gemma's: merges of characters, and bytes for characters that are no entries."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *trim.BYTES]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, limit_alphabet=60, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:4]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    special_tokens = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast"} | special_tokens


MAKERS = {"wordpiece": wordpiece, "unigram": unigram, "bytes_bpe": bytes_bpe, "fallback_bpe": fallback_bpe}
FAMILIES = {"wordpiece": "bert", "unigram": "xlm-roberta", "bytes_bpe": "bert", "fallback_bpe": "bert"}


def trimmed_to(tokenizer, corpus):
    used = {id for encoding in tokenizer.encode_batch(corpus) for id in encoding.ids}
    smaller = trim.trimmed(tokenizer, used.union(*(trim.unknown_prefixes(tokenizer, text) for text in corpus)))
    return smaller, trim.old_ids(tokenizer, smaller)


@pytest.fixture(scope="module", params=MAKERS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def trimmed_case(kind):
    """(tokenizer, its settings, it trimmed to the corpus)."""
    tokenizer, config = MAKERS[kind]()
    return tokenizer, config, trimmed_to(tokenizer, CORPUS)


def test_the_text_keeps_its_tokens_and_entries_of_other_languages_are_dropped(trimmed_case):
    tokenizer, _, (smaller, old_ids) = trimmed_case
    for sentence in CORPUS:
        assert smaller.encode(sentence).tokens == tokenizer.encode(sentence).tokens
        assert old_ids[smaller.encode(sentence).ids].tolist() == tokenizer.encode(sentence).ids
    assert smaller.get_vocab_size() == len(old_ids) < tokenizer.get_vocab_size()
    assert [smaller.id_to_token(new) for new in range(len(old_ids))] == [tokenizer.id_to_token(old) for old in old_ids]
    pair = smaller.encode(CORPUS[0], CORPUS[1])
    assert pair.tokens == tokenizer.encode(CORPUS[0], CORPUS[1]).tokens


WORDS = sorted({word for sentence in TEXT for word in sentence.split()})


def test_scores_of_pieces_come_back_to_the_last_bit(tmp_path):
    """Else two equally likely paths, "e ee" and "ee e", are chosen between by rounding."""
    tokenizer, _ = unigram()
    result, _ = trimmed_to(tokenizer, CORPUS)
    trim.write(result, tmp_path, tmp_path)
    before = dict(json.loads(tokenizer.to_str())["model"]["vocab"])
    for smaller in (result, Tokenizer.from_file(str(tmp_path / "tokenizer.json"))):
        after = dict(json.loads(smaller.to_str())["model"]["vocab"])
        assert after == {piece: before[piece] for piece in after}


@settings(max_examples=60, deadline=None)
@example(["aeee"])
@given(
    st.lists(
        st.lists(st.sampled_from(WORDS) | st.text("aeäsß .,#▁\n😀", max_size=6), min_size=1, max_size=6).map(" ".join),
        min_size=1,
        max_size=8,
    )
)
def test_any_corpus_keeps_its_tokens(kind, trimmed_case, corpus):
    """Also one with unknown characters, emoji in words, and marks that look like the tokenizers' own."""
    tokenizer, _, _ = trimmed_case
    smaller, _ = trimmed_to(tokenizer, corpus)
    for sentence in corpus:
        assert smaller.encode(sentence).tokens == tokenizer.encode(sentence).tokens


def test_an_unknown_word_stays_unknown():
    """Nothing follows `ab`. Without that entry, `a ##bx` would be found, whose parts other words use."""
    entries = ["[UNK]", "a", "ab", "c", "##bx", "unused"]
    tokenizer = Tokenizer(models.WordPiece({entry: id for id, entry in enumerate(entries)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    smaller, old_ids = trimmed_to(tokenizer, ["abx", "cbx a"])
    assert smaller.encode("abx").tokens == tokenizer.encode("abx").tokens == ["[UNK]"]
    assert old_ids.tolist() == [0, 1, 2, 3, 4]


def model_of(kind, tokenizer, config, folder):
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"}
        for token in json.loads(tokenizer.to_str())["added_tokens"]
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"added_tokens_decoder": added}))
    (folder / "vocab.json").write_text(json.dumps(tokenizer.get_vocab()))
    offset = (
        dict(position_offset=2, pad_id=1, token_types=1) if FAMILIES[kind] == "xlm-roberta" else dict(token_types=2)
    )
    if kind == "bytes_bpe":
        offset["pad_id"] = tokenizer.token_to_id("<|endoftext|>")
    architecture = Architecture(
        family=FAMILIES[kind], vocab_size=tokenizer.get_vocab_size() + 3, hidden_size=16, layers=1, heads=2,
        intermediate_size=32, max_positions=66, **offset,
    )  # fmt: skip
    definition = EncoderDefinition(architecture=architecture, pooling=Pooling.parse("mean"), normalize=True)
    params = random_params(definition, seed=0)
    params = {path: array * (1 if "norm" in path else 8) for path, array in params.items()}
    tokenizer.enable_truncation(64)
    return SentenceModel(
        definition=definition, params=params, tokenizer=tokenizer, max_length=64,
        prompts={"query": "Frage: "}, default_prompt=None, source="tiny", tokenizer_folder=folder,
    )  # fmt: skip


def test_the_export_gives_the_same_vectors_here_and_in_sentence_transformers(kind, trimmed_case, tmp_path):
    tokenizer, config, _ = trimmed_case
    model = model_of(kind, Tokenizer.from_str(tokenizer.to_str()), config, tmp_path / "model")
    (tmp_path / "text.txt").write_text("\n".join(CORPUS), encoding="utf-8")
    student = trim.trimmed_to_text([str(tmp_path / "text.txt")], Data(cache_folder=str(tmp_path / "cache")), model)
    rows, size = len(student.params[trim.WORDS]), student.tokenizer.get_vocab_size()
    assert rows == size == student.definition.architecture.vocab_size < tokenizer.get_vocab_size()
    expected = Embedder(model).encode(CORPUS)
    save(student, tmp_path / "export")
    assert not (tmp_path / "export" / "vocab.json").exists()
    np.testing.assert_allclose(Embedder(load_model(str(tmp_path / "export"))).encode(CORPUS), expected, atol=1e-5)
    reference = SentenceTransformer(str(tmp_path / "export"), device="cpu")
    np.testing.assert_allclose(reference.encode(CORPUS), expected, atol=1e-5)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "export")
    assert auto(CORPUS)["input_ids"] == [encoding.ids for encoding in student.tokenizer.encode_batch(CORPUS)]
    assert auto.pad_token_id == student.definition.architecture.pad_id
