"""Prints the memory and time that a run needs, measured on this machine, or with `--compile_for` by the TPU compiler for absent TPUs."""

import dataclasses
import math
import pathlib
import re
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from clu import parameter_overview
from jax.sharding import Mesh

import jaxdistill
from jaxdistill.config.options import Config
from jaxdistill.core import Batch, InputError, TrainState
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.core.cluster import processes
from jaxdistill.core.cluster.mesh import PEAK_FLOPS_PER_S
from jaxdistill.core.files import foreign_errors
from jaxdistill.core.runtime import duration, prepare_libtpu
from jaxdistill.data.batches import padding_share
from jaxdistill.data.text import TEXT
from jaxdistill.evals import agreement, sts
from jaxdistill.training.build import UNTIMED, Run, build, joint_embed, make_step, step_count, truncation_warnings
from jaxdistill.training.dev import sts_data_folder
from jaxdistill.training.metrics import note, product_flops, say
from jaxdistill.training.sharding import sharded_embedder

GIB = 2**30
COLLECTIVE = re.compile(
    r"= (.+?) (all-gather|all-reduce|reduce-scatter|collective-permute|(?:ragged-)?all-to-all)(?:-done)?\("
)
"""Matches a collective in a line of a compiled program's text (an asynchronous one at its end): shapes of results, and kind."""


def overview(run: Run) -> tuple[Run, dict[str, float]]:
    """Prints devices, models, text, memory and time. Returns the run, and the teacher's dev scores. If the number of steps for
    `run.minutes` is not known yet, the run gets the one that follows from the speed measured here."""
    config, batches = run.config, run.batches
    axes = ", ".join(f"{axis} {size}" for axis, size in run.mesh.shape.items() if axis != "slice" or size > 1)
    devices = f"{run.mesh.size} x {jax.devices()[0].device_kind} ({axes})"
    say(f"jaxdistill {jaxdistill.__version__}, JAX {jax.__version__}")
    say(f"devices: {devices}, matrix products in {np.dtype(run.compute_dtype).name}")
    for role, model in [*(("teacher", teacher) for teacher in run.teachers.values()), ("student", run.student)]:
        architecture = model.definition.architecture
        heads = len(model.definition.dense)
        size = f"{model.parameter_count:,} parameters, {architecture.layers} layers, width {architecture.hidden_size}"
        dense = f", {heads} dense layers" if heads else ""
        say(f"{role}: {model.source}: {size}, pooling {model.definition.pooling}{dense}")
    note(parameter_table(run))
    for line in run.store.report:
        say(line)
    columns = ", ".join(f"{name} ({source})" for name, source in config.data.columns)
    say(f"columns read: {columns or TEXT}")
    reserved = f"{len(batches.reserved):,} held out for the queue and evaluation"
    say(f"training: {len(batches.trained):,} sentences, {reserved}, {batches.steps_per_epoch:,} steps per epoch")
    shapes = "; ".join(" + ".join(map(str, streams)) for streams in batches.shapes)  # the student's + a live teacher's
    sample = [batches.batch_at(step) for step in range(8)]
    padding = np.mean([padding_share(batch) for batch in sample])
    say(f"rows x tokens per group: {shapes}; {padding:.1%} of token slots are padding")
    if scores := teacher_scores(run):
        say("teacher's own dev scores: " + ", ".join(f"{name} {100 * value:.2f}" for name, value in scores.items()))
    memory, seconds = probe(run, sample[0])
    say(f"memory: {memory / 2**20:,.0f} MiB per device (arguments and temporaries of a step)")
    steps = run.program.steps
    if steps == UNTIMED:
        steps_in_minutes = max(1, int(60 * config.run.minutes / seconds))
        steps = step_count(config, 0, processes.gathered(steps_in_minutes)[0])  # the first process's, in all processes
        program = make_step(config, run.objective, run.student, run.teacher, run.mesh, steps)
        run = dataclasses.replace(run, program=program)
    speed = f"a step takes {seconds:.3f} s, {batches.batch_size / seconds:,.0f} sentences/s"
    say(f"steps: {steps:,} of {batches.batch_size} sentences; {speed}")
    if config.run.minutes:
        again = f"a resumed run has as many, and elsewhere --config.run.steps={steps} gives as many"
        say(f"run.minutes={config.run.minutes:g}: {steps:,} steps; {again}")
    evaluations = math.ceil(steps / config.evals.every) + 1
    say(f"estimated time: {duration(seconds * steps)} for all steps; {evaluations} evaluations are not counted")
    for line in truncation_warnings(run.objective, run.student, run.store):
        say(line)
    tests = f"{len(sts.TESTS)} STS tests, " if config.evals.sts and sts_data_folder() else ""
    say(f"after the last step: {tests}speed, export, plot and report")
    return run, scores


