"""Plans for absent TPUs: slices, counted arithmetic and collectives, and the program's `--compile_for`."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdistill import main
from jaxdistill.core import InputError
from jaxdistill.models.inference import Embedder
from jaxdistill.training.build import build, context_of, make_student
from jaxdistill.training.metrics import product_flops
from jaxdistill.training.plan import collective_bytes, compiled_plan, slice_named

from program import tiny_arguments, write_text

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
    """An operation in several fusions has one channel; one with separate start and end counts at its end."""
    assert collective_bytes(HLO) == {"all-reduce": 16 * 8 * 4 + 4 * 2 + 4 * 4, "all-gather": 16 * 8 * 2}


def test_products_of_loops_and_branches_are_counted_by_hand(mesh):
    x, w = jnp.ones((4, 8)), jnp.ones((8, 8))
    single = 2.0 * 4 * 8 * 8

    def step(x, w):
        x, _ = jax.lax.scan(lambda y, _: (jnp.matmul(y, w), None), x, length=5)
        return jax.lax.cond(x[0, 0] > 0, lambda y: y @ w, lambda y: y @ w @ w, x)

    assert product_flops(jax.make_jaxpr(step)(x, w).jaxpr) == (5 + 2) * single
    spec = jax.sharding.PartitionSpec("data")
    inner = jax.shard_map(lambda x: x @ x.T, mesh=mesh, in_specs=spec, out_specs=spec)
    assert product_flops(jax.make_jaxpr(inner)(jnp.ones((16, 4))).jaxpr) == 8 * 2.0 * 2 * 2 * 4


def test_slices_have_the_names_of_google_and_skypilot_and_those_of_v5p_count_cores():
    assert slice_named("v5e-16") == slice_named("v5litepod-16") == slice_named("tpu-v5litepod-16")
    assert [slice_named(name).chips for name in ("v5e-1", "v5p-8", "v5p-64", "v6e-64")] == [1, 4, 32, 64]
    assert slice_named("v5p-64").topology == "v5p:2x4x4"
    for name, words in (
        ("v7-8", "not a TPU slice; allowed: v5e-1, .*, v6e-256"),
        ("v5e-7", "allowed: v5e-1, v5e-4, v5e-8"),
    ):
        with pytest.raises(InputError, match=words):
            slice_named(name)


def test_a_step_that_does_not_fit_says_what_to_change():
    small = slice_named("v5e-8")._replace(memory_gib=1e-3)
    step = jax.jit(lambda state, teacher, batch: jnp.sort(batch[:, None] * batch[None], axis=0).sum(axis=0))
    with pytest.raises(
        InputError, match=r"a chip of v5e-8 \(it needs 0.0 of 0.001 GiB of HBM\); use --config.run.remat=True"
    ):
        compiled_plan(small, step, None, {}, jax.ShapeDtypeStruct((1000,), jnp.float32), batch_size=8)


@pytest.mark.parametrize("targets", ["live", "stored"])
def test_the_program_plans_its_step_without_computing_or_writing(targets, tmp_path, capsys, monkeypatch):
    cache = tmp_path / "cache"
    options = dict(data__text=write_text(tmp_path), data__cache_folder=str(cache), teacher__kind=targets)
    arguments = tiny_arguments(tmp_path, **options)
    main.main([*arguments, f"--workdir={tmp_path / 'w'}", "--dry_run", "--compile_for=v5e-8"])
    out = capsys.readouterr().out
    for words in (
        "v5e-8: 8 chips",
        "memory of a chip:",
        "collectives: all-",
        "a step takes at least",
    ):
        assert words in out
    compiled_s, shapes, minutes, hours = map(
        float, re.search(r"step in (\d+) s.*compiling (\d).* ([\d.]+) minutes, ([\d.]+) chip-hours", out, re.S).groups()
    )
    assert minutes == pytest.approx(shapes * compiled_s / 60, abs=0.1)  # steps take less than a second
    assert hours == pytest.approx(8 * minutes / 60, abs=0.02)
    assert not (tmp_path / "w").exists() and not (cache / "targets").exists()


def test_a_plan_has_the_student_of_the_run_but_computes_no_targets(tmp_path, monkeypatch):
    options = {"student__layers": "greedy:1", "student__head": "linear", "student__head_init": "fitted"}
    arguments = tiny_arguments(tmp_path, teacher__kind="stored", **options)
    config = main.parse_flags([*arguments, f"--workdir={tmp_path / 'w'}"]).stages[0]
    expected = make_student(config, config.teacher.load(context_of(config, tmp_path)), tmp_path)

    def runs(*_, **__):
        raise AssertionError("a model computes targets")

    monkeypatch.setattr(Embedder, "encode", runs)
    planned = build(config, tmp_path / "w", progress=False, absent=slice_named("v5e-8").mesh(model_axis=1))
    assert planned.student.definition == expected.definition
    for path, array in expected.params.items():
        np.testing.assert_array_equal(planned.student.params[path], array)
