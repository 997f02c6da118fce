"""Plans for TPUs that are not there: slices, counted arithmetic and collectives, and the program's `--compile_for`."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from jaxdistill import main
from jaxdistill.cluster.chips import CHIPS
from jaxdistill.config import RunOptions, parse_config
from jaxdistill.core import InputError
from jaxdistill.inference import Embedder
from jaxdistill.planning.compiled import collectives_of, estimated_cycles
from jaxdistill.planning.plan import GIB, _fits, argument_bytes, compiled_plan, shapes_of, slice_named, target_flops
from jaxdistill.surgery import pruning
from jaxdistill.training.hooks.arithmetic import Products, products_by_part
from jaxdistill.training.setup.build import build
from jaxdistill.training.setup.student import load_teachers, make_student

from program import refused, tiny_arguments, write_text

LOOP = """HloModule step

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %added = f32[] add(%a, %b)
}

%picked (ring: f32[64,8], at: s32[]) -> f32[4,8] {
  %ring = f32[64,8]{1,0} parameter(0)
  %at = s32[] parameter(1)
  ROOT %slice = f32[4,8]{1,0} dynamic-slice(%ring, %at, %at), dynamic_slice_sizes={4,8}
}

%condition (state: (s32[], f32[64,8], f32[4,8])) -> pred[] {
  %state = (s32[], f32[64,8]{1,0}, f32[4,8]{1,0:S(1)}) parameter(0)
  %stop = s32[] constant(5)
  %index = s32[] get-tuple-element(%state), index=0
  ROOT %less = pred[] compare(%index, %stop), direction=LT
}

%body (state: (s32[], f32[64,8], f32[4,8])) -> (s32[], f32[64,8], f32[4,8]) {
  %state = (s32[], f32[64,8]{1,0}, f32[4,8]{1,0:S(1)}) parameter(0)
  %at = s32[]{:S(6)} get-tuple-element(%state), index=0
  %ring = f32[64,8]{1,0} get-tuple-element(%state), index=1
  %block = f32[4,8]{1,0:S(1)} fusion(%ring, %at), kind=kLoop, calls=%picked, metadata={op_name="jit(step)/jvp(objective)/slice"}, backend_config={"estimated_cycles":"7"}
  ROOT %next = (s32[], f32[64,8]{1,0}, f32[4,8]{1,0:S(1)}) tuple(%at, %ring, %block)
}

