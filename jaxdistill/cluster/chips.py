"""Peak rates of devices."""

PEAK_FLOPS_PER_S = {
    "TPU v5 lite": 197e12, "TPU v5": 459e12, "TPU v6 lite": 918e12, "H100": 989e12, "H200": 989e12, "A100": 312e12,
}  # fmt: skip
"""Dense bfloat16 products, by words in JAX's name of the device; the first match counts. Sources: cloud.google.com/tpu/docs/v5e, /v5p
and /v6e, read on 22 November 2026, and NVIDIA's data sheets of the SXM modules."""


def peak_flops_per_s(device_kind: str) -> float | None:
    """Peak rate of a device's bfloat16 products; None if unknown, as for CPUs."""
    return next((peak for words, peak in PEAK_FLOPS_PER_S.items() if words in device_kind), None)
