"""A second column of rewritten sentences: by WordNet, by a masked language model, by translation; killed and resumed."""

import importlib.util
import json
import random
import re
from pathlib import Path

import pytest
import transformers

from jaxdistill import augment
from jaxdistill.augmentation.translate import Translator
from jaxdistill.augmentation.wordnet import WordNet, replaced
from jaxdistill.cli import BAD_INPUT
from jaxdistill.core import InputError
from jaxdistill.data.part_folder import PartFolder
from jaxdistill.data.sources import read

from augment_cases import SIZES, augmented, write_masked_lm, write_translator, write_wordnet, write_words
from program import ended, refused, start_all
from tiny_text import made_up


@pytest.fixture(scope="module")
def wordnet(tmp_path_factory):
    return write_wordnet(tmp_path_factory.mktemp("database") / "wordnet")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    return str(folder), write_masked_lm(folder)


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    return write_translator(tmp_path_factory.mktemp("marian"))


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join([*made_up(60), ""]) + "\n", encoding="utf-8")
    return str(tmp_path / "text.txt")


# Synonyms


def test_synonyms_are_the_other_lemmas_of_all_synsets_and_of_irregular_base_forms(wordnet):
    database = WordNet(wordnet)
    assert database.synonyms("dog") == ["Canis familiaris", "frump"]
    assert database.synonyms("geese") == ["fathead"] and database.synonyms("sang") == ["chant"]
    assert database.synonyms("old") == ["aged"]
    assert database.synonyms("cat") == database.synonyms("dogs") == []
    assert WordNet(wordnet, senses=1).synonyms("dog") == ["Canis familiaris"]


def test_replacing_keeps_case_punctuation_and_function_words(wordnet):
    database = WordNet(wordnet, senses=1)
    new = replaced("A Dog, a GOOSE; dogs  don't sang: \u201cOld!\u201d", database, rate=0.999, rng=random.Random(0))
    assert new == "A Canis familiaris, a Fathead; dogs  don't chant: \u201cAged!\u201d"
    assert replaced("the dog", database, rate=0.999, rng=random.Random(0)) == "the canis familiaris"


def test_the_rate_is_the_share_of_words_replaced(wordnet):
    new = replaced("blue " * 4000, WordNet(wordnet), rate=0.1, rng=random.Random(0))
    assert 320 < new.count("azure") < 480  # 4 standard deviations are 76


@pytest.mark.parametrize("missing", ["index.verb", "data.adj", "noun.exc"])
def test_an_incomplete_or_mixed_database_is_refused_by_name(tmp_path, missing):
    folder = Path(write_wordnet(tmp_path / "wordnet"))
    (folder / "data.noun").write_text((folder / "data.verb").read_text())
    with pytest.raises(InputError, match="data.noun and index.noun do not belong together"):
        WordNet(folder).synonyms("dog")
    (folder / "index.adv").write_text("word\n")
    with pytest.raises(InputError, match="index.adv:1 is not an entry"):
        WordNet(folder)
    (folder / missing).unlink()
    with pytest.raises(InputError, match=rf"{missing} cannot be read|index.adv:1"):
        WordNet(folder)


def test_the_real_wordnet_is_read_whole():
    database = WordNet()  # launch/test.sh installs it
    assert "couch" in database.synonyms("sofa") and "felicitous" in database.synonyms("happy")
    assert "fathead" in database.synonyms("geese")
    for index in database._index.values():
        for word in list(index)[::200]:
            assert all(re.fullmatch(r"[^\s_()]+( [^\s_()]+)*", lemma) for lemma in database.synonyms(word)), word


# The table and its program


def test_the_table_is_read_back_row_for_row(wordnet, text, tmp_path):
    table = augmented("--method=synonyms", f"--wordnet={wordnet}", f"--input={text}", f"--output={tmp_path / 's.tsv'}")
    assert table[0] == ("text", "synonyms")
    texts = [text for (text,) in read([text])]
    back = list(read([str(tmp_path / "s.tsv")], {"text": "", "other": "synonyms"}))
    assert back == table[1:]
    assert [row[0] for row in back] == texts and texts[-1] == "" == back[-1][1]
    assert 5 < sum(one != other for one, other in back) < 55


def test_a_cell_with_tabs_and_line_ends_stays_one_cell(wordnet, tmp_path):
    given = ["one\ttwo\r\nthree", "\u2028dog\x0b\x85 ", "", "\ufeffcat\t"]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"s": line}) + "\n" for line in given))
    augmented("--method=synonyms", f"--wordnet={wordnet}", f"--input={tmp_path / 't.jsonl'}", "--text_column=s",
              "--column=other", f"--output={tmp_path / 'o.tsv'}")  # fmt: skip
    back = [row[0] for row in read([str(tmp_path / "o.tsv")], ["text", "other"])]
    assert back == ["one two three", "\u2028dog\x0b\x85 ", "", "\ufeffcat "]


