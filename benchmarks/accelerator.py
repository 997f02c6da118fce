"""Measures what is worth knowing of an accelerator in ten minutes: a line of JSON for each figure, the most valuable first.

    python benchmarks/accelerator.py --minutes=9
    python benchmarks/accelerator.py --small --only=step-live,queue     # on a CPU, to see that it runs
    python benchmarks/accelerator.py --compile_for=v5e                  # seconds of compiling for an absent device

It reads no weights, no text and no network: models are random, in the shapes of public ones. Each figure has a process of its
own with a limit of time, so that one that hangs or runs out of memory costs no other. This process only imports JAX, and holds no
device. `--minutes` starts no figure that would begin after it. Figures of PyTorch are left out where it, or sentence-transformers, is not installed. `--compile_for=v5e` needs libtpu,
`--compile_for=h100` JAX's CUDA plugin (`pip install jax[cuda12]`).
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
import tpu_plan
from accelerator_training import FULL, SMALL, Program, Size, congen_step, random_model, timed, unit
from jax.experimental import topologies
from jax.sharding import Mesh

import jaxdistill
from jaxdistill.checkpoints.folder import save
from jaxdistill.cluster.mesh import frozen_shapes, make_mesh
from jaxdistill.core import Encoded, Sizes
from jaxdistill.data.packing import pad
from jaxdistill.inference import embed as inference
from jaxdistill.objectives.congen import ConGen
from jaxdistill.ops import ring
from jaxdistill.training.plan import slice_named

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent
Programs = Iterator[tuple[str, Program]]


def device(size: Size) -> dict[str, Any]:
    """Devices, memory and versions."""

    def installed_version(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return ""

    memory = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    names = ("jax", "jaxlib", "flax", "optax", "torch", "transformers", "sentence-transformers")
    return {
        "devices": [str(one.device_kind) for one in jax.devices()],
        "platform": jax.default_backend(),
        "memory_gib": round(memory / 2**30, 1),
        "versions": {name: installed_version(name) for name in names},
    }


def peak(size: Size, mesh: Mesh) -> Programs:
    """A large bfloat16 product, whose rate other figures are a share of."""
    x = jnp.ones((size.product, size.product), jnp.bfloat16)
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32).astype(jnp.bfloat16))
    yield "product", Program(multiply, (x, x))


def step_live(size: Size, mesh: Mesh) -> Programs:
    """ConGen with its teacher in the step."""
    yield "step", congen_step(size, mesh)


def step_stored(size: Size, mesh: Mesh) -> Programs:
    """ConGen with stored targets."""
    yield "step", congen_step(size, mesh, stored=True)


def step_minilm(size: Size, mesh: Mesh) -> Programs:
    """Three layers of MiniLM, with stored targets and a queue of 16,384."""
    layers, batch, queue = min(size.layers or 3, 3), min(size.batch, 128), min(size.queue, 16384)
    small = size._replace(teacher="minilm-l6", student="minilm-l6", layers=layers, batch=batch, queue=queue)
    yield "step", congen_step(small, mesh, stored=True)


def step_torch(size: Size, *, live: bool = True) -> dict[str, Any]:
    """The same step in PyTorch: `torch.compile`, autocast and fused attention, on sentences without padding."""
    import torch
    import transformers

    kind = "cuda" if torch.cuda.is_available() else "cpu"

    def body(name: str) -> Any:
        family, _, _, settings = tpu_plan.MODELS[name]
        config = {"roberta": transformers.RobertaConfig, "bert": transformers.BertConfig}[
            family.__name__.rpartition(".")[2]
        ]
        layers = {"num_hidden_layers": size.layers} if size.layers else {}
        model = transformers.AutoModel.from_config(config(**(dict(settings) | layers)), attn_implementation="sdpa")
        return model.to(kind)

    teacher, student = body(size.teacher).eval(), body(size.student).train()
    width = teacher.config.hidden_size
    head = torch.nn.Linear(student.config.hidden_size, width).to(kind)
    parameters = [*student.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=5e-5, fused=kind == "cuda")
    ids = torch.randint(1000, 30000, (2 * size.batch, size.tokens), device=kind)
    state = {"queue": torch.nn.functional.normalize(torch.randn(size.queue, width, device=kind), dim=1).bfloat16()}
    targets = torch.nn.functional.normalize(torch.randn(size.batch, width, device=kind), dim=1)

    def loss_of(ids: Any, queue: Any, stored: Any) -> tuple[Any, Any]:
        with torch.autocast(kind, dtype=torch.bfloat16):
            with torch.no_grad():
                vectors = teacher(ids[: size.batch]).last_hidden_state.mean(1) if live else stored
                teacher_vectors = torch.nn.functional.normalize(vectors.float(), dim=1)
            found = torch.tanh(head(student(ids).last_hidden_state.mean(1)))
            found = torch.nn.functional.normalize(found.float(), dim=1)
            keys = torch.cat([queue, teacher_vectors.bfloat16()])
            p = torch.softmax((teacher_vectors @ keys.T).float() / 0.05, dim=1).repeat(2, 1)
            return -(p * torch.log_softmax((found @ keys.T).float() / 0.05, dim=1)).sum(1).mean(), keys[size.batch :]

    compiled = torch.compile(loss_of)

    def one() -> float:
        optimizer.zero_grad()
        loss, queue = compiled(ids, state["queue"], targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        state["queue"] = queue.detach()
        if kind == "cuda":
            torch.cuda.synchronize()
        return 0.0

    begun = time.perf_counter()
    one()
    compiling = time.perf_counter() - begun
    seconds = timed(one, size.repeats)
    return {"first_step_s": round(compiling, 2), "ms_per_step": 1e3 * seconds, "sentences_per_s": size.batch / seconds}


def step_torch_stored(size: Size) -> dict[str, Any]:
    """The same with stored targets."""
    return step_torch(size, live=False)


def encode(size: Size) -> dict[str, Any]:
    """`encode` of random sentences with gte-small's shape, beside sentence-transformers on the same folder."""
    words = [f"w{number}" for number in range(30000)]
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    draw = random.Random(0)
    texts = [" ".join(draw.choices(words, k=draw.randint(4, 60))) for _ in range(size.sentences)]
    shapes = random_model("gte-small", layers=size.layers)
    found: dict[str, Any] = {"sentences": size.sentences}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        provenance = dataclasses.replace(shapes.provenance, tokenizer_folder=pathlib.Path(folder))
        model = dataclasses.replace(shapes, tokenizer=tokenizer, max_length=128, provenance=provenance)
        save(model, f"{folder}/model")
        ours = jaxdistill.load(f"{folder}/model", precision="bfloat16")
        found |= rates("jaxdistill", lambda: ours.encode(texts), size)
        try:
            import torch
            from sentence_transformers import SentenceTransformer
        except ImportError:
            return found
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        theirs = SentenceTransformer(f"{folder}/model", device=kind, model_kwargs={"dtype": torch.bfloat16})
        return found | rates("sentence-transformers", lambda: theirs.encode(texts, batch_size=256), size)