ENTRY %main (x: bf16[16,8], state: (s32[], f32[64,8], f32[4,8])) -> f32[16,8] {
  %x = bf16[16,8]{1,0} parameter(0)
  %state = (s32[], f32[64,8]{1,0}, f32[4,8]{1,0:S(1)}) parameter(1)
  %looped = (s32[], f32[64,8]{1,0}, f32[4,8]{1,0:S(1)}) while(%state), condition=%condition, body=%body
  %wide = f32[16,8]{1,0} convert(%x), metadata={op_name="jit(step)/transpose(jvp(student))/convert"}
  ROOT %all = f32[16,8]{1,0} all-reduce(%wide), replica_groups={{0,1,2,3}}, to_apply=%sum
}
"""


def test_a_loop_counts_as_often_as_it_runs_and_a_collective_by_what_it_sends():
    wide = 16 * 8 * 4
    assert estimated_cycles(LOOP) == 5 * 7
    assert collectives_of(LOOP) == {"all-reduce": (1, wide, 2 * 3 / 4 * wide)}
    line = next(line for line in LOOP.splitlines() if "all-reduce" in line)
    inside = LOOP.replace(line, "").replace("  ROOT %next", line.replace("ROOT ", "") + "\n  ROOT %next")
    assert collectives_of(inside) == {"all-reduce": (5, 5 * wide, 5 * 2 * 3 / 4 * wide)}


def test_a_collective_that_begins_and_ends_apart_counts_its_results():
    line = next(line for line in LOOP.splitlines() if "all-reduce" in line)
    start = "  %a = (f32[4,8]{1,0}, f32[16,8]{1,0}) all-gather-start(%wide), replica_groups={{0,1,2,3}}, dimensions={0}"
    assert collectives_of(LOOP.replace(line, start)) == {"all-gather": (1, 16 * 8 * 4, 3 / 4 * 16 * 8 * 4)}
    start = "  %a = (f32[16,8]{1,0}, f32[16,8]{1,0}) collective-permute-start(%wide), source_target_pairs={{0,1},{1,0}}"
    assert collectives_of(LOOP.replace(line, start)) == {"collective-permute": (1, 16 * 8 * 4, 16 * 8 * 4)}


def test_a_collective_that_stands_in_several_fusions_counts_once():
    line = next(line for line in LOOP.splitlines() if "all-reduce" in line).replace(
        "to_apply", "channel_id=3, to_apply"
    )
    piece = "%piece (wide: f32[16,8]) -> f32[16,8] {\n  %wide = f32[16,8]{1,0} parameter(0)\n" + line + "\n}\n\n"
    fusions = "".join(f"  %f{n} = f32[16,8]{{1,0}} fusion(%wide), kind=kCustom, calls=%piece\n" for n in range(3))
    overlapped = LOOP.replace(line.replace("channel_id=3, ", "") + "\n", fusions).replace("ENTRY", piece + "ENTRY")
    assert overlapped.count("calls=%piece") == 3
    assert collectives_of(overlapped) == collectives_of(LOOP)


@pytest.mark.parametrize(
    "groups",
    [
        "[2,4]<=[8]",
        "{{0,1,2,3},{4,5,6,7}}",
        "mesh['a'=2,'b'=4] {'b'}",
        "mesh['a'=2,'b'=2,'c'=2] {'b','c'}",
        "mesh['a'=8] {'a':(1)4}",
    ],
)
def test_the_devices_of_a_collective_are_read_in_every_notation(groups):
    text = LOOP.replace("replica_groups={{0,1,2,3}}", f"replica_groups={groups}")
    assert collectives_of(text) == collectives_of(LOOP)


def test_products_of_loops_branches_and_parts_are_counted_by_hand():
    x, w = jnp.ones((4, 8)), jnp.ones((8, 8))
    one = 2.0 * 4 * 8 * 8

    def step(x, w):
        with jax.named_scope("teacher"):
            x = jax.lax.fori_loop(0, 3, lambda _, y: y @ w, x)
        with jax.named_scope("student"):
            x, _ = jax.lax.scan(lambda y, _: (jnp.matmul(y, w, precision="highest"), None), x, length=5)
        return jax.lax.cond(x[0, 0] > 0, lambda y: y @ w, lambda y: y @ w @ w, x)

    found = products_by_part(jax.make_jaxpr(step)(x, w).jaxpr)
    assert found == {"teacher": Products(3 * one, 3 * one), "student": Products(5 * one, 30 * one), "": Products(2 * one, 2 * one)}  # fmt: skip


def test_products_inside_a_shard_map_count_on_every_device(mesh):
    spec = jax.sharding.PartitionSpec("data")
    inner = jax.shard_map(lambda x: x @ x.T, mesh=mesh, in_specs=spec, out_specs=spec)
    (found,) = products_by_part(jax.make_jaxpr(inner)(jnp.ones((16, 4))).jaxpr).values()
    assert found.flops == 8 * 2.0 * 2 * 2 * 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v5e", "not a TPU slice. Did you mean v5e"),
        ("v5litepod-7", "v5litepod-7 does not exist; allowed: v5e-1, v5e-4"),
        ("tpu-", "Allowed: v5e"),
        ("v7-8", "Allowed: v5e, v5p, v6e with a number"),
        ("v5e-7", "allowed: v5e-1, v5e-4, v5e-8"),
        ("v5p-4", "allowed: v5p-2, v5p-8, v5p-16"),
    ],
)
def test_an_unknown_slice_is_refused_with_the_known_ones(name, words):
    with pytest.raises(InputError, match=words):
        slice_named(name)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("v5e-16", ("v5litepod-16", "tpu-v5litepod-16", "tpu-v5e-16")),
        ("v5p-8", ("tpu-v5p-8",)),
        ("v6e-8", ("tpu-v6e-8",)),
    ],
)
def test_a_slice_is_known_by_the_names_of_google_and_skypilot(name, names):
    assert slice_named(name).name == name
    assert all(slice_named(other) == slice_named(name) for other in names)


def test_slices_of_v5p_are_named_by_cores():
    assert [slice_named(name).chips for name in ("v5e-1", "v5p-8", "v5p-64", "v6e-64")] == [1, 4, 32, 64]
    assert slice_named("v5p-64").topology == "v5p:2x4x4"


@pytest.mark.parametrize(
    ("options", "advice"), [({}, "remat=True"), ({"remat": True, "accumulate": 2}, "accumulate=4")]
)
def test_a_step_that_does_not_fit_says_what_to_change(options, advice):
    small = dataclasses.replace(slice_named("v5e-8"), chip=dataclasses.replace(CHIPS["v5e"], memory_gib=1e-3))
    step = jax.jit(lambda state, teacher, batch: jnp.sort(batch[:, None] * batch[None], axis=0).sum(axis=0))
    with pytest.raises(
        InputError, match=rf"each chip of v5e-8, which has 0.001; .* activations the rest: use --config.run.{advice}"
    ):
        compiled_plan(small, step, None, {}, jax.ShapeDtypeStruct((1000,), jnp.float32), RunOptions(**options))


LIBTPU = "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (%s) exceeds available HBM (15.75G)."  # fmt: skip
TPU = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used %s of 15.75G hbm. Exceeded hbm capacity by 48.05G.

Total hbm usage >= 64.30G:
    reserved        530.00M

Program hbm requirement 63.80G:
    HLO temp         63.79G (100.0%% utilization: Unpadded (63.58G) Padded (63.58G), 0.3%% fragmentation (214.1M))
"""  # fmt: skip


