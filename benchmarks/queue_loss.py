"""Times the queue loss, forward and backward, beside PyTorch's, for several queue lengths.

    python benchmarks/queue_loss.py --queues=1024,16384,65536 --precision=bfloat16 --out=queue.json

Two views of 128 sentences, 384 numbers each, ConGen's loss over queue and batch, with the queue's update. PyTorch concatenates,
multiplies and takes both softmaxes, as the released code does, under autocast in bfloat16, where both sides also hold the queue in
bfloat16. Both run in processes of their own and take turns. `ratio` is for the longest queue, `loss_error` the relative
difference of the first loss from float32's.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from interleaved import Elsewhere, Work, medians, random_unit, rates, ratios, torch_device, wait_for, write

from jaxdistill.core import Encoded, Sizes
from jaxdistill.core.cli import run
from jaxdistill.core.cluster.mesh import make_mesh
from jaxdistill.objectives.congen import ConGen

TEMPERATURE, BATCH, WIDTH = 0.05, 128, 384


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/queue_loss.py", description=__doc__)
    parser.add_argument("--queues", default="1024,16384,65536", help="numbers of keys")
    parser.add_argument(
        "--precision", choices=["float32", "bfloat16"], default="float32", help="of products and queue, on both sides"
    )
    parser.add_argument("--calls", type=int, default=5, help="of each side in a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", default="", help="file for the result")
    args = parser.parse_args(arguments)
    args.device = torch_device()
    lengths = sorted(int(queue) for queue in args.queues.split(","))
    found = {queue: compared(args, queue) for queue in lengths}
    result = {"ratio": found[lengths[-1]]["ratio"], "by_queue": found}
    write(args.out, {**result, "options": vars(args)})


def compared(args, queue: int) -> dict[str, object]:
    """Milliseconds of a call, on both sides, and how many times as fast this project is."""
    shapes = (queue, WIDTH), (BATCH, 2, WIDTH), (BATCH, 1, WIDTH)
    arrays = [random_unit(shape, seed) for seed, shape in enumerate(shapes)]
    one = jax_call(*arrays, precision=args.precision)
    exact = jax_call(*arrays, precision="float32")()
    works = {"jaxdistill": repeated(one, args.calls), "torch": Elsewhere(torch_calls, args, arrays)}
    error = abs(one() - exact) / exact
    found = rates(works, args.rounds)
    return {
        **ratios(found, *works),
        **{f"{name}_ms": 1000.0 / rate for name, rate in medians(found).items()},
        "loss_error": error,
    }


def repeated(call: Callable[[], float], calls: int) -> Work:
    return lambda: len([call() for _ in range(calls)])


def torch_calls(args, arrays: Sequence[np.ndarray]) -> Work:
    return repeated(torch_call(*arrays, precision=args.precision, device=args.device), args.calls)


def jax_call(seeds: np.ndarray, student: np.ndarray, teacher: np.ndarray, *, precision: str) -> Callable[[], float]:
    """A call that returns the loss; the gradient is computed too."""
    jax.set_mesh(make_mesh(devices=jax.devices()[:1]))
    function, state = loss_and_gradient(seeds, student, teacher, precision=precision)
    step, vectors = jax.jit(function, donate_argnums=1), jnp.asarray(student)

    def call() -> float:
        nonlocal state
        (value, state), gradient = step(vectors, state)
        return float(jax.block_until_ready((value, gradient))[0])

    return call


def loss_and_gradient(
    seeds: np.ndarray, student: np.ndarray, teacher: np.ndarray, *, precision: str
) -> tuple[Callable, Any]:
    """The function of vectors and state that gives ((loss, state), gradient), and the first state."""
    objective = ConGen(queue_size=len(seeds))
    sizes = Sizes(len(student), student.shape[-1], 0, 0, 0, 0, jnp.dtype(precision))
    _, state = objective.init(jax.random.key(0), sizes, jnp.asarray(seeds))

    def loss(vectors: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        losses, state, _ = objective({}, state, Encoded(vectors), Encoded(teacher))
        return jnp.mean(losses), state

    return jax.value_and_grad(loss, has_aux=True), state


def torch_call(
    seeds: np.ndarray, student: np.ndarray, teacher: np.ndarray, *, precision: str, device: str
) -> Callable[[], float]:
    """A call that returns the loss; the gradient is computed too."""
    import torch

    queue = torch.tensor(seeds, device=device, dtype=getattr(torch, precision))
    targets = torch.tensor(teacher[:, 0], device=device)
    flat = student.swapaxes(0, 1).reshape(-1, student.shape[-1])
    vectors = torch.tensor(flat, device=device, requires_grad=True)

    def call() -> float:
        nonlocal queue
        keys = torch.cat([queue, targets.to(queue.dtype)])
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            probabilities = torch.softmax(targets @ keys.T / TEMPERATURE, dim=1).repeat(2, 1)
            unit = torch.nn.functional.normalize(vectors, dim=1)
            found = torch.log_softmax(unit @ keys.T / TEMPERATURE, dim=1)
        vectors.grad = None
        loss = -(probabilities * found).sum(dim=1).mean()
        loss.backward()
        queue = keys[len(targets) :]
        wait_for(device)
        return loss.item()

    return call


if __name__ == "__main__":
    run(main)