def parameter_table(run: Run) -> str:
    """Table of the trained arrays: name, shape, dtype, size and sharding."""
    like, shardings = run.program.like.params, run.program.shardings.params
    placed = jax.tree.map(lambda x, split: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=split), like, shardings)
    return parameter_overview.get_parameter_overview(placed, include_stats="sharding")


def teacher_scores(run: Run) -> dict[str, float]:
    """Dev scores of the teacher, or of the joined vectors of several teachers; empty without a teacher model."""
    options = {"mesh": run.mesh, "compute_dtype": run.compute_dtype}
    embedders = [sharded_embedder(teacher, run.config.run, **options) for teacher in run.teachers.values()]
    scores: dict[str, float] = {}
    if embed := joint_embed(embedders, run.config.teacher):
        for task in run.dev.tasks.values():
            # The task compares with the teacher's vectors of `evals.agreement`, or else with targets, which may be whitened.
            is_itself = isinstance(task, agreement.AgreementTask) and run.config.evals.agreement
            scores |= dict.fromkeys(task.metrics, 1.0) if is_itself else task(embed)
    return scores


def probe(run: Run, batch: Batch) -> tuple[int, float]:
    """(bytes per device, seconds) of a step: runs two steps, discards their results, and takes the time of the faster one."""
    train_step = run.program.train_step
    rows = run.objective.reserve_rows
    seeds = np.ones((rows, run.student.definition.embedding_width), np.float32) if rows else None  # any vectors will do
    state = run.first_state(seeds)
    batch = meshes.place_batch(batch, run.mesh)
    memory = sum(step_memory(train_step.lower(state, run.teacher_params, batch).compile()).values())
    seconds = []
    for _ in range(2):
        begun = time.monotonic()
        state, metrics = train_step(state, run.teacher_params, batch)
        jax.block_until_ready((state, metrics))
        seconds.append(time.monotonic() - begun)
    return memory, min(seconds)


class Slice(NamedTuple):
    """Connected TPU chips of one kind. Source: cloud.google.com/tpu/docs/v5e, /v5p and /v6e, read on 22 November 2026."""

    name: str
    chips: int
    topology: str
    """The TPU compiler's name of the slice, such as `v5e:4x4`."""
    flops_per_s: float
    """A chip's, of bfloat16 products."""
    link_bytes_per_s: float
    """From a chip to others over all links: half of the documented bidirectional bandwidth."""
    memory_gib: float
    """A chip's memory that a program can use, as the TPU compiler says; documented are 16, 95 and 32."""

    def mesh(self, *, model_axis: int = 1, slices: int = 0) -> Mesh:
        """A mesh of this slice's devices, for compiling only; the arguments are those of `make_mesh`. Raises `InputError` without the
        TPU compiler."""
        prepare_libtpu()
        from jax.experimental import topologies

        with foreign_errors(f"--compile_for={self.name} needs the TPU compiler (pip install libtpu), but no TPU"):
            devices = topologies.get_topology_desc(platform="tpu", topology_name=self.topology).devices
        return meshes.make_mesh(model_axis=model_axis, slices=slices, devices=list(devices)[: self.chips])


def slice_named(name: str) -> Slice:
    """The slice of a name such as `v5e-16`, `v5litepod-16` (Google) or `tpu-v5litepod-16` (SkyPilot); raises `InputError`."""
    two_axes = "2x2 2x4 4x4 4x8 8x8 8x16 16x16"
    three_axes = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8"
    slices: dict[str, Slice] = {}
    # The number in a name counts chips, or in v5p's names the cores, two a chip.
    for kind, cores, shapes, flops_per_s, link_bytes_per_s, memory_gib in (
        ("v5e", 1, two_axes, PEAK_FLOPS_PER_S["TPU v5 lite"], 200e9, 15.75),
        ("v5p", 2, three_axes, PEAK_FLOPS_PER_S["TPU v5"], 600e9, 95.74),
        ("v6e", 1, two_axes, PEAK_FLOPS_PER_S["TPU v6 lite"], 400e9, 31.25),
    ):
        for shape in ("", *shapes.split()):  # first a single chip, which is part of the smallest slice
            chips = math.prod(map(int, shape.split("x"))) if shape else 1
            full_name = f"{kind}-{chips * cores}"
            topology = f"{kind}:{shape or shapes.split()[0]}"
            slices[full_name] = Slice(full_name, chips, topology, flops_per_s, link_bytes_per_s, memory_gib)
    short_name = name.removeprefix("tpu-").replace("v5litepod", "v5e")
    if short_name not in slices:
        raise InputError(f"--compile_for={name} is not a TPU slice; allowed: {', '.join(slices)}.")
    return slices[short_name]


