"""Writes a second view of each sentence, for the rows of ConGen's Table 6 that are computed before training.

    python launch/augment.py text.txt table.tsv synonyms                   # WordNet, by nltk
    python launch/augment.py text.txt table.tsv mlm google-bert/bert-base-uncased
    python launch/augment.py text.txt table.tsv translate Helsinki-NLP/opus-mt-en-de Helsinki-NLP/opus-mt-de-en

Needs torch, and for synonyms `pip install nltk` and `python -m nltk.downloader wordnet omw-1.4`. Train on the table with
`--config.data.text=table.tsv --config.data.columns='(("text", "text"), ("translation", "view"))'` and
`--config.objective.generalize_view=translation`.
"""

import argparse
import itertools
import random
from collections.abc import Iterator, Sequence

import torch
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer

BATCH, MAX_TOKENS = 64, 128
SYNONYM_RATE, MASK_RATE = 0.1, 0.15
"""Share of replaced words, and of replaced tokens (the paper's 15 %)."""


def synonyms(batch: Sequence[str]) -> list[str]:
    """Replaces a tenth of the words that WordNet knows, at least one, by a synonym."""
    from nltk.corpus import wordnet

    views = []
    for sentence in batch:
        words = sentence.split()
        named = [{name for synset in wordnet.synsets(word) for name in synset.lemma_names()} for word in words]
        others = [sorted(names - {word}) for names, word in zip(named, words, strict=True)]
        replaceable = [index for index, names in enumerate(others) if names]
        count = min(len(replaceable), max(1, round(SYNONYM_RATE * len(words))))
        for index in random.sample(replaceable, count):
            words[index] = random.choice(others[index]).replace("_", " ")
        views.append(" ".join(words))
    return views


def masked(batch: Sequence[str], model, tokenizer) -> list[str]:
    """Masks 15 % of the tokens and fills each with a likely one other than its own."""
    encoded = tokenizer(batch, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
    ids = encoded["input_ids"]
    special = [tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True) for row in ids.tolist()]
    chosen = (torch.rand(ids.shape) < MASK_RATE) & (torch.tensor(special) == 0)
    logits = model(**(encoded | {"input_ids": ids.masked_fill(chosen, tokenizer.mask_token_id)})).logits
    logits[..., tokenizer.all_special_ids] = -torch.inf
    logits.scatter_(-1, ids[..., None], -torch.inf)
    drawn = torch.distributions.Categorical(logits=logits.topk(10).values).sample()
    filled = torch.where(chosen, logits.topk(10).indices.gather(-1, drawn[..., None])[..., 0], ids)
    return tokenizer.batch_decode(filled, skip_special_tokens=True)


def translated(batch: Sequence[str], models) -> list[str]:
    """Translates with each model in turn: there and back."""
    for model, tokenizer in models:
        encoded = tokenizer(batch, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        batch = tokenizer.batch_decode(model.generate(**encoded, max_new_tokens=MAX_TOKENS), skip_special_tokens=True)
    return list(batch)


def batches(path: str) -> Iterator[list[str]]:
    with open(path, encoding="utf-8") as file:
        sentences = filter(None, (line.strip() for line in file))
        while batch := list(itertools.islice(sentences, BATCH)):
            yield batch


@torch.inference_mode()
def main(text: str, table: str, method: str, *names: str) -> None:
    random.seed(0)
    torch.manual_seed(0)
    kind = AutoModelForMaskedLM if method == "mlm" else AutoModelForSeq2SeqLM
    models = [(kind.from_pretrained(name).eval(), AutoTokenizer.from_pretrained(name)) for name in names]
    views = {
        "synonyms": synonyms,
        "mlm": lambda batch: masked(batch, *models[0]),
        "translate": lambda batch: translated(batch, models),
    }[method]
    with open(table, "w", encoding="utf-8") as file:
        print("text\tview", file=file)
        for batch in batches(text):
            for sentence, view in zip(batch, views(batch), strict=True):
                print(sentence.replace("\t", " "), view.replace("\t", " "), sep="\t", file=file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="a file with one sentence per line")
    parser.add_argument("table", help="the table to write")
    parser.add_argument("method", choices=("synonyms", "mlm", "translate"))
    parser.add_argument("models", nargs="*", help="one for mlm; two for translate, there and back")
    options = parser.parse_args()
    main(options.text, options.table, options.method, *options.models)
