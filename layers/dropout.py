"""x · m / (1 - p), m = 0 with probability p and else 1, Srivastava et al. 2014: torch's, but quick on a CPU too."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 2**16  # p is met to 1 / 65,536


class Dropout(nn.Module):
    """Drop components while training.

    On a CPU torch draws a random number of 53 bits for each component, which takes a fifth of a training step.
    Sixteen bits do, so one draw of 64 serves four components.

    Args:
        p: probability of dropping a component, 0 <= p < 1.

    Raises:
        ValueError: p is no such probability.
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        if not 0 <= p < 1 - 0.5 / _LEVELS:
            raise ValueError(f"dropout={p} is no probability below 1: give 0 <= dropout < 1")
        self.p = round(p * _LEVELS) / _LEVELS

    def forward(self, x: Tensor) -> Tensor:
        """The identity when not training."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        level = words.view(torch.int16)[: x.numel()].view(x.shape)
        keep = level >= int(self.p * _LEVELS) - _LEVELS // 2
        return x * keep.to(x.dtype).mul_(1 / (1 - self.p))

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"p={self.p}"
