"""Plans for TPUs that are not there: slices, counted arithmetic and collectives, and the program's `--compile_for`."""

import re

import jax
import jax.numpy as jnp
import pytest

from jaxdistill import main
from jaxdistill.core import InputError
from jaxdistill.inference import Embedder
from jaxdistill.surgery import pruning
from jaxdistill.training.flops import Products, products_by_part
from jaxdistill.training.plan import (
    CHIPS,
    collective_bytes,
    compiled_plan,
    refusing,
    shapes_of,
    slice_named,
    target_flops,
)
from jaxdistill.training.setup.build import build
from jaxdistill.training.setup.student import load_teachers, make_student

from program import refused, tiny_arguments, write_text

HLO = """
%piece (wide: f32[16,8]) -> f32[16,8] {
  ROOT %inner = f32[16,8]{1,0} all-reduce(%wide), channel_id=3, replica_groups=[2,4]<=[8], to_apply=%sum
}
ENTRY %main (x: bf16[16,8]) -> f32[16,8] {
  %f1 = f32[16,8]{1,0} fusion(%wide), kind=kCustom, calls=%piece
  %all = f32[16,8]{1,0} all-reduce(%wide), channel_id=3, replica_groups=[2,4]<=[8], to_apply=%sum
  %other = (bf16[4]{0}, f32[2,2]{1,0}) all-reduce(%a, %b), channel_id=4, to_apply=%sum
  %start = (bf16[4,8]{1,0}, bf16[16,8]{1,0}) all-gather-start(%x), channel_id=5, dimensions={0}
  %done = bf16[16,8]{1,0} all-gather-done(%start)
}
"""


def test_collectives_count_by_their_results_and_once_each():
    """An operation that stands in several fusions has one channel; one that begins and ends apart counts at its end."""
    assert collective_bytes(HLO) == {"all-reduce": 16 * 8 * 4 + 4 * 2 + 4 * 4, "all-gather": 16 * 8 * 2}


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
        ("v5e", "v5e does not exist; allowed: v5e-1, v5e-4"),
        ("v7-8", "not a TPU slice; allowed: v5e, v5p, v6e with a number"),
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


def test_a_step_that_does_not_fit_says_what_to_change():
    small = slice_named("v5e-8")._replace(chip=CHIPS["v5e"]._replace(memory_gib=1e-3))
    step = jax.jit(lambda state, teacher, batch: jnp.sort(batch[:, None] * batch[None], axis=0).sum(axis=0))
    with pytest.raises(InputError, match=r"a chip of v5e-8 \(it needs 0.0 of 0.001 GiB\); use --config.run.remat=True"):
        compiled_plan(small, step, None, {}, jax.ShapeDtypeStruct((1000,), jnp.float32))


LIBTPU = "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (63.80G) exceeds available HBM (15.75G)."  # fmt: skip
TPU = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 63.80G of 15.75G hbm. Exceeded hbm capacity by 48.05G.

Total hbm usage >= 64.30G:
"""  # fmt: skip


@pytest.mark.parametrize("text", [LIBTPU, TPU])
def test_the_compilers_refusal_is_one_line(text):
    with pytest.raises(InputError, match=r"a chip of v5e-8 \(RESOURCE_EXHAUSTED: .*63.80G.*\); use") as refusal:
        with refusing(slice_named("v5e-8")):
            raise jax.errors.JaxRuntimeError(text)
    assert "\n" not in str(refusal.value)


def test_another_refusal_of_the_compiler_is_not_taken_for_a_lack_of_memory():
    text = "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 20.00M of 16.00M vmem."
    with pytest.raises(jax.errors.JaxRuntimeError, match="vmem"), refusing(slice_named("v5e-8")):
        raise jax.errors.JaxRuntimeError(text)


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
        "memory traffic",
        "collectives: all-",
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
    config = main.parse_flags([*given, f"--workdir={tmp_path / 'w'}"]).config
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
        {"student__layers": "", "student__intermediate": 12},
    ],
    ids=["layers", "head", "static", "pruned"],
)
def test_a_student_that_models_would_make_is_planned_by_its_shapes(options, tmp_path, monkeypatch):
    options |= {"teacher__kind": "stored", "teacher__components": 8 * ("student__kind" in options)}
    given = tiny_arguments(tmp_path, **options)
    config = main.parse_flags([*given, f"--workdir={tmp_path / 'w'}"]).config
    made = make_student(config, load_teachers(config, tmp_path), tmp_path)

    def runs(*_, **__):
        raise AssertionError("a model runs")

    monkeypatch.setattr(Embedder, "encode_ids", runs)
    monkeypatch.setattr(pruning, "energies_of", runs)
    planned = build(config, tmp_path / "w", progress=False, absent=slice_named("v5e-8").mesh(model_axis=1))
    assert shapes_of(planned.models.student.params) == shapes_of(made.params)
    assert planned.models.student.definition == made.definition


def test_a_plan_without_a_dry_run_is_refused(capsys):
    line = refused(main, ["--config=configs/l2.py:tiny", "--workdir=w", "--compile_for=v5e-8"], capsys)
    assert "--compile_for=v5e-8" in line and "add --dry_run" in line
