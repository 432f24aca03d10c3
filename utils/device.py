"""Where to compute, and in which precision."""

import os
from contextlib import AbstractContextManager
from typing import Literal

import torch

Precision = Literal["auto", "fp32", "bf16", "fp16"]
Device = Literal["auto", "cpu", "cuda"]


def pick_device(wanted: Device = "auto") -> torch.device:
    """Return the requested device; by default CUDA if available, else the CPU.

    Raises:
        ValueError: when CUDA is requested but not available.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, but CUDA is not available here: use device=cpu, or leave it at auto")
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(wanted)


def has_fast_bf16(device: torch.device) -> bool:
    """Return whether a device multiplies matrices faster in bfloat16 than in single precision."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities: dict[str, object] = getattr(
        torch.cpu, "get_capabilities", dict
    )()  # torch before 2.12 does not have it
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def product_dtype(device: torch.device, precision: Precision = "auto") -> torch.dtype:
    """Return the type of matrix products: as requested, or (auto) bfloat16 where it is fast, else float32."""
    if precision == "auto":
        return torch.bfloat16 if has_fast_bf16(device) else torch.float32
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def autocast(device: torch.device, precision: Precision = "auto") -> AbstractContextManager[None]:
    """Run the block's matrix products in lower precision, if requested or (auto) fast."""
    dtype = product_dtype(device, precision)
    if dtype == torch.float32:
        return torch.autocast(device.type, enabled=False)
    return torch.autocast(device.type, dtype)


def inference_dtype(device: torch.device, precision: Precision = "auto") -> torch.dtype:
    """Return the type of the matrix products of a model that is no longer trained.

    Raises:
        ValueError: when half precision is requested on a CPU.
    """
    if precision == "fp16" and device.type == "cpu":
        raise ValueError("precision=fp16 needs CUDA: use bf16 or fp32 on a CPU")
    return product_dtype(device, precision)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def keep_compiled_kernels() -> None:
    """Have oneDNN cache more of the kernels that it compiles for bfloat16, unless the user sets how many.

    It compiles a kernel for each shape, some forty for each new shape of a batch: 15 to 20 ms of a single core. Its
    default of about a thousand is fewer than an epoch needs; this many covers most of them, for a gigabyte and a half
    at worst. To be called before the first matrix product, which creates the cache.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")
