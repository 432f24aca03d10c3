"""xWᵀ + b with a weight that is laid out once for all later products: for models in inference."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

_ROWS = 64  # the number of rows of x that the layout is optimised for; others work too


def _has_blocks(dtype: torch.dtype) -> bool:
    """Return whether oneDNN has a layout for weights of this precision here; for bf16 it needs AVX-512."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


class PackedLinear(nn.Module):
    """A linear layer that computes in a precision of its own.

    On a CPU, torch reorders a weight into oneDNN's blocks for every product. For the few rows of a decoding step
    that takes longer than the product, so here it is done once.

    Args:
        linear: the layer; its weight is copied.
        dtype: precision of the product; x is cast to it.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        weight = linear.weight.detach().to(dtype, copy=True)
        self.dtype = dtype
        self.blocked = weight.device.type == "cpu" and _has_blocks(dtype)
        if self.blocked:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        self.weight = weight
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype, copy=True)

    def forward(self, x: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        """Return xWᵀ + b, without a gradient."""
        x = x.detach().to(self.dtype)
        if self.blocked:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)
