"""Traffic and memory of the training step, compiled ahead of time for TPU slices and CUDA."""

import os

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from jaxdistill.core.cluster.mesh import make_mesh
from jaxdistill.objectives.congen import ConGen

from compiled import gradient_of_an_encoder, moved_bytes, train_step


@pytest.fixture(autouse=True, scope="module")
def nothing_from_the_cache():
    """The tests measure fresh compilations, and JAX cannot read back programs of an absent TPU."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # it asks once for each process
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


def test_a_longer_queue_costs_no_traffic_and_no_temporaries_but_its_mask():
    """Temporaries that fit into a chip's fast memory beside the queue count as none, so that both queues must fit or neither."""
    devices = 16
    mesh, short = tpu_mesh("v5e:4x4"), 8192 * devices

    def compiled(queue_size: int):
        step, arguments = train_step(mesh, ConGen(queue_size=queue_size), batch_size=8 * devices, groups=devices)
        return step.lower(*arguments).compile()

    shorter, longer = compiled(short), compiled(4 * short)
    traffic = moved_bytes(shorter)
    assert traffic and traffic == moved_bytes(longer)
    assert sum(traffic.values()) < 4 * short * 32 * 4  # bytes of the queue
    mask = 3 * short * 4 / devices  # of its own keys, which each device adds to their products
    assert longer.memory_analysis().temp_size_in_bytes <= shorter.memory_analysis().temp_size_in_bytes + mask
    grown = longer.memory_analysis().argument_size_in_bytes - shorter.memory_analysis().argument_size_in_bytes
    assert grown == pytest.approx(3 * short * 32 * 4 / devices, rel=0.02)  # each device holds its part only


def test_a_deep_teacher_makes_a_program_for_tpus_no_larger():
    mesh = tpu_mesh("v5e:2x4")

    def size(teacher_layers: int) -> int:
        options = dict(batch_size=64, groups=8, compute_dtype=jnp.bfloat16)
        step, arguments = train_step(mesh, ConGen(queue_size=4096), teacher_layers=teacher_layers, **options)
        return len(step.lower(*arguments).compile().as_text())

    assert size(12) == pytest.approx(size(4), rel=0.01)


def test_long_rows_are_attended_to_in_one_kernel_on_a_tpu():
    def lowered(slots: int, dtype):
        return gradient_of_an_encoder(tpu_mesh("v5e:2x2"), rows=2, slots=slots, compute_dtype=dtype)

    kernel = "tpu_custom_call"
    assert kernel in lowered(256, jnp.bfloat16).compile().as_text()
    assert kernel not in lowered(128, jnp.bfloat16).as_text()
    assert kernel not in lowered(256, jnp.float32).as_text()


def test_the_step_lowers_for_cuda():
    mesh = make_mesh(devices=jax.devices()[:1])
    step, arguments = train_step(mesh, ConGen(queue_size=4096), batch_size=64, groups=8, compute_dtype=jnp.bfloat16)
    state, teacher, batch = arguments

    def plain(params, optimizer, objective, number, key, teacher, batch):  # typed keys do not pass jax.export
        from jaxdistill.core import TrainState

        state = TrainState(number, params, optimizer, objective, jax.random.wrap_key_data(key))
        state, metrics = step(state, teacher, batch)
        return state.params, metrics

    exported = jax.export.export(jax.jit(plain), platforms=["cuda"])(
        state.params,
        state.optimizer,
        state.objective,
        state.step,
        jax.ShapeDtypeStruct((2,), jnp.uint32),
        teacher,
        batch,
    )
    assert exported.platforms == ("cuda",)
    assert "stablehlo.dynamic_update_slice" in exported.mlir_module()


def tpu_mesh(name: str) -> Mesh:
    """Devices of an absent slice; needs only the TPU compiler."""
    pytest.importorskip("libtpu", reason="the TPU compiler is missing: pip install libtpu")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="tpu", topology_name=name)
    return make_mesh(devices=topology.devices)
