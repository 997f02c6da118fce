"""TPU slices, by name, for which a step can be compiled without having them."""

import dataclasses
import importlib.util
import os
import re

from jax.sharding import Mesh

from jaxdistill.cli import did_you_mean
from jaxdistill.cluster.chips import CHIPS, Chip
from jaxdistill.cluster.mesh import make_mesh
from jaxdistill.core import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """Connected chips of one kind."""

    name: str
    chip: Chip
    chips: int
    topology: str
    """The TPU compiler's name of the slice, such as `v5e:4x4`."""

    def mesh(self, *, model_axis: int = 1, slices: int = 0) -> Mesh:
        """A mesh of the slice's devices, for compiling only; raises `InputError` without the TPU compiler."""
        if not importlib.util.find_spec("libtpu"):
            raise InputError(f"--compile_for={self.name} needs the TPU compiler: pip install libtpu. It needs no TPU.")
        # Without these variables, libtpu looks for a TPU, warns, and allows one process at a time.
        for name, value in (
            ("TPU_SKIP_MDS_QUERY", "1"),
            ("TPU_WORKER_HOSTNAMES", "localhost"),
            ("TPU_ACCELERATOR_TYPE", "v5litepod-8"),  # any will do: the topology below counts
            ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
        ):
            os.environ.setdefault(name, value)
        from jax.experimental import topologies

        devices = topologies.get_topology_desc(platform="tpu", topology_name=self.topology).devices
        return make_mesh(model_axis=model_axis, slices=slices, devices=list(devices)[: self.chips])


def slice_named(name: str) -> Slice:
    """The slice with a name such as `v5e-16`; raises `InputError`, with the known names, if there is none."""
    match = re.fullmatch(r"(v\w+)-(\d+)", name)
    if not match or match[1] not in CHIPS:
        meant = did_you_mean(name.partition("-")[0], list(CHIPS))
        raise InputError(
            f"--compile_for={name} is no TPU slice.{meant} Allowed: {', '.join(CHIPS)} with a number, v5e-16."
        )
    chip = CHIPS[match[1]]
    chips = int(match[2]) // chip.cores
    if chips * chip.cores != int(match[2]) or chips not in (1, *chip.topologies):
        sizes = [chips * chip.cores for chips in (1, *chip.topologies)]
        raise InputError(
            f"--compile_for={name} does not exist; allowed: {', '.join(f'{match[1]}-{n}' for n in sizes)}."
        )
    shape = chip.topologies[max(chips, min(chip.topologies))]  # a single chip is part of the smallest slice
    return Slice(name=name, chip=chip, chips=chips, topology=f"{match[1]}:{shape}")
