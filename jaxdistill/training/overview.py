"""Prints what a run is about to train: devices, models, text, memory and time."""

import time

import jax
import numpy as np
from clu import parameter_overview

import jaxdistill
from jaxdistill.bars import duration
from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.cluster import mesh as meshes
from jaxdistill.cluster import processes
from jaxdistill.config import config_digest
from jaxdistill.data.batches import padding_share
from jaxdistill.data.text import TEXT
from jaxdistill.encoders.architecture import Dense
from jaxdistill.evals import agreement
from jaxdistill.reading import columns_of_views
from jaxdistill.training import final_scores
from jaxdistill.training.console import note, say
from jaxdistill.training.flops import products_by_part
from jaxdistill.training.run import Run
from jaxdistill.training.setup.build import UNTIMED, with_steps
from jaxdistill.training.setup.lengths import STEP, truncation_warnings
from jaxdistill.training.setup.sharding import held_share, sharded_embedder
from jaxdistill.training.setup.targets import joint_embed

LONG = 3600
"""Seconds above which options that shorten a training are named."""
PADDING_STEPS = 8
"""Number of batches in which padding is measured."""


def print_overview(run: Run) -> dict[str, float]:
    """Prints the overview; returns the teacher's dev scores."""
    device, shape = jax.devices()[0], run.program.mesh.shape
    axes = ", ".join(f"{axis} {size}" for axis, size in shape.items() if axis != "slice" or size > 1)
    say(f"jaxdistill {jaxdistill.__version__}, JAX {jax.__version__}, config {config_digest(run.config)}")
    say(
        f"devices: {run.program.mesh.size} x {device.device_kind} ({axes}), "
        f"matrix products in {np.dtype(run.program.compute_dtype).name}"
    )
    for teacher in run.models.teachers:
        say(f"teacher: {model_line(teacher)}")
    say(f"student: {model_line(run.models.student)}")
    note(parameter_table(run))
    for line in run.text.store.report():
        say(line)
    columns = [f"{name} ({source})" for name, source in run.config.data.columns]
    say(f"columns read: {', '.join(columns) or TEXT}")
    if run.config.run.sharding:
        trained = held_share(run.layout.like.params, run.layout.shardings.params)
        teacher = held_share(
            run.program.teacher_params, {path: array.sharding for path, array in run.program.teacher_params.items()}
        )
        say(
            f"run.sharding: a device holds {trained:.1%} of the trained parameters, {teacher:.1%} of the live teacher's"
        )
    data = run.text.batches
    reserved = f"{len(data.reserved):,} held out for the queue and evaluation"
    say(f"training: {data.training_rows:,} sentences, {reserved}, {data.steps_per_epoch:,} steps per epoch")
    shapes = "; ".join(" + ".join(map(str, shapes)) for shapes in data.shapes)
    batches = [data.batch_at(step) for step in range(PADDING_STEPS)]
    padding = np.mean([padding_share(batch) for batch in batches])
    say(f"rows x tokens per group: {shapes}; {padding:.1%} of token slots are padding")
    scores = teacher_scores(run)
    if scores:
        say("teacher's own dev scores: " + ", ".join(f"{name} {100 * value:.2f}" for name, value in scores.items()))
    memory, seconds, share = probe(run, batches[0])
    say(f"memory: {memory / 2**20:,.0f} MiB per device (arguments and temporaries of a step)")
    steps, minutes = run.program.steps, run.config.run.minutes
    rate = data.batch_size / seconds
    say(f"steps: {steps:,} of {data.batch_size} sentences; a step takes {seconds:.3f} s, {rate:,.0f} sentences/s")
    if minutes:
        again = f"a resumed run has as many, and elsewhere --config.run.steps={steps} gives as many"
        say(f"run.minutes={minutes:g}: {steps:,} steps; {again}")
    evaluations = -(-steps // run.config.evals.every) + 1
    say(f"estimated time: {duration(seconds * steps)} for all steps; {evaluations} evaluations are not counted")
    is_long = seconds * steps > LONG and not minutes
    if is_long:
        say(shorter_ways(run, seconds, share))
    models = (run.models.student, run.models.teachers)
    for line in truncation_warnings(run.objective, *models, run.text.store, advise=not (is_long or minutes)):
        say(line)
    say(final_scores.planned(run))
    return scores


def shorter_ways(run: Run, seconds: float, share: float) -> str:
    """A line with two options that shorten a training, and what each brings at the speed and the share that `probe` measured."""
    store, steps = run.text.store, run.program.steps
    lengths = np.concatenate([store.lengths(column) for column in columns_of_views(store, run.objective.student_views)])
    half = max(STEP, store.max_length // 2 // STEP * STEP)
    less = share * (1 - float(np.minimum(lengths, half).sum() / lengths.sum()))
    option = "chunk_tokens" if run.config.data.chunk_tokens else "max_length"
    return (
        f"to train for less time: --config.run.minutes=30 takes {min(1800 / seconds, steps):,.0f} of the {steps:,} steps; "
        f"--config.data.{option}={half} takes about {duration(seconds * steps * (1 - less))} ({np.mean(lengths > half):.0%} of the sentences are "
        f"longer), and --config.student.max_length={run.models.student.max_length} lets the student read more after training"
    )


def parameter_table(run: Run) -> str:
    """Table of the trained arrays: name, shape, dtype, size and sharding."""
    placed = jax.tree.map(
        lambda array, place: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place),
        run.layout.like.params,
        run.layout.shardings.params,
    )
    return parameter_overview.get_parameter_overview(placed, include_stats="sharding")


def model_line(model: SentenceModel) -> str:
    a = model.definition.architecture
    head = "".join(
        f", dense {d.in_features}-{d.out_features} {d.activation}" if isinstance(d, Dense) else ", LayerNorm"
        for d in model.definition.dense
    )
    return (
        f"{model.source}: {parameter_overview.count_parameters(model.params):,} parameters, {a.layers} layers, width {a.hidden_size}, "
        f"pooling {model.definition.pooling}{head}"
    )


def teacher_scores(run: Run) -> dict[str, float]:
    """The teacher's (or the joined teachers') value of each dev metric; empty if the teacher is only stored vectors."""
    options = {"mesh": run.program.mesh, "compute_dtype": run.program.compute_dtype}
    embedders = [sharded_embedder(teacher, run.config.run, **options) for teacher in run.models.teachers]
    embed = embedders[0].as_embed() if run.models.teacher else joint_embed(embedders, run.config.teacher)
    if embed is None:
        return {}
    scores: dict[str, float] = {}
    for task in run.dev.tasks.values():
        # On the sentences of a file, the task compares with the teacher's own vectors; held-out targets may be whitened.
        with_itself = isinstance(task, agreement.AgreementTask) and bool(run.config.evals.agreement)
        scores |= dict.fromkeys(task.metrics, 1.0) if with_itself else task(embed)
    return scores


def timed(run: Run) -> Run:
    """The run with as many steps as take `run.minutes` at the speed measured now, unless the workdir has a number already."""
    if run.program.steps != UNTIMED:
        return run
    _, seconds, _ = probe(run, run.text.batches.batch_at(0))
    return with_steps(run, processes.gathered(max(1, int(60 * run.config.run.minutes / seconds)))[0])


def probe(run: Run, batch) -> tuple[float, float, float]:
    """(bytes per device, seconds per step, the student's share of its arithmetic), measured on steps whose results are
    discarded."""
    seeds = (
        np.ones((run.objective.reserve_rows, run.layout.sizes.width), np.float32)
        if run.objective.reserve_rows
        else None
    )
    state = run.first_state(seeds)
    batch = meshes.place_batch(batch, run.program.mesh, run.text.batches.groups)
    traced = run.program.train_step.trace(state, run.program.teacher_params, batch)
    flops = {part: products.flops for part, products in products_by_part(traced.jaxpr.jaxpr).items()}
    memory = traced.lower().compile().memory_analysis()
    used = (
        memory.argument_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
    )
    seconds = []
    for _ in range(2):
        begun = time.monotonic()
        state, metrics = run.program.train_step(state, run.program.teacher_params, batch)
        jax.block_until_ready((state, metrics))
        seconds.append(time.monotonic() - begun)
    return used, min(seconds), flops.get("student", 0.0) / max(sum(flops.values()), 1.0)
