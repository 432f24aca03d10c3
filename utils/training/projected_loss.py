"""What the losses that include the projection to the vocabulary share: gradients are computed in `forward`."""

from typing import Any

import torch
from torch import Tensor


class ProjectedLoss(torch.autograd.Function):
    """A loss of (hidden, weight, bias, and three arguments without gradient) whose `forward` saves all gradients."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the saved gradients, times the gradient of the loss."""
        scaled = (saved * grads[0] if saved is not None else None for saved in ctx.saved_tensors)
        return *scaled, None, None, None


def lowered(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in the precision of the surrounding autocast, if there is one."""
    device = hidden.device.type
    precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    return hidden.to(precision), weight.to(precision)


def room_for_gradients(
    ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Allocate gradients: `hidden`'s to be written, the rest, zeros, to be added to; None where none is needed."""
    if not any(ctx.needs_input_grad):
        return None, None, None
    return torch.empty_like(hidden), torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