def rates(name: str, call: Callable[[], Any], size: Size) -> dict[str, float]:
    """Seconds of the first pass, which compiles, and sentences/s of the second."""
    begun = time.perf_counter()
    call()
    first = time.perf_counter() - begun
    begun = time.perf_counter()
    call()
    return {
        f"{name}/first_pass_s": round(first, 2),
        f"{name}/sentences_per_s": size.sentences / (time.perf_counter() - begun),
    }


def embedding(size: Size, mesh: Mesh) -> Programs:
    """The programs of `encode`, one for each padded length."""
    model, dtype = tpu_plan.model("gte-small", layers=size.layers), np.dtype("bfloat16")
    params = frozen_shapes(model.frozen_params(mesh), dtype)
    for length in (length for length in inference.FEWER_LENGTHS if length <= 64):
        count = 128 * inference.SLOTS_PER_SENTENCE // length
        tokens = pad([np.zeros(length, np.int32)] * count, length=length, count=count, pad_id=0)
        yield f"{length} slots", Program(inference.make_embed(model.definition, mesh, dtype), (params, tokens))


def queue(size: Size, mesh: Mesh) -> Programs:
    """The queue loss, forward and backward, for several numbers of keys and sizes of their blocks."""
    draw, width = np.random.default_rng(0), 1024 if size.queue == FULL.queue else 64
    student, teacher = (jnp.asarray(unit(draw, (size.batch, views, width))) for views in (2, 1))
    for keys in (4096, 65536) if size.queue == FULL.queue else (size.queue,):
        objective = ConGen(queue_size=keys)
        sizes = Sizes(size.batch, width, 0, 0, 0, 0, jnp.dtype("bfloat16"))
        _, state = objective.init(jax.random.key(0), sizes, jnp.asarray(unit(draw, (keys, width))))

        def loss(vectors, teacher, state, objective=objective):
            return jnp.mean(objective({}, state, Encoded(vectors), Encoded(teacher))[0])

        for block in (1024, 4096, 16384):
            ring.BLOCK_ROWS = ring.BLOCK_ROWS_OF_GPUS = block  # read when the next program is traced
            both = jax.jit(jax.value_and_grad(loss))
            yield f"{keys} keys, blocks of {block}", Program(both, (student, teacher, state))
            both.clear_cache()


