"""What this machine can do at best, to see a figure against."""

import time

import torch

_SIZE = 2048


def product_peak(dtype: torch.dtype) -> float:
    """GFLOP/s of a large matrix product on the CPU, the best of several."""
    a = torch.randn(_SIZE, _SIZE).to(dtype)
    best = float("inf")
    for _ in range(6):
        begin = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - begin)
    return 2 * _SIZE**3 / best / 1e9
