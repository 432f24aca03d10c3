"""Projection to the vocabulary and the loss of R-Drop in one, a slice of the positions at a time.

Twin of `projected_cross_entropy`, which explains the slices: here each position has been through the network twice, and
the logits of both passes are needed at once.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from utils.training.projected_loss import ProjectedLoss, lowered, room_for_gradients

_SLICE_ELEMENTS = 2**21  # logits held at once


class _ProjectedRDrop(ProjectedLoss):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float, alpha: float
    ) -> Tensor:
        hidden_low, weight_low = lowered(hidden, weight)
        summing = torch.promote_types(hidden_low.dtype, torch.float32)
        hidden_grad, weight_grad, bias_grad = room_for_gradients(ctx, hidden, weight, bias)
        nats = torch.zeros((), device=hidden.device, dtype=summing)
        vocab = len(weight)
        step = max(1, _SLICE_ELEMENTS // (2 * vocab))
        for begin in range(0, len(target), step):
            part = slice(begin, begin + step)
            seen = hidden_low[:, part].flatten(0, 1)
            logits = (seen @ weight_low.t()).to(summing)
            if bias is not None:
                logits += bias
            log_p = logits.unflatten(0, (2, -1)).log_softmax(-1)
            right = target[part, None].expand(2, -1, 1)
            mean = (1 - smoothing) * log_p.gather(2, right).sum() + smoothing * log_p.mean(-1).sum()
            p = log_p.exp()
            apart, ratio = p[0] - p[1], log_p[0] - log_p[1]
            # KL(p₁‖p₂) + KL(p₂‖p₁) = Σ (p₁ - p₂) log(p₁ / p₂)
            nats += alpha / 4 * (apart * ratio).sum() - mean / 2
            if hidden_grad is None or weight_grad is None:
                continue
            # gradient of both divergences: d / d logits₁ = p₁ - p₂ + p₁ (log(p₁ / p₂) - its mean under p₁), and for
            # logits₂ with 1 and 2 exchanged; of the cross-entropies: (p - q) / 2
            expected = (p * ratio).sum(-1, keepdim=True)
            logits_grad = ratio.sub(expected).mul_(p).add_(apart)
            logits_grad[1].neg_()
            logits_grad.mul_(alpha / 4).add_(p, alpha=0.5).sub_(smoothing / (2 * vocab))
            logits_grad.scatter_add_(2, right, torch.full_like(right, (smoothing - 1) / 2, dtype=logits_grad.dtype))
            logits_grad = logits_grad.flatten(0, 1)
            if bias_grad is not None:
                bias_grad += logits_grad.sum(0)
            logits_grad = logits_grad.to(hidden_low.dtype)
            hidden_grad[:, part] = (logits_grad @ weight_low).unflatten(0, (2, -1))
            weight_grad += logits_grad.t() @ seen
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        return nats


def projected_r_drop(
    hidden: Float[Tensor, "2 N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    target: Int[Tensor, " N"],
    smoothing: float,
    alpha: float,
) -> Float[Tensor, ""]:
    """Σ ½ (H(q, p₁) + H(q, p₂)) + α/4 (KL(p₁‖p₂) + KL(p₂‖p₁)) in nats: half of Liang et al. 2021, eq. 4.

    p₁ and p₂ are softmax(hidden Wᵀ + b) of the two passes over a position, and q is the smoothed target as in
    `projected_cross_entropy`; without dropout the loss equals that one. Matrix products run in the precision of the
    surrounding autocast, everything else in single precision or better.

    Args:
        hidden: what is projected, the same positions twice.
        weight: of the output layer.
        bias: of the output layer.
        target: the correct token of each position.
        smoothing: ε.
        alpha: α, weight of the divergence.
    """
    nats: Tensor = _ProjectedRDrop.apply(hidden, weight, bias, target, smoothing, alpha)
    return nats
