"""Measures what is worth knowing of an accelerator in ten minutes: a line of JSON for each figure, the most valuable first.

    python benchmarks/accelerator.py --minutes=9
    python benchmarks/accelerator.py --small --only=step-live,queue     # on a CPU, to see that it runs

It reads no weights, no text and no network: models are random, in the shapes of public ones. Each figure has a process of its
own with a limit of time, so that one that hangs or runs out of memory costs no other. `--minutes` starts no figure that would
begin after it. Figures of PyTorch are left out where it, or sentence-transformers, is not installed.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from accelerator_training import FULL, SMALL, Size, Training, random_model, timed, unit

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent


def device(size: Size) -> dict[str, Any]:
    """Devices, memory and versions."""
    from importlib.metadata import PackageNotFoundError, version

    import jax

    def known(name: str) -> str:
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
        "versions": {name: known(name) for name in names},
    }


def peak(size: Size) -> dict[str, Any]:
    """The rate of a large bfloat16 product, which other figures are a share of."""
    import jax
    import jax.numpy as jnp

    x = jnp.ones((size.product, size.product), jnp.bfloat16)
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32).astype(jnp.bfloat16))
    seconds = timed(lambda: multiply(x, x), size.repeats)
    return {"tflops_per_s": 2 * size.product**3 / seconds / 1e12, "ms": 1e3 * seconds}


def step_live(size: Size) -> dict[str, Any]:
    """ConGen with its teacher in the step."""
    return Training(size).run(size)


def step_stored(size: Size) -> dict[str, Any]:
    """ConGen with stored targets."""
    return Training(size, stored=True).run(size)


def step_minilm(size: Size) -> dict[str, Any]:
    """Three layers of MiniLM, with stored targets and a queue of 16,384."""
    small = size._replace(
        teacher="minilm-l6", student="minilm-l6", layers=3 if size is FULL else 1, batch=min(size.batch, 128),
        queue=min(size.queue, 16384),
    )  # fmt: skip
    return Training(small, stored=True).run(small)


def step_torch(size: Size, *, live: bool = True) -> dict[str, Any]:
    """The same step in PyTorch: `torch.compile`, autocast and fused attention, on sentences without padding."""
    import torch
    import tpu_plan
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
                wanted = torch.nn.functional.normalize(vectors.float(), dim=1)
            found = torch.tanh(head(student(ids).last_hidden_state.mean(1)))
            found = torch.nn.functional.normalize(found.float(), dim=1)
            keys = torch.cat([queue, wanted.bfloat16()])
            p = torch.softmax((wanted @ keys.T).float() / 0.05, dim=1).repeat(2, 1)
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
    import dataclasses
    import random
    import tempfile

    import tokenizers

    import jaxdistill
    from jaxdistill.checkpoints.folder import save

    words = [f"w{number}" for number in range(30000)]
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    draw = random.Random(0)
    texts = [" ".join(draw.choices(words, k=draw.randint(4, 60))) for _ in range(size.sentences)]
    shapes = random_model("gte-small", size.layers)
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


def queue(size: Size) -> dict[str, Any]:
    """The queue loss, forward and backward, for several numbers of keys and sizes of their blocks."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxdistill.cluster.mesh import make_mesh
    from jaxdistill.core import Encoded, Sizes
    from jaxdistill.objectives.congen import ConGen
    from jaxdistill.ops import ring

    jax.set_mesh(make_mesh(devices=jax.devices()[:1]))
    draw, width = np.random.default_rng(0), 1024 if size is FULL else 64
    student, teacher = unit(draw, (size.batch, 2, width)), unit(draw, (size.batch, 1, width))
    found: dict[str, Any] = {}
    for keys in (4096, 65536) if size is FULL else (size.queue,):
        objective = ConGen(queue_size=keys)
        sizes = Sizes(size.batch, width, 0, 0, 0, 0, jnp.dtype("bfloat16"))
        _, state = objective.init(jax.random.key(0), sizes, jnp.asarray(unit(draw, (keys, width))))
        for block in (1024, 4096, 16384):
            ring.BLOCK_ROWS = ring.BLOCK_ROWS_OF_GPUS = block

            def loss(vectors, objective=objective, state=state):
                losses, _, _ = objective({}, state, Encoded(vectors), Encoded(jnp.asarray(teacher)))
                return jnp.mean(losses)

            both = jax.jit(jax.value_and_grad(loss))
            vectors = jnp.asarray(student)
            found[f"{keys} keys, blocks of {block}: ms"] = 1e3 * timed(
                lambda both=both, x=vectors: both(x), size.repeats
            )
    return found


