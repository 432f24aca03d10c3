"""Dropout, x · m / (1 - p) with m = 0 with probability p, else 1, Srivastava et al. 2014: fast on a CPU too."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 2**8  # p is rounded to multiples of 1 / 256
_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # as wide as a float of that many bytes


def _bits(x: Tensor) -> Tensor:
    return x.view(_INTEGER[x.dtype.itemsize])


def _kept(shape: torch.Size, p: float) -> Tensor:
    """Draw bytes, on the CPU, that are 0 with probability p and else 1, where p is a multiple of 1 / 256."""
    # NumPy's generator, seeded by torch's, is twice as fast
    draw = np.random.Generator(np.random.SFC64(int(torch.randint(2**63 - 1, ()))))
    words = torch.from_numpy(draw.integers(-(2**63), 2**63, max(1, -(-shape.numel() // 8))))
    return words.view(torch.uint8)[: shape.numel()].view(shape).ge_(round(p * _LEVELS))


class Dropout(nn.Module):
    """Drop components while training.

    On a CPU torch draws a random number of 53 bits for each component, which takes a fifth of a training step. Eight
    bits are enough, so one draw of 64 bits serves eight components, and p is rounded to a multiple of 1 / 256 there:
    `byte_p`. So p is 0, or 0.002 to 0.998, which eight bits can tell from 0 and from 1.
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        if p != 0 and not 0.5 / _LEVELS < p < 1 - 0.5 / _LEVELS:
            raise ValueError(f"dropout={p}: give 0, or a probability from 0.002 to 0.998")
        self.p = p
        self.byte_p = round(p * _LEVELS) / _LEVELS

    def forward(self, x: Tensor) -> Tensor:
        """Drop components of x; the identity when not training."""
        if not self.training or self.p == 0 or not x.numel():
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        # 0 or 1 times the bits of 1 / (1 - p): torch converts bytes to integers far faster than to floats
        factor = torch.tensor(1 / (1 - self.byte_p), dtype=x.dtype)
        return x * _kept(x.shape, self.byte_p).to(_bits(factor).dtype).mul_(_bits(factor)).view(x.dtype)

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        return f"p={self.p}"
