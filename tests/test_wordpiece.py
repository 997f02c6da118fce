"""A tokenizer trained on the user's own text: what it holds, that it stays the same, and who can load it."""

import dataclasses
import json
import logging
import os
import random
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
import transformers
from sentence_transformers import SentenceTransformer

from jaxdistill import config as configs
from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.checkpoints.tokenizer import read_tokenizer
from jaxdistill.core import InputError
from jaxdistill.data import wordpiece, words
from jaxdistill.encoders.settings import read_settings
from jaxdistill.inference import Embedder
from jaxdistill.ops.unknown import unknown_id
from jaxdistill.options import config_file
from jaxdistill.reading import check_reads, tokenised_text
from jaxdistill.students.parts.vocabulary import new_tokenizer
from jaxdistill.surgery import resizing
from jaxdistill.training import train
from jaxdistill.training.results.outcome import restored_student
from jaxdistill.training.setup.build import build
from jaxdistill.training.setup.student import make_student, setting_of
from jaxdistill.workdir.folder import claim_workdir

import encoder_cases as cases
from conftest import ROOT
from program import write_teacher
from tiny_models import tiny_model
from tiny_text import made_up

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
    return write_table(tmp_path)


def write_table(folder):
    lines = [f"{row} {en}\t{row} {de}" for row in range(40) for en, de in zip(ENGLISH, GERMAN, strict=True)]
    (folder / "pairs.tsv").write_text("\n".join(["en\tde", *lines]) + "\n", encoding="utf-8")
    return str(folder / "pairs.tsv")


BOTH = {"text": "en", "translation": "de"}


def test_words_are_lower_case_keep_their_accents_and_come_from_all_columns(table, tmp_path):
    tokenizer = read(wordpiece.train_wordpiece([table], columns=BOTH, entries=300, cache_folder=tmp_path / "c"))
    assert tokenizer.encode("The MÄDCHEN trinkt schon schön").tokens == [
        "[CLS]", "the", "mädchen", "trinkt", "schon", "schön", "[SEP]",
    ]  # fmt: skip
    english = read(wordpiece.train_wordpiece([table], columns={"text": "en"}, entries=300, cache_folder=tmp_path / "c"))
    assert english.token_to_id("mädchen") is None and english.token_to_id("girl") is not None


def test_special_tokens_come_first_and_the_files_say_the_same(table, tmp_path):
    folder = wordpiece.train_wordpiece([table], columns=BOTH, entries=300, cache_folder=tmp_path / "c")
    tokenizer = read(folder)
    assert [tokenizer.id_to_token(i) for i in range(5)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    entries = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert {entry: number for number, entry in enumerate(entries)} == tokenizer.get_vocab()
    assert len(entries) <= 300
    pair = tokenizer.encode("the girl", "das mädchen")
    assert pair.tokens == ["[CLS]", "the", "girl", "[SEP]", "das", "mädchen", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 0, 1, 1, 1]


def test_no_more_entries_than_asked_for_and_no_less_where_the_text_has_them(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(f"word{i:04d} word{i:04d}" for i in range(2000)), encoding="utf-8")
    for entries in (256, 1000):
        folder = wordpiece.train_wordpiece([str(tmp_path / "a.txt")], entries=entries, cache_folder=tmp_path / "c")
        assert read(folder).get_vocab_size() == entries


def test_the_rarest_characters_go_first_and_take_a_quarter_of_the_entries_at_most(tmp_path):
    characters = [chr(0x400 + i) for i in range(200)]  # Cyrillic, so none is punctuation
    lines = [" ".join(characters[: 200 - skip]) for skip in range(200)]
    assert wordpiece.frequent_characters(iter(["bab B a c"]), 2) == (["b", "a"], 0.0)
    tokenizer = wordpiece.learnt(lambda: iter(lines), 256)
    single = [entry for entry in tokenizer.get_vocab() if len(entry) == 1]
    assert len(single) <= 256 // 4 and tokenizer.get_vocab_size() <= 256


def test_two_processes_train_the_same_tokenizer(tmp_path):
    """Without a fixed order of the characters, `tokenizers` gives another vocabulary in each process."""
    path = tmp_path / "a.txt"
    path.write_text("\n".join(made_up(300) + GERMAN * 3), encoding="utf-8")
    program = (
        "import sys; from jaxdistill.data import wordpiece as w;"
        "print(w.train_wordpiece([sys.argv[1]], entries=400, cache_folder=sys.argv[2]).joinpath('tokenizer.json').read_text())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program, str(path), str(tmp_path / f"cache{number}")],
            capture_output=True, text=True, check=True, cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"},
        ).stdout
        for number in range(3)
    }  # fmt: skip
    assert len(printed) == 1