def attention(size: Size) -> dict[str, Any]:
    """Attention of BERT-base over 65,536 slots, forward and backward: plain, fused by XLA, and by cuDNN."""
    import jax
    import jax.numpy as jnp

    heads, width, found = 12, 64, dict[str, Any]()
    slots = 65536 if size is FULL else 1024

    def plain(query, key, value):
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32) * width**-0.5
        weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value, preferred_element_type=jnp.float32).astype(query.dtype)

    ways = {"plain": plain} | {
        name: lambda *given, name=name: jax.nn.dot_product_attention(*given, implementation=name)
        for name in ("xla", *(["cudnn"] if jax.default_backend() == "gpu" else []))
    }
    for row in (64, 128, 512):
        x = jax.random.normal(jax.random.key(0), (slots // row, row, heads, width), jnp.bfloat16)
        for name, way in ways.items():
            both = jax.jit(jax.grad(lambda a, b, c, way=way: way(a, b, c).astype(jnp.float32).sum(), argnums=(0, 1, 2)))
            try:
                found[f"{row} slots, {name}: ms"] = 1e3 * timed(lambda both=both, x=x: both(x, x, x), size.repeats)
            except Exception as error:  # a way that this device lacks costs no other figure
                found[f"{row} slots, {name}"] = f"{type(error).__name__}: {error!s:.200}"
    return found


def parity(size: Size) -> dict[str, Any]:
    """Losses of ten steps in float32 without dropout, here and on the CPU: the largest relative difference."""
    import jax

    small = size._replace(teacher="minilm-l6", student="minilm-l6", layers=2, batch=32, queue=256)
    found = {}
    with jax.default_matmul_precision("highest"):
        for platform in (jax.default_backend(), "cpu"):
            with jax.default_device(jax.devices(platform)[0]), devices_of(platform):
                training, losses = Training(small, precision="float32", dropout=False), []
                for _ in range(10):
                    training.state, metrics = training.step(training.state, training.teacher, training.batch)
                    losses.append(float(metrics["loss"]))
                found[platform] = losses
    here, there = (found[platform] for platform in (jax.default_backend(), "cpu"))
    return {"losses": here, "largest_difference": max(abs(a - b) / abs(b) for a, b in zip(here, there, strict=True))}


class devices_of:
    """Makes meshes of the first device of a platform."""

    def __init__(self, platform: str):
        self.platform = platform

    def __enter__(self) -> None:
        import functools

        import jax

        from jaxdistill.cluster import mesh

        self.before = mesh.make_mesh
        mesh.make_mesh = functools.partial(self.before, devices=jax.devices(self.platform)[:1])

    def __exit__(self, *_: object) -> None:
        from jaxdistill.cluster import mesh

        mesh.make_mesh = self.before


class Figure(NamedTuple):
    """A measurement and its limit of time."""

    measure: Callable[[Size], dict[str, Any]]
    limit_s: int


FIGURES = {
    "device": Figure(device, 60),
    "peak": Figure(peak, 60),
    "step-live": Figure(step_live, 150),
    "step-live-torch": Figure(step_torch, 150),
    "step-stored": Figure(step_stored, 120),
    "step-stored-torch": Figure(step_torch_stored, 120),
    "step-minilm": Figure(step_minilm, 90),
    "encode": Figure(encode, 120),
    "queue": Figure(queue, 120),
    "attention": Figure(attention, 120),
    "parity": Figure(parity, 120),
}
"""In the order of their value."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="no figure begins later")
    parser.add_argument("--small", action="store_true", help="sizes that a CPU can do")
    parser.add_argument("--only", default="", help=f"figures, separated by commas: {', '.join(FIGURES)}")
    parser.add_argument("--figure", choices=list(FIGURES), default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(FIGURES)
    if unknown := set(names) - FIGURES.keys():
        parser.error(f"unknown figure {min(unknown)}; there are {', '.join(FIGURES)}")
    if given.figure:
        print(json.dumps(rounded(FIGURES[given.figure].measure(SMALL if given.small else FULL))), flush=True)
        return
    begun = time.monotonic()
    for name in names:
        left = 60 * given.minutes - (time.monotonic() - begun)
        if left <= 0:
            print(json.dumps({"figure": name, "error": "left out: no time"}), flush=True)
            continue
        print(
            json.dumps({"figure": name} | measured(name, min(FIGURES[name].limit_s, left), small=given.small)),
            flush=True,
        )


def measured(name: str, limit_s: float, *, small: bool) -> dict[str, Any]:
    """The figure, measured in a process of its own, or the error that it ended with."""
    command = [sys.executable, __file__, f"--figure={name}", *(["--small"] if small else [])]
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
