"""Plans a run for TPUs without having them: compiles its step, and reports its memory and a lower bound of its time."""

import contextlib
import dataclasses
import importlib.util
import itertools
import math
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from jaxdistill.bars import duration
from jaxdistill.cli import did_you_mean
from jaxdistill.cluster.chips import CHIPS, Chip
from jaxdistill.cluster.mesh import make_mesh
from jaxdistill.config import Config, RunOptions
from jaxdistill.core import Batch, InputError, Tokens, TrainState
from jaxdistill.devices import LIBTPU_WITHOUT_TPU
from jaxdistill.encoders.sentence import embed
from jaxdistill.files import parts
from jaxdistill.planning.compiled import Collective, Memory, accessed_bytes, collectives_of, estimated_cycles, memory_of
from jaxdistill.training.hooks.arithmetic import Products, products_by_part
from jaxdistill.training.run import Run
from jaxdistill.training.setup.build import build

GIB = 2**30
UNITS = {"M": 2.0**-10, "G": 1.0, "T": 2.0**10}
"""Units of the compiler's sizes, in GiB."""
REFUSALS = (
    r"required for [\w ]+ \(([\d.]+)([MGT])\) exceeds available HBM",
    r"Used ([\d.]+)([MGT]) of [\d.]+[MGT] hbm",
)
"""How libtpu 0.0.42.1 and TPUs report the memory that a program needs, arguments included."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """Connected chips of one kind."""

    name: str
    chip: Chip
    chips: int
    topology: str
    """The TPU compiler's name of the slice, such as `v5e:4x4`."""

    def mesh(self, *, model_axis: int = 1, slices: int = 0) -> Mesh:
        """A mesh of the slice's devices, for compiling only; raises `InputError` without the TPU compiler."""
        if not importlib.util.find_spec("libtpu"):
            raise InputError(f"--compile_for={self.name} needs the TPU compiler: pip install libtpu. It needs no TPU.")
        os.environ.update(LIBTPU_WITHOUT_TPU | os.environ)
        from jax.experimental import topologies

        devices = topologies.get_topology_desc(platform="tpu", topology_name=self.topology).devices
        return make_mesh(model_axis=model_axis, slices=slices, devices=list(devices)[: self.chips])


