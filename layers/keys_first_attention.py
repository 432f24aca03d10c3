"""softmax(QKᵀ/√K)V with dropout: a fast twin of `ScaledDotProductAttention` for training on a CPU in half precision.

Scores are laid out in memory with the keys first, (S, B, H, T). A sentence has few keys: a softmax over the last
dimension goes through rows of ten or twenty numbers one at a time; over the first it processes as many rows at once as
a vector register holds. With W = softmax(QKᵀ/√K), A = W ⊙ m, m = 0 with probability p and else 1, and s = 1 / (1 - p),
in each head:

    Y  = s A V
    ∂V = s Aᵀ ∂Y           ∂W = (s ∂Y Vᵀ) ⊙ m            ∂S = W ⊙ (∂W - Σ ∂W W)
    ∂Q = ∂S K / √K         ∂K = ∂Sᵀ Q / √K

As in `layers.relu_feed_forward`, m is applied to bits, and s and 1/√K are folded into matrix products. In the backward
pass [A > 0] can stand in for m: where W is 0, so is ∂S.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from layers.dropout import bits, kept


def _keys_first(mask: Bool[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "S B H T"]:
    """Return 0 where a query may attend, else -inf; dimensions B, H or T along which it is the same stay 1 long."""
    mask = mask[(None,) * (4 - mask.dim())]
    return mask.permute(3, 0, 1, 2).contiguous().to(dtype).log_()


class _KeysFirstAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float) -> Tensor:
        ctx.scale, ctx.root, heads = 1 / (1 - p), 1 / math.sqrt(query.size(-1)), query.shape[:2]
        scores = query.new_empty(key.size(2), *heads, query.size(2))
        if mask is not None:
            scores.copy_(_keys_first(mask, scores.dtype))
        query, key, value = (x.contiguous().flatten(0, 1) for x in (query, key, value))
        scores = scores.flatten(1, 2)
        scores.transpose(0, 1).baddbmm_(key, query.transpose(1, 2), beta=mask is not None, alpha=ctx.root)
        weights = applied = scores.softmax(0)
        if p:
            applied = (bits(weights) * kept(weights.shape, p)).view(weights.dtype)
        ctx.save_for_backward(query, key, value, weights, applied)
        mixed = torch.baddbmm(query.new_zeros(()), applied.permute(1, 2, 0), value, beta=0, alpha=ctx.scale)
        return mixed.unflatten(0, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, applied = ctx.saved_tensors
        zero, heads, grad = grad.new_zeros(()), grad.shape[:2], grad.contiguous().flatten(0, 1)
        scores_grad = torch.empty_like(weights)
        scores_grad.transpose(0, 1).baddbmm_(value, grad.transpose(1, 2), beta=0, alpha=ctx.scale)
        bits(scores_grad).mul_(bits(applied).clamp(max=1))
        scores_grad = torch.ops.aten._softmax_backward_data(scores_grad, weights, 0, weights.dtype)
        query_grad = torch.baddbmm(zero, scores_grad.permute(1, 2, 0), key, beta=0, alpha=ctx.root)
        key_grad = torch.baddbmm(zero, scores_grad.transpose(0, 1), query, beta=0, alpha=ctx.root)
        value_grad = torch.baddbmm(zero, applied.transpose(0, 1), grad, beta=0, alpha=ctx.scale)
        return *(x.unflatten(0, heads) for x in (query_grad, key_grad, value_grad)), None, None


def keys_first_attention(
    query: Float[Tensor, "B H T K"],
    key: Float[Tensor, "B H S K"],
    value: Float[Tensor, "B H S K"],
    mask: Bool[Tensor, "..."] | None,
    p: float,
) -> Float[Tensor, "B H T K"]:
    """Compute the formula above.

    Args:
        query: what is looked for.
        key: what each query is compared with.
        value: what is mixed.
        mask: True = may attend; each query must see at least one key (none at all gives NaN).
        p: probability of dropping a weight, a multiple of 1 / 256.
    """
    mixed: Tensor = _KeysFirstAttention.apply(query, key, value, mask, p)
    return mixed