def attention(size: Size, mesh: Mesh) -> Programs:
    """Attention of BERT-base over 65,536 slots, forward and backward: plain, fused by XLA, and by cuDNN."""
    heads, width = 12, 64
    slots = 65536 if size.queue == FULL.queue else 1024

    def plain(query, key, value):
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32) * width**-0.5
        weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value, preferred_element_type=jnp.float32).astype(query.dtype)

    ways = {"plain": plain} | {
        name: lambda *inputs, name=name: jax.nn.dot_product_attention(*inputs, implementation=name)
        for name in ("xla", *(["cudnn"] if mesh.devices.flat[0].platform == "gpu" else []))
    }
    for row in (64, 128, 512):
        x = jax.random.normal(jax.random.key(0), (slots // row, row, heads, width), jnp.bfloat16)
        for name, way in ways.items():
            both = jax.jit(jax.grad(lambda a, b, c, way=way: way(a, b, c).astype(jnp.float32).sum(), argnums=(0, 1, 2)))
            yield f"{row} slots, {name}", Program(both, (x, x, x))


def step_float32(size: Size, mesh: Mesh) -> Programs:
    """The step in float32, without dropout."""
    small = size._replace(teacher="minilm-l6", student="minilm-l6", layers=2, batch=32, queue=256)
    yield "step", congen_step(small, mesh, exact=True)


def parity(size: Size) -> dict[str, Any]:
    """Losses of ten steps in float32 without dropout, here and on the CPU: the largest relative difference."""
    found = {}
    for platform in (jax.default_backend(), "cpu"):
        for _, program in step_float32(size, make_mesh(devices=jax.devices(platform)[:1])):
            (state, *rest), losses = program.arguments, []
            for _ in range(10):
                state, metrics = program.function(state, *rest)
                losses.append(float(metrics["loss"]))
            found[platform] = losses
    here, there = (found[platform] for platform in (jax.default_backend(), "cpu"))
    return {"losses": here, "largest_difference": max(abs(a - b) / abs(b) for a, b in zip(here, there, strict=True))}


class Figure(NamedTuple):
    """A measurement and its limit of time."""

    limit_s: int
    programs: Callable[[Size, Mesh], Programs] | None = None
    """Its JAX programs on a mesh."""
    measure: Callable[[Size], dict[str, Any]] | None = None
    """What to measure instead of each program's time."""

    def measured(self, size: Size, target: str) -> dict[str, Any]:
        """The figure; with a target, the seconds of compiling its programs for an absent device."""
        if self.measure and not target:
            return self.measure(size)
        assert self.programs is not None
        mesh = absent_mesh(target) if target else make_mesh(devices=jax.devices()[:1])
        size, found = size._replace(absent=bool(target)), dict[str, Any]()
        for name, program in self.programs(size, mesh):
            try:
                found[name] = rounded(program.measured(size, mesh))
            except Exception as error:  # what this device lacks costs no other figure
                found[name] = f"{type(error).__name__}: {error!s:.200}"
        return found


def absent_mesh(name: str) -> Mesh:
    """One device for which the compiler is installed."""
    if name == "v5e":
        return slice_named("v5e-1").mesh()
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    properties = (HERE / "h100.txtpb").read_text()
    topology = topologies.get_topology_desc(name, "cuda", topology="1x1x1", target_config=properties)
    return make_mesh(devices=topology.devices)


FIGURES = {
    "device": Figure(60, measure=device),
    "peak": Figure(60, peak),
    "step-live": Figure(150, step_live),
    "step-live-torch": Figure(150, measure=step_torch),
    "step-stored": Figure(120, step_stored),
    "step-stored-torch": Figure(120, measure=step_torch_stored),
    "step-minilm": Figure(90, step_minilm),
    "encode": Figure(120, embedding, encode),
    "queue": Figure(120, queue),
    "attention": Figure(120, attention),
    "parity": Figure(120, step_float32, parity),
}
"""In the order of their value."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="no figure begins later")
    parser.add_argument("--small", action="store_true", help="sizes that a CPU can do")
    parser.add_argument("--only", default="", help=f"figures, separated by commas: {', '.join(FIGURES)}")
    parser.add_argument("--compile_for", choices=("v5e", "h100"), default="", help="compile only; no limits of time")
    parser.add_argument("--figure", choices=list(FIGURES), default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(FIGURES)
    if unknown := set(names) - FIGURES.keys():
        parser.error(f"unknown figure {min(unknown)}; there are {', '.join(FIGURES)}")
    if options.figure:
        figure = FIGURES[options.figure].measured(SMALL if options.small else FULL, options.compile_for)
        print(json.dumps(rounded(figure)), flush=True)
        return
    if options.compile_for:
        # The cache cannot load programs compiled for absent devices.
        os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
        names = [name for name in names if FIGURES[name].programs]
    begun = time.monotonic()
    for name in names:
        left = 60 * options.minutes - (time.monotonic() - begun)
        limit_s = 3600 if options.compile_for else min(FIGURES[name].limit_s, left)
        figure = measured(name, limit_s) if limit_s > 0 else {"error": "left out: no time"}
        print(json.dumps({"figure": name} | figure), flush=True)


def measured(name: str, limit_s: float) -> dict[str, Any]:
    """The figure, measured in a process of its own with this one's options, or the error that it ended with."""
    command = [sys.executable, __file__, *sys.argv[1:], f"--figure={name}"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")])}
    begun = time.monotonic()
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {limit_s:.0f} s"}
    spent = {"process_s": round(time.monotonic() - begun, 1)}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"error": (done.stderr.strip() or done.stdout.strip())[-500:]} | spent
    return json.loads(lines[-1]) | spent


def rounded(figure: dict[str, Any]) -> dict[str, Any]:
    """Numbers with four digits."""
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in figure.items()}


if __name__ == "__main__":
    main()
