"""Peak rates and memory of TPU chips, and peak rates of GPUs."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """Peak rates and memory of one chip.

    Source: cloud.google.com/tpu/docs/v5e, /v5p and /v6e, read on 22 November 2026.
    """

    device_kind: str
    """JAX's name of the device."""
    flops_per_s: float
    """Peak rate of bfloat16 matrix products."""
    memory_bytes_per_s: float
    link_bytes_per_s: float
    """Rate of sending to other chips over all links: half of the documented bidirectional bandwidth."""
    memory_gib: float
    """Memory available to a program, by the TPU compiler; documented are 16, 95 and 32."""
    cores: int
    """Number per chip that slice names count: `v5p-8` has 8 cores, or 4 chips; other kinds' names count chips (1)."""
    topologies: dict[int, str]
    """Maps a slice's number of chips to its shape."""
    accelerator_type: str = ""
    """Google's name of the kind in names of slices, `v5litepod-16`, if it differs; SkyPilot puts `tpu-` before it."""


FLAT = {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
SOLID = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8", 512: "8x8x8"}
CHIPS = {
    "v5e": Chip(
        device_kind="TPU v5 lite", flops_per_s=197e12, memory_bytes_per_s=819e9, link_bytes_per_s=200e9,
        memory_gib=15.75, cores=1, topologies=FLAT, accelerator_type="v5litepod",
    ),
    "v5p": Chip(
        device_kind="TPU v5", flops_per_s=459e12, memory_bytes_per_s=2765e9, link_bytes_per_s=600e9,
        memory_gib=95.74, cores=2, topologies=SOLID,
    ),
    "v6e": Chip(
        device_kind="TPU v6 lite", flops_per_s=918e12, memory_bytes_per_s=1640e9, link_bytes_per_s=400e9,
        memory_gib=31.25, cores=1, topologies=FLAT,
    ),
}  # fmt: skip
GPUS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Peak dense bfloat16 FLOP/s, by a word in the device's name. Source: NVIDIA's data sheets, SXM modules."""


def peak_flops_per_s(device_kind: str) -> float | None:
    """Peak rate of a device's bfloat16 products; None if unknown, as for CPUs."""
    tpus = [chip.flops_per_s for chip in CHIPS.values() if chip.device_kind == device_kind]
    return next(iter([*tpus, *(peak for word, peak in GPUS.items() if word in device_kind)]), None)
