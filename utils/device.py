"""Where to compute, and in which precision."""

from contextlib import AbstractContextManager
from typing import Literal

import torch

Precision = Literal["auto", "fp32", "bf16"]
Device = Literal["auto", "cpu", "cuda"]


def pick_device(wanted: Device = "auto") -> torch.device:
    """CUDA where it is there, else the CPU.

    Raises:
        ValueError: CUDA is asked for and not there.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda, but this machine offers no CUDA: use device=cpu, or leave it at auto")
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(wanted)


def has_fast_bf16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 are faster than in single precision there."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # torch before 2.12 cannot tell
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def autocast(device: torch.device, precision: Precision = "auto") -> AbstractContextManager[None]:
    """Matrix products in bfloat16 inside this block, where that is asked for, or fast (auto)."""
    enabled = has_fast_bf16(device) if precision == "auto" else precision == "bf16"
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)