def slice_named(name: str) -> Slice:
    """The slice of this name: `v5e-16`, Google's `v5litepod-16` or SkyPilot's `tpu-v5litepod-16`; raises `InputError`."""
    kinds = {kind: kind for kind in CHIPS} | {chip.accelerator_type: kind for kind, chip in CHIPS.items()}
    match = re.fullmatch(r"(?:tpu-)?(v\w+)-(\d+)", name)
    if not match or match[1] not in kinds:
        meant = did_you_mean(name.partition("-")[0], list(CHIPS))
        raise InputError(
            f"--compile_for={name} is not a TPU slice.{meant} Allowed: {', '.join(CHIPS)} with a number, v5e-16."
        )
    kind = kinds[match[1]]
    chip = CHIPS[kind]
    chips = int(match[2]) // chip.cores
    if chips * chip.cores != int(match[2]) or chips not in (1, *chip.topologies):
        sizes = [chips * chip.cores for chips in (1, *chip.topologies)]
        raise InputError(f"--compile_for={name} does not exist; allowed: {', '.join(f'{kind}-{n}' for n in sizes)}.")
    shape = chip.topologies[max(chips, min(chip.topologies))]  # a single chip is part of the smallest slice
    return Slice(name=f"{kind}-{match[2]}", chip=chip, chips=chips, topology=f"{kind}:{shape}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The cost of one compiled step on one chip."""

    chip: Chip
    products: Mapping[str, Products]
    """Operations of each part of the step."""
    memory: Memory
    accessed_bytes: float
    """XLA's own count, which includes on-chip memory and counts each loop once."""
    collectives: Mapping[str, Collective]
    cycles: int
    """The compiler's own estimate."""

    @property
    def seconds(self) -> dict[str, float]:
        """Time of a step at the chip's peak rates for each resource, as if only that resource took time."""
        flops = sum(products.bfloat16_flops for products in self.products.values())
        return {
            "arithmetic": flops / self.chip.flops_per_s,
            "links": sum(each.sent_bytes for each in self.collectives.values()) / self.chip.link_bytes_per_s,
        }

    @property
    def least_seconds(self) -> float:
        """Lower bound of a step's time: the slowest resource, if all overlap fully."""
        return max(self.seconds.values())

    @property
    def flops(self) -> float:
        return sum(products.flops for products in self.products.values())

    @property
    def utilisation(self) -> float:
        """Upper bound of the fraction of the chip's peak that the step's arithmetic uses."""
        return self.flops / self.chip.flops_per_s / self.least_seconds


def print_plan(config: Config, workdir: pathlib.Path, name: str, say: Callable[[str], None]) -> None:
    """Compiles the step of a run for the slice `name` and says what it needs; raises `InputError` if it does not fit."""
    parts.use(config.run.parts)
    target = slice_named(name)
    mesh = target.mesh(model_axis=config.run.model_axis, slices=config.run.slices)
    if config.run.precision == "auto":  # as on that slice, not on this machine
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, precision="bfloat16"))
    run = build(config, workdir, progress=True, absent=mesh)
    batch = run.text.batches.batch_at(0)
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    say(f"{target.name}: {target.chips} chips, {axes}, {run.config.run.precision}")
    tokens = {"student": batch.student, "teacher": batch.teacher}
    slots = ", ".join(f"{part} {' x '.join(map(str, one.ids.shape))}" for part, one in tokens.items() if one)
    say(f"first batch: {run.text.batches.batch_size:,} sentences in groups x rows x token slots: {slots}")
    begun = time.monotonic()
    plan = compiled_plan(
        target,
        run.program.train_step,
        run.layout.like,
        run.program.teacher_params,
        batch=shapes_of(batch),
        options=config.run,
    )
    compile_s, shapes = time.monotonic() - begun, len(run.text.batches.shapes)
    say(f"compiled its step in {compile_s:.0f} s")
    steps = int(60 * config.run.minutes / plan.least_seconds) or run.program.steps
    for line in report(plan, batch_size=run.text.batches.batch_size):
        say(line)
    state = held_bytes(run.layout.like.objective, run.layout.shardings.objective)
    say(f"state of the objective (queue): {state / 2**20:,.1f} MiB of a chip's memory, in the arguments above")
    flops = target_flops(run) if batch.targets is not None else 0.0
    seconds = {
        f"{steps:,} steps at least": steps * plan.least_seconds,
        "stored targets at least": flops / (target.chips * target.chip.flops_per_s),
        f"compiling {shapes} shapes of a batch, as fast as here,": shapes * compile_s,
    }
    say("time: " + "; ".join(f"{what} {duration(each)}" for what, each in seconds.items()))
    minutes = sum(seconds.values()) / 60
    cost = f"{minutes:,.1f} minutes, {minutes * target.chips / 60:,.2f} chip-hours"
    say(f"the run takes at least {cost}; evaluations and scores of pairs by teachers are not counted")


def target_flops(run: Run) -> float:
    """Least operations of computing the stored targets: all sentences have the mean length, by the student's tokenizer."""
    store, dtype, flops = run.text.store, run.program.compute_dtype, 0.0
    for teacher, view in itertools.product(run.models.teachers, run.objective.teacher_views):
        length = max(int(np.minimum(store.lengths(view), teacher.max_length).mean()), 1)
        slots = np.zeros((1, 1, length), np.int32)
        encode = partial(embed, teacher.definition, compute_dtype=dtype)
        traced = jax.make_jaxpr(encode)(shapes_of(teacher.params), Tokens(slots, slots, slots, slots[..., 0]))
        flops += store.rows * sum(products.bfloat16_flops for products in products_by_part(traced.jaxpr).values())
    return flops


def compiled_plan(
    target: Slice, train_step: Any, state: TrainState, teacher_params: Any, batch: Batch, options: RunOptions
) -> Plan:
    """Compiles a step whose arguments are shapes, and returns its plan."""
    traced = train_step.trace(state, teacher_params, batch)
    products = {
        part: Products(counted.flops / target.chips, counted.bfloat16_flops / target.chips)
        for part, counted in products_by_part(traced.jaxpr.jaxpr).items()
    }
    with _uncached(), _fits(target, options, argument_bytes(train_step, state, teacher_params, batch)):
        compiled = traced.lower().compile()
    memory = memory_of(compiled)
    if memory.peak > target.chip.memory_gib * GIB:
        raise too_little(target, options, needed_gib=memory.peak / GIB, held_gib=memory.arguments / GIB)
    text = compiled.as_text()
    return Plan(
        chip=target.chip,
        products=products,
        memory=memory,
        accessed_bytes=accessed_bytes(compiled),
        collectives=collectives_of(text),
        cycles=estimated_cycles(text),
    )


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """Disables JAX's compilation cache, which cannot load programs compiled for absent devices."""
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX reads the setting only once
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