def test_it_is_trained_once_for_the_same_text_columns_and_size(table, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)

    def folder(**changed):
        options = dict(columns=BOTH, entries=300, cache_folder=tmp_path / "c") | changed
        return wordpiece.train_wordpiece([table], **options)

    first = folder()
    assert "entries was trained on the text" in caplog.text
    assert len({first, folder(entries=280), folder(columns={"text": "en"}), folder(columns={"text": "de"})}) == 4
    monkeypatch.setattr(wordpiece, "learnt", None)
    assert folder() == first
    shutil.copy(table, tmp_path / "same.tsv")
    assert (
        wordpiece.train_wordpiece([str(tmp_path / "same.tsv")], columns=BOTH, entries=300, cache_folder=tmp_path / "c")
        == first
    )
    monkeypatch.undo()
    with open(table, "a", encoding="utf-8") as file:
        file.write("more\tmehr\n")
    assert folder() != first


@pytest.mark.parametrize(
    ("specs", "entries", "words"),
    [
        (["TEXT"], 255, "student.vocabulary=255 is too small.*256 or more"),
        (["TEXT"], -1, "student.vocabulary=-1 is too small"),
        (["absent.txt"], 300, "absent.txt does not exist"),
    ],
)
def test_what_cannot_be_trained_is_one_clear_line(table, tmp_path, specs, entries, words):
    specs = [spec.replace("TEXT", table) for spec in specs]
    with pytest.raises(InputError, match=words) as error:
        wordpiece.train_wordpiece(specs, columns=BOTH, entries=entries, cache_folder=tmp_path / "c")
    assert "\n" not in str(error.value) and not (tmp_path / "c").exists()