@pytest.mark.parametrize("text", [LIBTPU, TPU])
@pytest.mark.parametrize(
    ("used", "held", "words"),
    [
        ("63.80G", 1, "needs 63.8 GiB .* has 15.75; .* batch take 1.0, .* use --config.run.remat=True"),
        ("63.80G", 20, "needs 63.8 GiB .* batch take 20.0, .* use --config.run.sharding=fsdp"),
        ("16.25G", 12, "needs 16.2 GiB .* use --config.run.sharding=fsdp"),
        ("5.89T", 1, "needs 6031.4 GiB"),
    ],
)
def test_the_compilers_refusal_says_what_the_step_needs_and_what_takes_it(text, used, held, words):
    with pytest.raises(InputError, match=words), _fits(slice_named("v5e-8"), RunOptions(), held * GIB):
        raise jax.errors.JaxRuntimeError(text % used)


def test_another_refusal_of_the_compiler_is_not_taken_for_a_lack_of_memory():
    text = "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 20.00M of 16.00M vmem."
    with pytest.raises(jax.errors.JaxRuntimeError, match="vmem"), _fits(slice_named("v5e-8"), RunOptions(), 0):
        raise jax.errors.JaxRuntimeError(text)


def test_arguments_are_counted_as_they_lie_on_a_device(mesh):
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    step = jax.jit(lambda state, batch: batch.sum(), in_shardings=(whole, split))
    shapes = {"a": jax.ShapeDtypeStruct((16,), jnp.bfloat16)}, jax.ShapeDtypeStruct((16, 4), jnp.float32)
    assert argument_bytes(step, *shapes) == 16 * 2 + 2 * 4 * 4
    assert argument_bytes(jax.jit(lambda state, batch: batch.sum()), *shapes) == 16 * 2 + 16 * 4 * 4


@pytest.mark.parametrize("targets", ["live", "stored"])
def test_the_program_plans_its_step_without_computing_or_writing(targets, tmp_path, capsys, monkeypatch):
    cache = tmp_path / "cache"
    given = tiny_arguments(
        tmp_path, data__text=write_text(tmp_path), data__cache_folder=str(cache), teacher__kind=targets
    )
    main.main([*given, f"--workdir={tmp_path / 'w'}", "--dry_run", "--compile_for=v5e-8"])
    out = capsys.readouterr().out
    for words in (
        "v5e-8: 8 chips",
        "memory of a chip:",
        "memory traffic by XLA's count",
        "collectives:",
        "a step takes at least",
    ):
        assert words in out
    compiled_s, shapes, minutes, hours = map(
        float, re.search(r"step in (\d+) s.*compiling (\d).* ([\d.]+) minutes, ([\d.]+) chip-hours", out, re.S).groups()
    )
    assert minutes == pytest.approx(shapes * compiled_s / 60, abs=0.1)  # steps and targets take less than a second
    assert hours == pytest.approx(8 * minutes / 60, abs=0.02)
    assert ("teacher" in out.partition("TFLOP")[2].splitlines()[0]) == (targets == "live")
    assert not (tmp_path / "w").exists() and not (cache / "targets").exists()


def test_stored_targets_cost_the_teachers_products_of_each_row(tmp_path):
    given = tiny_arguments(tmp_path, data__text=write_text(tmp_path), teacher__kind="stored", run__precision="bfloat16")
    config = parse_config(main.parse_flags([*given, f"--workdir={tmp_path / 'w'}"]).config)
    run = build(config, tmp_path / "w", progress=False, absent=slice_named("v5e-8").mesh())
    store, (teacher,) = run.text.store, run.models.teachers
    tokens = store.rows * int(store.lengths("text").mean())
    matrices = sum(array.size for path, array in teacher.params.items() if path.endswith("/kernel"))
    assert 1 < target_flops(run) / (2 * tokens * matrices) < 1.5  # and attention


@pytest.mark.parametrize(
    "options",
    [
        {"student__layers": "greedy:1"},
        {"student__head": "linear", "student__head_init": "fitted"},
        {"student__kind": "static", "student__layers": None, "student__width": 8},
        {"student__layers": "", "student__intermediate": 12, "student__prune_by": "activation"},
    ],
    ids=["layers", "head", "static", "pruned"],
)
def test_a_student_that_models_would_make_is_planned_by_its_shapes(options, tmp_path, monkeypatch):
    options |= {"teacher__kind": "stored", "teacher__components": 8 * ("student__kind" in options)}
    given = tiny_arguments(tmp_path, **options)
    config = parse_config(main.parse_flags([*given, f"--workdir={tmp_path / 'w'}"]).config)
    made = make_student(config, load_teachers(config, tmp_path), tmp_path)

    def runs(*_, **__):
        raise AssertionError("a model runs")

    monkeypatch.setattr(Embedder, "encode_ids", runs)
    monkeypatch.setattr(pruning, "moments_of", runs)
    planned = build(config, tmp_path / "w", progress=False, absent=slice_named("v5e-8").mesh(model_axis=1))
    assert shapes_of(planned.models.student.params) == shapes_of(made.params)
    assert planned.models.student.definition == made.definition


def test_a_plan_without_a_dry_run_is_refused(capsys):
    line = refused(main, ["--config=configs/l2.py:tiny", "--workdir=w", "--compile_for=v5e-8"], capsys)
    assert "--compile_for=v5e-8" in line and "add --dry_run" in line
