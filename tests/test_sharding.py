"""`run.sharding=zero`, `fsdp` and `tensor`: a step equals an unsharded one, and each device holds its part."""

import re
from functools import cache

import jax
import numpy as np
import pytest

from jaxdistill import main
from jaxdistill.core import STACKED
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.encoders import sentence
from jaxdistill.training import build, sharding
from jaxdistill.training import plan as overview

import encoder_cases as cases
from conftest import script
from program import arguments_of

held_share = script("benchmarks/tpu_plan.py").held_share

CASES = {
    "zero": ({"sharding": "zero"}, 0.2),
    "fsdp": ({"sharding": "fsdp"}, 0.2),
    "slices": ({"sharding": "fsdp", "slices": 2}, 0.35),
    "tensor": ({"sharding": "tensor", "model_axis": 2}, 0.55),
}
"""Options of `run`, and the share of all numbers that a device holds at most; of the teacher's all with `zero`."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharding")
    cases.write_encoder(folder / "teacher", "llama")
    (folder / "text.txt").write_text("\n".join(f"w{row % 7} w{row % 90} w{row * 3 % 80}" for row in range(200)) + "\n")
    return folder


def built(folder, **run):
    options = {
        "data.text": folder / "text.txt", "data.batch_size": 16, "data.max_length": 32, "data.cache_folder": folder / "cache",
        "teacher.model": folder / "teacher", "teacher.pooling": "mean", "teacher.kind": "live", "student.layers": "1,2",
        "evals.pairs": "", "evals.agreement": "", "evals.best": "", "run.steps": 2, "run.precision": "float32", "optimizer.ema": 0.5,
    } | {f"run.{name}": value for name, value in run.items()}  # fmt: skip
    flags = main.parse_flags(arguments_of("configs/l2.py:tiny", options))
    return build.build(flags.stages[0], folder / "run", progress=False)


@pytest.fixture(scope="module")
def unsharded(folder):
    """Returns the run without sharding with so many devices for a matrix, its state after a step and its loss; made once."""

    @cache
    def first_step(model_axis: int):
        run = built(folder, model_axis=model_axis)
        return run, *stepped(run)

    return first_step


def stepped(run):
    batch = meshes.place(run.batches.batch_at(0), meshes.batch_sharding(run.mesh))
    state, metrics = run.program.train_step(run.first_state(run.seeds()), run.teacher_params, batch)
    return state, float(metrics["loss"])


@pytest.mark.parametrize("case", CASES)
def test_a_sharded_step_is_the_unsharded_one_and_each_device_holds_its_part(folder, unsharded, monkeypatch, case):
    monkeypatch.setattr(sharding, "LARGE", 512)
    options, max_share = CASES[case]

    def is_split(share: float) -> bool:
        return share == 1 if case == "zero" else share < max_share

    reference, expected, loss = unsharded(options.get("model_axis", 1))
    split = built(folder, **options)
    state, split_loss = stepped(split)
    assert split_loss == pytest.approx(loss, abs=1e-5)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=0, atol=1e-5),
        expected.params, state.params,
    )  # fmt: skip
    shardings = {path: array.sharding for path, array in split.teacher_params.items()}
    assert is_split(held_share(split.teacher_params, shardings))
    table = overview.parameter_table(split)
    assert re.search(
        r"layers/0/intermediate/kernel .*'(model|data)'", table
    ) and "'data'" not in overview.parameter_table(reference)
    for tree in (state.params, state.optimizer, state.average):
        assert held_share(tree, jax.tree.map(lambda array: array.sharding, tree)) < max_share
    embedder = sharding.sharded_embedder(split.teacher, split.config.run)
    assert is_split(held_share(embedder.params, {path: x.sharding for path, x in embedder.params.items()}))
    np.testing.assert_allclose(
        embedder.encode(["w1 w2"]),
        sharding.sharded_embedder(reference.teacher, reference.config.run).encode(["w1 w2"]),
        atol=1e-5,
    )


@pytest.mark.parametrize("case", ["fsdp", "tensor"])
def test_a_stacked_teacher_is_split_and_gathered_layer_by_layer(folder, unsharded, monkeypatch, case):
    """As accelerators hold it: whole layers on a leading axis that no device splits."""
    monkeypatch.setattr(sharding, "LARGE", 512)
    options, max_share = CASES[case]
    _, _, loss = unsharded(options.get("model_axis", 1))
    monkeypatch.setattr(sentence, "platform", lambda mesh: "tpu")
    split = built(folder, **options)
    state, split_loss = stepped(split)
    assert split_loss == pytest.approx(loss, abs=1e-6)
    params = split.teacher_params
    assert params[f"{STACKED}0/output/kernel"].shape == (3, 48, 32)
    assert held_share(params, {path: array.sharding for path, array in params.items()}) < max_share
    if case == "fsdp":
        program = split.program.train_step.lower(state, params, split.batches.batch_at(0)).compile().as_text()
        gathered = re.findall(r"= (f32\[[\d,]+\])\S* all-gather\(", program)
        assert "f32[48,32]" in gathered and not [shape for shape in gathered if shape.startswith("f32[3,")]


def test_kernels_are_gathered_in_bfloat16_where_products_round_them_and_gradients_stay_float32(folder, monkeypatch):
    monkeypatch.setattr(sharding, "LARGE", 512)
    split = built(folder, precision="bfloat16", sharding="zero")
    program = split.program
    lowered = program.train_step.lower(program.like, split.teacher_params, split.batches.batch_at(0)).as_text()
    constraints = re.findall(r"sharding_constraint .*: tensor<(\d+)x(\d+)x(f32|bf16)>", lowered)
    placements = program.shardings.params["student"].items()
    kernels = [path for path, placement in placements if path.endswith("/kernel") and placement.spec]
    assert kernels and len([kind for *_, kind in constraints if kind == "bf16"]) == len(kernels)
    assert len([kind for *_, kind in constraints if kind == "f32"]) >= len(kernels)