def bilingual(folder, **student) -> configs.Config:
    """The `en-de` preset with a random teacher, small sizes and `pairs.tsv`, for 4 steps."""
    raw = config_file.load_config_module(ROOT / "configs" / "dual_l2.py").get_config("en-de").to_dict()
    raw["data"] |= dict(
        text=str(folder / "pairs.tsv"), batch_size=16, max_length=32, cache_folder=str(folder / "cache")
    )
    raw["teacher"]["model"] = str(folder / "model")
    raw["student"] |= dict(width=16, depth=1, vocabulary=300) | student
    raw["evals"] |= dict(every=2, best="agreement/spearman")
    raw["run"] |= dict(steps=4, precision="float32")
    return configs.parse_config(raw)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(config, run, outcome) of such a training, its tokenizer kept in the workdir."""
    folder = tmp_path_factory.mktemp("bilingual")
    write_table(folder)
    write_teacher(folder)
    config = bilingual(folder)
    claim_workdir(folder / "w", config, write=True)
    run = build(config, folder / "w", progress=False)
    config.student.keep(run.models.student, run.workdir)
    return config, run, train.train(run, progress=False)


def test_the_export_is_a_plain_bert_with_the_same_ids_everywhere(trained, tmp_path):
    _, run, outcome = trained
    save(outcome.student, tmp_path)
    config = read_settings(tmp_path / "config.json")
    assert (config["model_type"], config["pad_token_id"]) == ("bert", 0)
    assert config["vocab_size"] == run.models.student.tokenizer.get_vocab_size()
    ours = [encoding.ids for encoding in run.models.student.tokenizer.encode_batch(HARD)]
    again = load_model(str(tmp_path))
    assert [encoding.ids for encoding in again.tokenizer.encode_batch(HARD)] == ours
    theirs = SentenceTransformer(str(tmp_path), device="cpu")
    assert theirs.tokenizer(HARD, truncation=True)["input_ids"] == ours
    np.testing.assert_allclose(theirs.encode(HARD), Embedder(again).encode(HARD), atol=1e-5)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(auto).__name__.startswith("BertTokenizer")
    assert auto(HARD, truncation=True)["input_ids"] == ours
    (tmp_path / "tokenizer.json").unlink()  # leaves vocab.txt and tokenizer_config.json, which older programs read
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)(HARD, truncation=True)["input_ids"] == ours


def test_student_and_teacher_read_their_own_tokens_of_both_columns(trained):
    _, run, _ = trained
    assert run.text.store.columns == ("text", "translation")
    tokenizer = run.models.student.tokenizer
    assert tokenizer.decode(run.text.store.ids("translation", 0).tolist()) == "0 das mädchen trinkt kaffee."
    assert run.models.student.tokenizer.get_vocab() != run.models.teacher.tokenizer.get_vocab()
    assert run.objective.student_views == ("text", "translation") and run.objective.teacher_views == ("text",)


def test_a_run_goes_on_and_is_exported_without_cache_and_text(trained):
    config, run, outcome = trained
    vectors = Embedder(outcome.student).encode(ENGLISH)
    shutil.rmtree(config.data.cache_folder)
    os.remove(config.data.text)
    again = make_student(config, run.models.teachers, run.workdir)
    assert again.digest() == run.models.student.digest()
    restored = restored_student(run.workdir, [outcome.best_step])
    np.testing.assert_array_equal(Embedder(restored).encode(ENGLISH), vectors)


def test_only_views_that_the_student_reads_are_learnt_from(table, tmp_path):
    write_teacher(tmp_path)
    config = bilingual(tmp_path)
    english = dataclasses.replace(config, objective=config.objective | {"second_view": ""})
    has = {}
    for name, chosen in (("both", config), ("english", english)):
        has[name] = read(new_tokenizer(setting_of(chosen, tmp_path / "w"), 300)).token_to_id("mädchen") is not None
    assert has == {"both": True, "english": False}


def test_a_tokenizer_is_new_or_trimmed(table, tmp_path):
    write_teacher(tmp_path)
    with pytest.raises(
        InputError, match="student.vocabulary=300 makes a new tokenizer and student.trim=text.txt trims"
    ):
        build(bilingual(tmp_path, trim="text.txt"), tmp_path / "w", progress=False)


def test_an_objective_of_tokens_refuses_a_tokenizer_of_its_own(table, tmp_path):
    write_teacher(tmp_path)
    raw = json.loads(json.dumps(dataclasses.asdict(bilingual(tmp_path))))
    tokens = config_file.load_config_module(ROOT / "configs" / "simtde.py").get_config("tiny").to_dict()
    raw |= dict(objective=tokens["objective"])
    raw["data"]["columns"] = "en"
    raw["teacher"] = dict(kind="live", model=raw["teacher"]["model"])
    with pytest.raises(InputError, match="must share tokenizer"):
        build(configs.parse_config(raw), tmp_path / "w", progress=False)


def test_a_student_of_any_family_becomes_a_bert(table, tmp_path):
    cases.write_encoder(tmp_path / "roberta", "roberta")
    folder = wordpiece.train_wordpiece([table], columns=BOTH, entries=300, cache_folder=tmp_path / "c")
    template = load_model(str(tmp_path / "roberta"), pooling="mean")
    student = resizing.fresh(template, jax.random.key(0), width=32, depth=1, tokenizer_folder=folder)
    save(student, tmp_path / "out")
    theirs = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(theirs.encode(HARD), Embedder(load_model(str(tmp_path / "out"))).encode(HARD), atol=1e-5)
    assert student.definition.architecture.longest == template.definition.architecture.longest


THAI = ["แมวนอนหลับ", "สุนัขวิ่ง", "ในสวน", "เด็กหญิงดื่มกาแฟ", "ทุกเช้า", "ฝนตก", "ที่บ้าน", "กับเพื่อน", "สวยมาก"]


def thai_sentences(count):
    """Sentences without spaces."""
    draw = random.Random(0)
    return ["".join(draw.choices(THAI, k=draw.randint(8, 30))) for _ in range(count)]


def test_a_language_without_spaces_gets_tokens_and_not_one_unknown_word(tmp_path):
    *texts, fresh = thai_sentences(200)
    (tmp_path / "thai.txt").write_text("\n".join(texts), encoding="utf-8")
    folder = wordpiece.train_wordpiece([str(tmp_path / "thai.txt")], entries=400, cache_folder=tmp_path / "cache")
    tokenizer = read(folder)
    with_rare = f"{fresh}\u2603{fresh}"
    assert len(fresh) > 100
    found = words.tokenised_words(tokenizer, [fresh, with_rare], "", 500, unknown=unknown_id(tokenizer))
    assert found.unknown.unknown_tokens == found.unknown.unknown_characters == 1  # the snowman alone
    assert found.unknown.characters == 3 * len(fresh) + 1
    behind = words.tokenised_words(tokenizer, [fresh], "☃ ", 500, unknown=unknown_id(tokenizer))
    assert behind.unknown.unknown_tokens == 0  # a prompt is not the text
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert theirs(with_rare)["input_ids"] == tokenizer.encode(with_rare).ids


def test_a_text_that_a_tokenizer_does_not_know_is_refused_unless_it_is_allowed(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    model = tiny_model(tmp_path / "model")
    (tmp_path / "a.txt").write_text("the cat sleeps\n" * 8 + "".join(THAI) + "\n", encoding="utf-8")
    data = configs.Data(text=str(tmp_path / "a.txt"), cache_folder=str(tmp_path / "cache"), max_length=16, dedupe=False)
    length = len("".join(THAI))
    shares = f"{1 / 25:.2%} of tokens, {length / (8 * 12 + length):.2%} of characters"
    for _ in range(2):  # built, and from the cache
        with pytest.raises(
            InputError, match=f"does not know the text of column text: {shares}.*--config.data.max_unknown=0"
        ):
            tokenised_text(data, model, ("text",), max_length=16, progress=False)
    store = tokenised_text(dataclasses.replace(data, max_unknown=1.0), model, ("text",), max_length=16, progress=False)
    assert f"column text, tokenizer of tiny: {shares} unknown" in caplog.text
    with pytest.raises(InputError, match=f"{shares}.*max_unknown"):
        check_reads(data, model, ("delete_words",), store)


def test_one_line_of_encoded_data_does_not_outweigh_a_text(tmp_path):
    model = tiny_model(tmp_path / "model")
    texts = [*["the cat sleeps in the garden"] * 200, "QUJD" * 10_000]
    found = words.tokenised_words(model.tokenizer, texts, "", 16, unknown=unknown_id(model.tokenizer))
    assert found.unknown.unknown_tokens == 1
    assert found.unknown.share < configs.Data().max_unknown
