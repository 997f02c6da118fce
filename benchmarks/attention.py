"""Measures the memory traffic of attention on a TPU, with and without the fused kernel.

    python benchmarks/attention.py --slice=v5e-1 --slots=128,256,512,2048 --out=attention.json

Compiles the attention of a layer of BERT-base, its products with weights included, for a chip that is not there: forward, and
forward and backward, in bfloat16 over 16,384 token slots. Needs libtpu, the TPU compiler, and no TPU. Traffic is
XLA's own count, which includes the memory on the chip and counts what the kernel reads and writes once; it reads keys again for
each further block of 512 queries. `ratio` compares the longest rows, forward and backward.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from interleaved import write
from jax.sharding import Mesh

from jaxdistill.cli import Parser, run
from jaxdistill.cluster.mesh import batch_sharding, replicated
from jaxdistill.core import Tokens
from jaxdistill.encoders import fused
from jaxdistill.encoders.architecture import Architecture, LayerKind
from jaxdistill.encoders.attention import Attention, reach_of
from jaxdistill.training.plan import slice_named

SLOTS = 16384
BERT_BASE = Architecture(
    family="bert", vocab_size=1024, hidden_size=768, layers=1, heads=12, intermediate_size=3072, max_positions=512,
    token_types=2,
)  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    parser = Parser(prog="benchmarks/attention.py", description=__doc__)
    parser.add_argument("--slice", default="v5e-1", help="one chip, such as v5e-1")
    parser.add_argument("--slots", default="128,256,512,2048", help="token slots of a row, divisors of 16,384")
    parser.add_argument("--window", type=int, default=0, help="of attention on each side, such as 64; 0: none")
    parser.add_argument("--out", default="", help="file for the result")
    given = parser.parse_args(arguments)
    fused.LEAST_SLOTS = 0  # short rows too
    mesh = slice_named(given.slice).mesh()
    found: dict[str, Any] = {}
    for slots in sorted(int(one) for one in given.slots.split(",")):
        for backward in (False, True):
            # Without the mesh there is nothing to split a kernel with, and attention takes the plain form.
            plain, kernel = (cost(mesh, slots, given.window, backward=backward, known=one) for one in (None, mesh))
            way = "forward and backward" if backward else "forward"
            found[f"{slots}, {way}"] = {"plain": plain, "kernel": kernel, "ratio": plain["gb"] / kernel["gb"]}
            print(f"{slots} slots, {way}: {plain} plain, {kernel} in one kernel", flush=True)
    write(given.out, {"ratio": list(found.values())[-1]["ratio"], "by_slots": found, "options": vars(given)})


def cost(mesh: Mesh, slots: int, window: int, *, backward: bool, known: Mesh | None) -> dict[str, float]:
    """Memory traffic in GB and temporaries in MiB; `known` is the mesh that attention learns of."""
    kind = LayerKind(window=window)
    graph, weights = nnx.split(nnx.eval_shape(lambda: Attention(BERT_BASE, rngs=nnx.Rngs(params=0))))

    def forward(weights, x, tokens: Tokens):
        reach = reach_of(tokens, kind, head_width=BERT_BASE.head_width, causal=False, relative_bias=None)
        module = nnx.merge(graph, weights)
        return module(x, reach, None, kind=kind, seeds=None, site=1, compute_dtype=jnp.bfloat16, mesh=known)

    def total(weights, x, tokens: Tokens):
        return jnp.sum(jnp.square(forward(weights, x, tokens).astype(jnp.float32)))

    of_slot = jax.ShapeDtypeStruct((1, SLOTS // slots, slots), jnp.int32)
    tokens = Tokens(of_slot, of_slot, of_slot, jax.ShapeDtypeStruct((1, SLOTS // 32), jnp.int32))
    x = jax.ShapeDtypeStruct((*of_slot.shape, BERT_BASE.hidden_size), jnp.bfloat16)
    program = jax.grad(total, argnums=(0, 1)) if backward else forward
    placed = (replicated(mesh), batch_sharding(mesh), batch_sharding(mesh))
    compiled = jax.jit(program, in_shardings=placed).lower(weights, x, tokens).compile()
    return {
        "gb": round((compiled.cost_analysis() or {}).get("bytes accessed", 0.0) / 1e9, 2),
        "temporaries_mib": compiled.memory_analysis().temp_size_in_bytes >> 20,
    }


if __name__ == "__main__":
    run(main)
