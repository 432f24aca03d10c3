"""softmax(QKᵀ/√K)V, Vaswani et al. 2017, eq. 1: once written out, once as torch's fused kernel."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from layers.dropout import Dropout
from layers.keys_first_attention import keys_first_attention

_VECTOR = 16  # floats that a CPU's softmax takes at a time; shorter rows it goes through number by number


def _softmax(scores: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    """Over the keys; in single precision at least, which is better, and on a CPU faster than in half."""
    dtype, n_keys = torch.promote_types(scores.dtype, torch.float32), scores.size(-1)
    if scores.device.type == "cpu" and scores.requires_grad and n_keys < _VECTOR:
        scores = F.pad(scores, (0, _VECTOR - n_keys), value=float("-inf"))  # adds nothing but zeros
    return scores.softmax(dim=-1, dtype=dtype)[..., :n_keys]


class ScaledDotProductAttention(nn.Module):
    """The formula as it stands in the paper. The oracle of its fused twin, and what pictures are taken from."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)

    def forward(
        self,
        query: Float[Tensor, "B H T K"],
        key: Float[Tensor, "B H S K"],
        value: Float[Tensor, "B H S K"],
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "B H T S"] | None = None,
    ) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B H T S"] | None]:
        """Mix the values by how well their keys fit the query.

        Args:
            query: what is looked for.
            key: what is offered.
            value: what is handed over.
            mask: True = may attend; each query must see at least one key (none at all gives NaN).
            bias: added to QKᵀ before scaling, such as Transformer-XL's relative positions.

        Returns:
            The mixed values and the weights, which sum to 1 over S.
        """
        scores = query @ key.transpose(-2, -1)
        if bias is not None:
            scores = scores + bias
        scores = scores / math.sqrt(query.size(-1))
        if mask is not None:
            # -inf, not a large number: exact zeros after the softmax, in every precision
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = _softmax(scores).to(value.dtype)
        return self.dropout(weights) @ value, weights


class FusedScaledDotProductAttention(nn.Module):
    """The same function through `F.scaled_dot_product_attention`: faster, and without weights to look at.

    For sentences on a CPU the kernel's backward pass takes ten times as long as that of the formula written out, so
    where gradients are wanted there, the formula is what runs, in half precision with a backward pass of its own; and
    likewise for the few queries of many rows that a step of decoding asks, for which the kernel takes several times as
    long.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.explicit = ScaledDotProductAttention(dropout)

    def forward(
        self,
        query: Float[Tensor, "B H T K"],
        key: Float[Tensor, "B H S K"],
        value: Float[Tensor, "B H S K"],
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "B H T S"] | None = None,
    ) -> tuple[Float[Tensor, "B H T K"], None]:
        """As the explicit twin, but None stands in the place of the weights."""
        if self._learns_by_hand(query, bias):
            return keys_first_attention(
                query, key, value, mask, self.explicit.dropout.p if self.training else 0.0
            ), None
        if query.device.type == "cpu" and (torch.is_grad_enabled() or self._is_decoding(query)):
            return self.explicit(query, key, value, mask, bias)[0], None
        added: Tensor | None = mask
        if bias is not None:
            added = bias / math.sqrt(query.size(-1))
            if mask is not None:
                added = added.masked_fill(~mask, float("-inf"))
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(query, key, value, attn_mask=added, dropout_p=dropout), None

    @staticmethod
    def _learns_by_hand(query: Tensor, bias: Tensor | None) -> bool:
        """In single precision a CPU's products are slow to write keys first."""
        if query.device.type != "cpu" or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        return query.dtype == torch.bfloat16 and bias is None

    @staticmethod
    def _is_decoding(query: Tensor) -> bool:
        """Few queries a row and many rows: what a step of decoding a batch asks."""
        return query.size(2) <= 8 < query.size(0)


def attention_kernel(fused: bool, dropout: float) -> nn.Module:
    """The one of the two that a model asks for."""
    return FusedScaledDotProductAttention(dropout) if fused else ScaledDotProductAttention(dropout)