def arguments_of(method, wordnet, bert, marian) -> list[str]:
    return {
        "synonyms": ["--method=synonyms", f"--wordnet={wordnet}", "--rate=0.5"],
        "mlm": ["--method=mlm", f"--model={bert[0]}", "--rate=0.4", "--batch_size=4"],
        "translate": ["--method=translate", f"--model={marian}", "--max_length=6", "--beams=2", "--batch_size=4"],
    }[method]


@pytest.mark.parametrize("method", ["synonyms", "mlm", "translate"])
def test_a_row_depends_on_seed_text_and_number_alone(method, wordnet, bert, marian, tmp_path, monkeypatch):
    method = arguments_of(method, wordnet, bert, marian)
    words = write_words(tmp_path)
    lines = Path(words).read_text().splitlines()
    (tmp_path / "fewer.txt").write_text("\n".join(line.replace("w1", "old dog") for line in lines[:20]) + "\n")
    (tmp_path / "more.txt").write_text("\n".join([*lines[:20], *["rain"] * 5]) + "\n")
    (tmp_path / "words.txt").write_text("\n".join(line.replace("w1", "old dog") for line in lines) + "\n")
    whole = augmented(*method, f"--input={words}", f"--output={tmp_path / 'whole.tsv'}")
    monkeypatch.setattr(augment, "PART_ROWS", 7)
    assert augmented(*method, f"--input={words}", f"--output={tmp_path / 'chunks.tsv'}") == whole
    assert augmented(*method, f"--input={tmp_path / 'fewer.txt'}", f"--output={tmp_path / 'fewer.tsv'}") == whole[:21]
    if "--method=translate" not in method:
        seeded = augmented(*method, f"--input={words}", f"--output={tmp_path / 'seed.tsv'}", "--seed=1")
        assert seeded[0] == whole[0] and seeded != whole


