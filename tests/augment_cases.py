"""A database of a few words, random masked language models and translators, and texts for them."""

import re
from pathlib import Path

import numpy as np
import torch
import transformers

from jaxdistill import augment

import encoder_cases as cases

SYNSETS = {
    "noun": [["dog", "Canis_familiaris"], ["dog", "frump"], ["goose", "fathead"], ["a", "angstrom"], ["cat"]],
    "verb": [["sing", "chant"], ["rain", "rain_down"]],
    "adj": [["old", "aged(p)"], ["blue", "azure"]],
    "adv": [],
}
EXCEPTIONS = {"noun": "geese goose\n", "verb": "sang sing\n"}
SIZES = dict(layers=1, attention_heads=2, ffn_dim=16)


def write_wordnet(folder) -> str:
    """A database of a few words in WordNet's format."""
    folder.mkdir()
    for pos, synsets in SYNSETS.items():
        data, places = "  1 licence\n", {}
        for lemmas in synsets:
            for lemma in lemmas:
                places.setdefault(re.sub(r"\(.*", "", lemma).lower(), []).append(f"{len(data):08d}")
            words = " ".join(f"{lemma} 0" for lemma in lemmas)
            data += f"{len(data):08d} 00 {pos[0]} {len(lemmas):02x} {words} 001 @ 00000000 n 0000 | what it means\n"
        lines = [f"{word} {pos[0]} {len(at)} 1 @ {len(at)} 0 {' '.join(at)}  \n" for word, at in sorted(places.items())]
        (folder / f"data.{pos}").write_text(data)
        (folder / f"index.{pos}").write_text("  1 licence\n" + "".join(lines))
        (folder / f"{pos}.exc").write_text(EXCEPTIONS.get(pos, ""))
    return str(folder)


def write_masked_lm(folder, family="bert", *, tokenizer=None, **changes) -> torch.nn.Module:
    """A random masked language model of transformers in a folder, with weights of a size that matters."""
    kind, options = cases.CONFIGS[family]
    torch.manual_seed(0)
    model = transformers.AutoModelForMaskedLM.from_config(kind(**(options | changes))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if re.search(r"[nN]orm\.weight", name) else 0.0, 0.2)
    model.save_pretrained(folder)
    if tokenizer is None:
        cases.write_tokenizer(folder)
    else:
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return model


def write_translator(folder, *, seed=0) -> str:
    """A random Marian with a tokenizer of words."""
    torch.manual_seed(seed)
    sizes = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in SIZES.items()}
    ids = dict(pad_token_id=0, eos_token_id=3, bos_token_id=2, decoder_start_token_id=0, forced_eos_token_id=3)
    config = transformers.MarianConfig(vocab_size=99, d_model=16, max_position_embeddings=24, **sizes, **ids)
    transformers.MarianMTModel(config).save_pretrained(folder)
    cases.write_tokenizer(folder)
    return str(folder)


def words_of(rng, count):
    """Sentences that the tokenizers of `encoder_cases` know."""
    return [" ".join(f"w{rng.integers(90)}" for _ in range(rng.integers(1, 12))) for _ in range(count)]


def write_words(folder, count=50) -> str:
    (folder / "words.txt").write_text("\n".join(words_of(np.random.default_rng(0), count)) + "\n")
    return str(folder / "words.txt")


def augmented(*arguments) -> list[tuple[str, ...]]:
    """What the program, run in this process, writes: its rows, the header among them."""
    arguments = [str(argument) for argument in arguments]
    augment.main([*arguments, "--quiet"])
    (output,) = (argument.split("=")[1] for argument in arguments if argument.startswith("--output"))
    return [tuple(line.split("\t")) for line in Path(output).read_text("utf-8").split("\n")[:-1]]
