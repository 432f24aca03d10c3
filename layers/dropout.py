"""x · m / (1 - p), m = 0 with probability p and else 1, Srivastava et al. 2014: torch's, but quick on a CPU too."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 2**8  # p is met to 1 / 256
_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # as wide as a float of so many bytes


def bits(x: Tensor) -> Tensor:
    """The same memory, read as integers, which have the sign of x."""
    return x.view(_INTEGER[x.dtype.itemsize])


def kept(shape: torch.Size, p: float) -> Tensor:
    """Bytes of a CPU that are 0 with probability p and else 1, p a multiple of 1 / 256; each call draws anew."""
    # torch's generator seeds this one, which is twice as fast
    draw = np.random.Generator(np.random.SFC64(int(torch.randint(2**63 - 1, ()))))
    words = torch.from_numpy(draw.integers(-(2**63), 2**63, max(1, -(-shape.numel() // 8))))
    return words.view(torch.uint8)[: shape.numel()].view(shape).ge_(round(p * _LEVELS))


class Dropout(nn.Module):
    """Drop components while training.

    On a CPU torch draws a random number of 53 bits for each component, which takes a fifth of a training step.
    Eight bits do, so one draw of 64 serves eight components, and p is rounded to what eight bits can say.

    Args:
        p: probability of dropping a component, 0 to 0.998: what is rounded to 1 would leave nothing.

    Raises:
        ValueError: p is no such probability.
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        if not 0 <= p < 1 - 0.5 / _LEVELS:
            raise ValueError(f"dropout={p} leaves nothing, or is no probability: give 0 to 0.998")
        self.p = round(p * _LEVELS) / _LEVELS

    def forward(self, x: Tensor) -> Tensor:
        """The identity when not training."""
        if not self.training or self.p == 0 or not x.numel():
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        # 0 or 1 times the bits of 1 / (1 - p): torch turns bytes into integers far quicker than into floats
        factor = torch.tensor(1 / (1 - self.p), dtype=x.dtype)
        return x * kept(x.shape, self.p).to(bits(factor).dtype).mul_(bits(factor)).view(x.dtype)

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"p={self.p}"