@pytest.mark.parametrize("method", ["synonyms", "mlm", "translate"])
def test_an_interrupted_run_goes_on_to_the_same_bytes(method, wordnet, bert, marian, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(augment, "PART_ROWS", 8)
    words = write_words(tmp_path)
    arguments = [*arguments_of(method, wordnet, bert, marian), f"--input={words}"]
    augmented(*arguments, f"--output={tmp_path / 'whole.tsv'}")
    summary = capsys.readouterr().out
    write, calls = PartFolder.write, []

    def interrupted(self, part, save, counts):
        calls.append(part)
        if len(calls) == 4:
            raise KeyboardInterrupt
        write(self, part, save, counts)

    monkeypatch.setattr(PartFolder, "write", interrupted)
    output = tmp_path / "stopped.tsv"
    with pytest.raises(KeyboardInterrupt):
        augmented(*arguments, f"--output={output}")
    assert not output.exists() and len([*(tmp_path / ".stopped.tsv.parts").glob("part-*")]) == 3
    capsys.readouterr()
    augmented(*arguments, f"--output={output}")
    assert calls == [0, 1, 2, 3, 3, 4, 5, 6]
    assert output.read_bytes() == (tmp_path / "whole.tsv").read_bytes()
    assert capsys.readouterr().out == summary.replace("whole", "stopped")
    assert not (tmp_path / ".stopped.tsv.parts").exists()


def test_a_folder_of_parts_is_read_as_text_for_training(wordnet, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(augment, "PART_ROWS", 25)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": f"dog\t{line}"}) + "\n" for line in made_up(60)))
    arguments = [
        "--method=synonyms",
        f"--wordnet={wordnet}",
        f"--input={tmp_path / 't.jsonl'}",
        "--rate=0.5",
        "--quiet",
    ]
    augment.main([*arguments, f"--output={tmp_path / 'parts'}/"])
    augment.main([*arguments, f"--output={tmp_path / 'o.tsv'}"])
    assert capsys.readouterr().out.count("60 rows with the columns text and synonyms") == 2
    both = ["text", "synonyms"]
    found = list(read([f"{tmp_path}/parts/*.parquet"], both))
    assert [tuple(cell.replace("\t", " ") for cell in row) for row in found] == list(read([f"{tmp_path}/o.tsv"], both))
    assert found[0][0].startswith("dog\t") and len([*(tmp_path / "parts").glob("*.parquet")]) == 3
    augment.main([*arguments, f"--output={tmp_path / 'parts'}"])
    assert "parts is complete: 60 rows" in capsys.readouterr().out
    assert "other inputs (seed was 0, is 1)" in refused(augment, [*arguments, "--seed=1", f"--output={tmp_path}/parts/"], capsys)  # fmt: skip


def test_processes_share_the_parts_of_a_folder(wordnet, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(made_up(3000)) + "\n")
    arguments = ["--method=synonyms", f"--wordnet={wordnet}", f"--input={tmp_path / 'text.txt'}"]
    both = start_all([*arguments, f"--output={tmp_path / 'two'}/"], module="augment")
    (said, _), (silent, _) = ended(both, 0)
    assert "3,000 rows" in said and "rows" not in silent
    augment.main([*arguments, f"--output={tmp_path / 'one'}/", "--quiet"])
    one, two = ([path.read_bytes() for path in sorted(tmp_path.glob(f"{name}/part-*"))] for name in ("one", "two"))
    assert len(one) == 3 and one == two
    (_, why), _ = ended(start_all([*arguments, f"--output={tmp_path / 'two.tsv'}"], module="augment"), BAD_INPUT)
    assert f"several processes can only write a folder of parts; give --output={tmp_path / 'two'}/" in why


def test_a_finished_table_is_left_alone_and_other_options_are_refused(wordnet, text, tmp_path, capsys):
    arguments = ["--method=synonyms", f"--wordnet={wordnet}", f"--input={text}", f"--output={tmp_path / 's.tsv'}"]
    augmented(*arguments)
    before = (tmp_path / "s.tsv").stat().st_mtime_ns
    words = len(Path(text).read_text().split())
    assert f"of {words} words changed" in capsys.readouterr().out
    augmented(*arguments)
    assert "is complete: 61 rows" in capsys.readouterr().out
    assert "was made from other inputs (seed was 0, is 1)" in refused(augment, [*arguments, "--seed=1"], capsys)
    assert "(rate was 0.1, is 0.2)" in refused(augment, [*arguments, "--rate=0.2"], capsys)
    with open(text, "a") as file:
        file.write("one more\n")
    assert "other inputs (input was" in refused(augment, arguments, capsys)
    assert (tmp_path / "s.tsv").stat().st_mtime_ns == before
    with open(tmp_path / "s.tsv", "a") as file:
        file.write("more\n")
    Path(text).write_text(Path(text).read_text().removesuffix("one more\n"))
    assert "was changed after it was written" in refused(augment, arguments, capsys)


def test_what_another_program_wrote_is_never_overwritten(wordnet, text, tmp_path, capsys):
    arguments = ["--method=synonyms", f"--wordnet={wordnet}", f"--input={text}", f"--output={tmp_path / 's.tsv'}"]
    (tmp_path / "s.tsv").write_text("mine")
    assert "exists without a valid s.tsv.json" in refused(augment, arguments, capsys)
    assert (tmp_path / "s.tsv").read_text() == "mine"


def test_the_input_is_not_the_output_and_a_link_or_a_tilde_leads_to_the_file(
    wordnet, text, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    arguments = ["--method=synonyms", f"--wordnet={wordnet}", f"--input={text}", "--quiet"]
    (tmp_path / "link.tsv").symlink_to(tmp_path / "table.tsv")
    augment.main([*arguments, "--output=~/link.tsv"])
    before = (tmp_path / "table.tsv").read_bytes()
    assert (tmp_path / "link.tsv").is_symlink() and before
    again = ["--method=synonyms", f"--wordnet={wordnet}", f"--input={tmp_path}/table.tsv"]
    for name in ("table.tsv", "link.tsv"):
        assert "was made from other inputs" in refused(augment, [*again, f"--output={tmp_path}/{name}"], capsys)
    assert (tmp_path / "table.tsv").read_bytes() == before


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--method=synonym"], "unknown method 'synonym'; known: synonyms, mlm, translate. Did you mean synonyms?"),
        (["--method=synonyms", "--wordnett=x"], "Did you mean --wordnet?"),
        (["--method=synonyms", "--top_k=3"], "--top_k is an option of --method=mlm, not of synonyms"),
        (["--method=synonyms", "--rate=1"], "--rate=1.0 must lie between 0 and 1"),
        (["--method=mlm", "--model=.", "--rate=0"], "--rate=0.0 must lie between 0 and 1"),
        (["--method=mlm", "--model=.", "--rate=many"], "invalid float value: 'many'"),
        (["--method=mlm", "--model=.", "--top_k=0"], "--top_k=0 must be at least 1"),
        (["--method=mlm"], "--method=mlm needs --model"),
        (["--method=mlm", "--model=absent"], "--model=absent is not a local folder"),
        (["--method=translate", "--model=.", "--back_model=org/name"], "--back_model=org/name is not a local folder"),
        (
            ["--method=synonyms", "--wordnet=absent"],
            "no folder absent; run apt-get install wordnet-base, or unzip nltk",
        ),
        (["--method=synonyms", "--wordnet=.", "--output=x.txt"], "must end in .tsv, or in / for a folder"),
        (["--method=synonyms", "--wordnet=.", "--column=text"], "cannot be the second column's name"),
        (["--method=synonyms", "--wordnet=.", "--input=absent.txt"], "absent.txt does not exist"),
    ],
)
def test_every_fault_is_one_line(wrong, said, text, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    wrong = [argument.replace("=.", "=here") for argument in wrong]
    standard = [f"--input={text}"] * (not any("--input" in argument for argument in wrong)) + ["--output=o.tsv"]
    assert said in refused(augment, [*standard, *wrong], capsys)
    assert not list(tmp_path.glob("o.tsv*"))


def test_where_wordnet_is_looked_for_is_said(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NLTK_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(Path, "is_dir", lambda path: False)
    line = refused(augment, ["--method=synonyms", f"--input={text}", f"--output={tmp_path / 's.tsv'}"], capsys)
    assert "/usr/share/wordnet" in line and f"{tmp_path}/data/corpora/wordnet" in line and "wordnet-base" in line


# Translation


def test_there_and_back_are_two_models(marian, tmp_path):
    other = write_translator(tmp_path / "back", seed=1)
    words = write_words(tmp_path, 9)
    common = ["--method=translate", f"--input={words}", "--max_length=5", "--beams=1", f"--model={marian}"]
    one_way = augmented(*common, f"--output={tmp_path / 'one.tsv'}")
    both = augmented(*common, f"--back_model={other}", f"--output={tmp_path / 'both.tsv'}")
    assert one_way[0] == ("text", "translation") and both[0] == ("text", "back_translation")
    assert len(one_way) == len(both) == 10
    options = dict(beams=1, max_length=5, batch_size=32)
    there = Translator(marian, **options)([row[0] for row in one_way[1:]])
    assert there == [row[1] for row in one_way[1:]]
    assert Translator(other, **options)(there) == [row[1] for row in both[1:]]


def test_a_model_of_many_languages_needs_their_codes(tmp_path, marian):
    letters = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3} | {x: 4 + i for i, x in enumerate("\u2581abcd")}
    tokenizer = transformers.NllbTokenizer(vocab=letters, merges=[], src_lang="eng_Latn")
    tokenizer.save_pretrained(tmp_path)
    sizes = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in SIZES.items()}
    config = transformers.M2M100Config(vocab_size=len(tokenizer), d_model=16, max_position_embeddings=24, **sizes)
    transformers.M2M100ForConditionalGeneration(config).save_pretrained(tmp_path)
    options = dict(beams=1, max_length=5, batch_size=2)
    languages = dict(source_language="fra_Latn", target_language="deu_Latn")
    translator = Translator(str(tmp_path), **languages, **options)
    assert translator.tokenizer("a").input_ids[0] == tokenizer.convert_tokens_to_ids("fra_Latn")
    assert translator.options["forced_bos_token_id"] == tokenizer.convert_tokens_to_ids("deu_Latn")
    assert len(translator(["a b", "", "c"])) == 3
    with pytest.raises(InputError, match="needs --source_language and"):
        Translator(str(tmp_path), **options)
    with pytest.raises(InputError, match="does not know the language 'german'"):
        Translator(str(tmp_path), **(languages | {"target_language": "german"}), **options)
    with pytest.raises(InputError, match="has no use for --source_language"):
        Translator(marian, **languages, **options)


def test_without_torch_the_extra_is_named(marian, text, tmp_path, capsys, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "torch" else find_spec(name, *a))
    arguments = ["--method=translate", f"--model={marian}", f"--input={text}", f"--output={tmp_path / 't.tsv'}"]
    assert "needs PyTorch, which is not installed; run: pip install 'jaxdistill[augment]'" in refused(
        augment, arguments, capsys
    )


def test_a_folder_that_holds_no_translation_model_is_refused(bert, text, tmp_path, capsys):
    arguments = ["--method=translate", f"--model={bert[0]}", f"--input={text}", f"--output={tmp_path / 't.tsv'}"]
    assert "cannot be loaded as a translation model" in refused(augment, arguments, capsys)
