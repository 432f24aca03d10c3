"""softmax(QKᵀ/√K)V, Vaswani et al. 2017, eq. 1: written out, and as torch's fused kernel."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from layers.dropout import Dropout


class ScaledDotProductAttention(nn.Module):
    """The formula as written in the paper: the reference for its fused twin, and the source of attention pictures.

    `scaled=False` leaves out the division by √K, to see what it is good for.
    """

    def __init__(self, dropout: float = 0.0, scaled: bool = True) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.scaled = scaled

    def divisor(self, query: Float[Tensor, "B H T K"]) -> float:
        """Return √K, or 1 where nothing is scaled."""
        return math.sqrt(query.size(-1)) if self.scaled else 1.0

    def forward(
        self,
        query: Float[Tensor, "B H T K"],
        key: Float[Tensor, "B H S K"],
        value: Float[Tensor, "B H S K"],
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "B H T S"] | None = None,
    ) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B H T S"] | None]:
        """Return the values mixed by how well their keys fit the query, and the weights, which sum to 1 over S.

        Args:
            query: what is looked for.
            key: what each query is compared with.
            value: what is mixed.
            mask: True = may attend; each query must see at least one key (none at all gives NaN).
            bias: added to QKᵀ before scaling, such as Transformer-XL's relative positions.
        """
        scores = query @ key.transpose(-2, -1)
        if bias is not None:
            scores = scores + bias
        scores = scores / self.divisor(query)
        if mask is not None:
            # -inf, not a large number: exact zeros after the softmax, in every precision
            scores = scores.masked_fill(~mask, float("-inf"))
        # in at least single precision: more exact than in half, and faster on a CPU
        dtype = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.softmax(dim=-1, dtype=dtype).to(value.dtype)
        return self.dropout(weights) @ value, weights


class FusedScaledDotProductAttention(ScaledDotProductAttention):
    """The same function through `F.scaled_dot_product_attention`: faster, and without weights to look at.

    For sentences on a CPU the kernel's backward pass takes ten times as long as that of the formula written out. So
    where gradients are needed there, the formula runs instead. It also runs for a decoding step, which has few queries
    in many rows: the kernel would take several times as long.
    """

    def forward(
        self,
        query: Float[Tensor, "B H T K"],
        key: Float[Tensor, "B H S K"],
        value: Float[Tensor, "B H S K"],
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "B H T S"] | None = None,
    ) -> tuple[Float[Tensor, "B H T K"], None]:
        """Mix the values as the formula written out does, but return None in place of the weights."""
        is_decoding = query.size(2) <= 8 < query.size(0)
        if query.device.type == "cpu" and (torch.is_grad_enabled() or is_decoding):
            return super().forward(query, key, value, mask, bias)[0], None
        added: Tensor | None = mask
        if bias is not None:
            added = bias / self.divisor(query)
            if mask is not None:
                added = added.masked_fill(~mask, float("-inf"))
        dropout = self.dropout.p if self.training else 0.0
        scale = 1 / self.divisor(query)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=added, dropout_p=dropout, scale=scale), None


def attention_kernel(fused: bool, dropout: float, scaled: bool = True) -> nn.Module:
    """Return the fused or the explicit attention."""
    return (FusedScaledDotProductAttention if fused else ScaledDotProductAttention)(dropout, scaled)
