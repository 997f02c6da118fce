"""Measures what trimming a vocabulary to two languages saves, and what it costs on other text.

    JAXDISTILL_DATA=DATA python benchmarks/vocabulary.py --entries=32000
    JAXDISTILL_DATA=DATA python benchmarks/vocabulary.py --model=MODEL --trim=TEXT --held_out=TEXT --column=text

Without `--model`, a Unigram tokenizer as XLM-R's is trained on `--train`, six languages by default, and its word table has the
width of multilingual-e5-small, 384, with random numbers. With it, both are scored on STS-B dev.
"""

import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from jaxdistill import config as configs
from jaxdistill.checkpoints import model as encoders
from jaxdistill.cli import Parser, run
from jaxdistill.data import sources, words
from jaxdistill.data.sources import split_specs
from jaxdistill.encoders.architecture import Architecture, EncoderDefinition, Pooling
from jaxdistill.encoders.sentence import init_params
from jaxdistill.evals.pairs import pairs_spearman
from jaxdistill.evals.sts import read_set
from jaxdistill.inference import Embedder
from jaxdistill.ops.unknown import unknown_id
from jaxdistill.paths import needed_data_folder
from jaxdistill.students.parts import vocabulary

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
LANGUAGES = "de|es|fr|tr|ar"
WIDTH = 384
DEV = "sts-b-dev"


def main(arguments):
    parser = Parser(prog="benchmarks/vocabulary.py", description=__doc__)
    parser.add_argument("--model", default="", help="a checkpoint; empty: one with a new tokenizer")
    parser.add_argument("--train", default="data:parallel/*.tsv.gz", help="text of the new tokenizer")
    parser.add_argument("--entries", type=int, default=32_000, help="of the new tokenizer")
    parser.add_argument("--trim", default="data:parallel/en-de.tsv.gz", help="text to trim to")
    parser.add_argument(
        "--held_out",
        default="data:multilingual/tatoeba.en-de.test.tsv.gz,data:multilingual/multi30k2016.en-de.test.tsv.gz",
    )
    parser.add_argument(
        "--column", default="", help="of the sentences; empty: two columns, English and its translation"
    )
    given = parser.parse_args(arguments)
    columns = (("text", given.column),) if given.column else (("text", "en"), ("translation", LANGUAGES))
    with tempfile.TemporaryDirectory() as folder:
        model = encoders.load_model(given.model) if given.model else multilingual(given, columns, Path(folder))
        data = configs.Data(columns=columns, cache_folder=f"{folder}/cache")
        begun = time.process_time()
        smaller = vocabulary.trimmed(split_specs(given.trim), data, model, Path(folder) / "w")
        print(f"trimmed in {time.process_time() - begun:.0f} s of processor time")
        for name, one in (("whole", model), ("trimmed", smaller)):
            print(line(name, one, given.trim, given.held_out, columns), flush=True)
            if given.model:
                pairs = read_set(DEV, needed_data_folder("STS-B dev"))
                print(f"{name}: STS-B dev {100 * pairs_spearman(Embedder(one).as_embed(), pairs):.2f}", flush=True)


def line(name: str, model: encoders.SentenceModel, text: str, held_out: str, columns) -> str:
    """Sizes, and how a model reads both texts."""
    table = model.params["transformer/embeddings/word/embedding"]
    parts = [f"{name}: {len(table):,} tokens, {table.size:,} numbers in the word table of {model.parameter_count:,}"]
    for what, specs in (("its text", text), ("other text", held_out)):
        rows = sources.read(sources.split_specs(specs), dict(columns))
        texts = [cell.strip() for row in rows for cell in row if cell.strip()]
        tokenizer = Tokenizer.from_str(model.tokenizer.to_str())
        tokenizer.no_truncation()
        read = words.tokenised_words(tokenizer, texts, "", 0, unknown=unknown_id(tokenizer))
        share = read.unknown.unknown_tokens / read.unknown.tokens
        parts.append(f"{what}: {read.unknown.tokens / len(texts):.3f} tokens a sentence, {share:.3%} unknown")
    return "; ".join(parts)


def multilingual(given, columns, folder: Path) -> encoders.SentenceModel:
    """An XLM-R of one layer with a tokenizer of six languages."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    rows = sources.read(sources.split_specs(given.train), dict(columns))
    trainer = trainers.UnigramTrainer(
        vocab_size=given.entries, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(dict.fromkeys(cell for row in rows for cell in row), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.enable_truncation(128)
    architecture = Architecture(
        family="xlm-roberta", vocab_size=tokenizer.get_vocab_size(), hidden_size=WIDTH, layers=1, heads=12,
        intermediate_size=4 * WIDTH, max_positions=514, position_offset=2, pad_id=1, token_types=1,
    )  # fmt: skip
    definition = EncoderDefinition(architecture=architecture, pooling=Pooling.parse("mean"))
    return encoders.SentenceModel(
        definition=definition,
        params={name: np.asarray(array) for name, array in init_params(definition, jax.random.key(0)).items()},
        tokenizer=tokenizer,
        max_length=128,
        prompts={},
        default_prompt=None,
        provenance=encoders.Provenance(source="a new tokenizer", tokenizer_folder=folder),
    )


if __name__ == "__main__":
    run(main)