def print_plan(config: Config, workdir: pathlib.Path, name: str) -> None:
    """Compiles the step of a run for the slice `name`, and prints its memory and time; raises `InputError` if it does not fit."""
    jax.config.update("jax_enable_compilation_cache", False)  # it cannot load programs for absent devices
    target = slice_named(name)
    mesh = target.mesh(model_axis=config.run.model_axis, slices=config.run.slices)
    if config.run.precision == "auto":  # as on that slice, not on this machine
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, precision="bfloat16"))
    run = build(config, workdir, progress=True, absent=mesh)
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    say(f"{target.name}: {target.chips} chips, {axes}, {config.run.precision}")
    begun = time.monotonic()
    batch = jax.eval_shape(lambda batch: batch, run.batches.batch_at(0))  # shapes alone
    arguments = (run.program.train_step, run.program.like, run.teacher_params, batch)
    lines, step_s = compiled_plan(target, *arguments, batch_size=run.batches.batch_size)
    compile_s = time.monotonic() - begun
    for line in (f"compiled its step in {compile_s:.0f} s", *lines):
        say(line)
    steps = max(1, int(60 * config.run.minutes / step_s)) if config.run.minutes else run.program.steps
    shapes = len(run.batches.usual_shapes)  # each is compiled when the run first needs it
    compiling = f"compiling {shapes} shape{'' if shapes == 1 else 's'} of a batch, as fast as here, {duration(shapes * compile_s)}"
    say(f"time: {steps:,} steps at least {duration(steps * step_s)}; {compiling}")
    minutes = (steps * step_s + shapes * compile_s) / 60
    cost = f"{minutes:,.1f} minutes, {minutes * target.chips / 60:,.2f} chip-hours"
    say(f"the run takes at least {cost}; stored targets and evaluations are not counted")


def step_memory(compiled: Any) -> dict[str, int]:
    """Bytes per device of a compiled step's arguments, of results that do not reuse an argument's memory, and of temporaries."""
    sizes = compiled.memory_analysis()
    results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return {"arguments": sizes.argument_size_in_bytes, "new results": results, "temporaries": sizes.temp_size_in_bytes}


def compiled_plan(
    target: Slice, train_step: Any, state: TrainState, teacher_params: Any, batch: Batch, *, batch_size: int
) -> tuple[list[str], float]:
    """Compiles a step whose arguments are shapes; raises `InputError` if a chip's memory is too small. Returns lines on what a chip
    needs, and the least seconds of a step, in which products and collectives overlap fully at the chip's peak rates."""
    too_large = f"the step does not fit into a chip of {target.name}"
    remedy = "use --config.run.remat=True (activations), --config.run.sharding=fsdp (parameters), a larger slice or a smaller --config.data.batch_size"
    traced = train_step.trace(state, teacher_params, batch)
    try:
        compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        if not re.search(r"\bhbm\b", reason, re.IGNORECASE):
            raise
        raise InputError(f"{too_large} ({reason}); {remedy}.") from error
    memory = step_memory(compiled)
    needed = sum(memory.values()) / GIB
    if needed > target.memory_gib:
        raise InputError(f"{too_large} (it needs {needed:.1f} of {target.memory_gib:g} GiB of HBM); {remedy}.")
    flops = product_flops(traced.jaxpr.jaxpr) / target.chips
    collectives = collective_bytes(compiled.as_text())
    seconds = {"arithmetic": flops / target.flops_per_s, "links": sum(collectives.values()) / target.link_bytes_per_s}
    least, bound = max((value, name) for name, value in seconds.items())
    memory_parts = ", ".join(f"{part} {size / GIB:.2f}" for part, size in memory.items())
    traffic = ", ".join(f"{kind} {size / 1e6:,.1f} MB" for kind, size in collectives.items())
    return [
        f"memory of a chip: {needed:.2f} of {target.memory_gib:g} GiB ({memory_parts})",
        f"products of a chip and step: {flops / 1e12:,.3f} TFLOP",
        f"collectives: {traffic or 'none'}",
        "a step at peak rates: " + ", ".join(f"{name} {1000 * value:,.2f} ms" for name, value in seconds.items()),
        f"a step takes at least {1000 * least:,.2f} ms, bound by {bound}: at most {batch_size / least:,.0f} sentences/s and "
        f"{flops / target.flops_per_s / least:.0%} of the chips' arithmetic",
    ], least


def collective_bytes(text: str) -> dict[str, int]:
    """Bytes of the results of each kind of collective, such as `all-reduce`, in the text of a compiled program."""
    collectives: dict[str, re.Match[str]] = {}
    for line in text.splitlines():
        if match := COLLECTIVE.search(line):
            # A collective that is split over fusions has a line in each, with the same channel, and counts once.
            channel = re.search(r"channel_id=\d+", line)
            collectives[channel[0] if channel else line] = match
    total: dict[str, int] = {}
    for shapes, kind in (match.groups() for match in collectives.values()):
        for bits, dims in re.findall(r"[a-z]+(\d*)\w*\[([\d,]*)\]", shapes):  # such as `bf16[128,384]`
            elements = math.prod(int(size) for size in dims.split(",") if size)
            total[kind] = total.get(kind, 0) + elements * int(bits or 8) // 8  # `pred`, a boolean, is a byte
    return total
