"""What losses have in common that project to the vocabulary themselves: gradients are made on the way forward."""

from typing import Any

import torch
from torch import Tensor


class ProjectedLoss(torch.autograd.Function):
    """A loss of (hidden, weight, bias, and three more that have no gradient), whose `forward` saves all gradients."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """What was saved, times the slope of what the loss became."""
        scaled = (saved * grads[0] if saved is not None else None for saved in ctx.saved_tensors)
        return *scaled, None, None, None


def lowered(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the precision of the autocast around, where there is one."""
    device = hidden.device.type
    precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    return hidden.to(precision), weight.to(precision)


def room_for_gradients(
    ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Of all three: to be written for `hidden`, to be added to for the others; None where no gradient is wanted."""
    if not any(ctx.needs_input_grad):
        return None, None, None
    return torch.empty_like(hidden), torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
