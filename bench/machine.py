"""Peak speed of this machine, as a reference for measurements."""

import time

import torch

from utils.device import synchronize

_CPU = torch.device("cpu")


def product_peak(dtype: torch.dtype, device: torch.device = _CPU) -> float:
    """Return the GFLOP/s of a large matrix product, the best of several."""
    size = 8192 if device.type == "cuda" else 2048
    a = torch.randn(size, size, device=device).to(dtype)
    best = float("inf")
    for _ in range(6):
        synchronize(device)
        begin = time.perf_counter()
        a @ a
        synchronize(device)
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best / 1e9
