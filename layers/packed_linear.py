"""xWᵀ + b with a weight that is laid out once for the products to come: for models that no longer learn."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

_ROWS = 64  # the height of x that the layout is made for; others fit too


class PackedLinear(nn.Module):
    """What a linear layer computes, in a precision of its own.

    torch reorders a weight into oneDNN's blocks at every product on a CPU. For the few rows of a decoding step
    that takes longer than the product, so here it is done once.

    Args:
        linear: the layer; its weight is copied.
        dtype: of the product; x is brought to it.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        weight = linear.weight.detach().to(dtype, copy=True)
        self.dtype = dtype
        self.blocked = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
        if self.blocked:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        self.weight = weight
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype, copy=True)

    def forward(self, x: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        """Without a gradient."""
        x = x.detach().to(self.dtype)
        if self.blocked:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)