@contextlib.contextmanager
def _fits(target: Slice, options: RunOptions, held: int) -> Iterator[None]:
    """Turns the compiler's out-of-memory error into an `InputError`; `held`: bytes of the step's arguments."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        match = next(filter(None, (re.search(pattern, str(error)) for pattern in REFUSALS)), None)
        if not match:
            raise
        needed = float(match[1]) * UNITS[match[2]]
        raise too_little(target, options, needed_gib=needed, held_gib=held / GIB) from error


def too_little(target: Slice, options: RunOptions, *, needed_gib: float, held_gib: float) -> InputError:
    """The error for a step that does not fit; `held_gib`: parameters, state and batch, which remat does not change."""
    split = (
        "--config.run.sharding=fsdp"
        if options.sharding not in ("zero", "fsdp") and target.chips > 1
        else "a larger slice"
    )
    remat = f"--config.run.accumulate={2 * options.accumulate}" if options.remat else "--config.run.remat=True"
    resident = held_gib > min(target.chip.memory_gib, needed_gib / 2)
    return InputError(
        f"a step needs {needed_gib:.1f} GiB on each chip of {target.name}, which has {target.chip.memory_gib:g}; parameters, "
        f"state and batch take {held_gib:.1f}, activations the rest: use {split if resident else remat}, "
        "or a smaller --config.data.batch_size."
    )


def argument_bytes(train_step: Any, *arguments: Any) -> int:
    """Bytes of a step's arguments that one device holds."""
    (call,) = jax.make_jaxpr(train_step)(*arguments).jaxpr.eqns
    leaves, everywhere = jax.tree.leaves(arguments), jax.sharding.SingleDeviceSharding(jax.devices()[0])
    known = [each if isinstance(each, jax.sharding.Sharding) else everywhere for each in call.params["in_shardings"]]
    return held_bytes(leaves, known)


def report(plan: Plan, *, batch_size: int) -> list[str]:
    """The lines that describe a plan."""
    memory, seconds, least = plan.memory, plan.seconds, plan.least_seconds
    slowest = max(seconds, key=lambda name: seconds[name])
    parts = sorted(plan.products.items(), key=lambda item: -item[1].flops)
    shares = ", ".join(f"{part or 'other'} {products.flops / max(plan.flops, 1):.0%}" for part, products in parts)
    moved = [f"{moving.count} {kind} {moving.size_bytes / 1e6:,.1f} MB" for kind, moving in plan.collectives.items()]
    accessed_ms = 1000 * plan.accessed_bytes / plan.chip.memory_bytes_per_s
    return [
        f"memory of a chip: {memory.peak / GIB:.2f} of {plan.chip.memory_gib:g} GiB (arguments {memory.arguments / GIB:.2f}, "
        f"new results {memory.outputs / GIB:.2f}, temporaries {memory.temporaries / GIB:.2f})",
        f"products of a chip and step: {plan.flops / 1e12:,.3f} TFLOP ({shares})",
        f"memory traffic by XLA's count, with the memory on the chip: {plan.accessed_bytes / 1e9:,.2f} GB, {accessed_ms:,.2f} ms",
        f"collectives: {', '.join(moved) or 'none'}",
        "a step at peak rates: " + ", ".join(f"{name} {1000 * value:,.2f} ms" for name, value in seconds.items()),
        f"a step takes at least {1000 * least:,.2f} ms, bound by {slowest}: at most {batch_size / least:,.0f} sentences/s "
        f"and {plan.utilisation:.0%} of the chips' arithmetic",
        f"the compiler's own estimates of all operations add up to {plan.cycles / 1e6:,.1f} million cycles",
    ]


def held_bytes(tree: Any, shardings: Any) -> int:
    """Bytes of a tree that one device holds."""
    leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True)
    return sum(math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf, sharding in leaves)


def shapes_of(tree: Any) -> Any:
    """Replaces the arrays of a tree by their shapes."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
