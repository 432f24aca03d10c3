"""The loss of R-Drop and the projection to the vocabulary in one: see `projected_loss`."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from utils.training.projected_loss import ProjectedLoss, cross_entropy, loss_with_gradients, subtract_target


class _ProjectedRDrop(ProjectedLoss):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float, alpha: float
    ) -> Tensor:
        def loss_of(logits: Tensor, positions: slice) -> tuple[Tensor, Tensor]:
            right = target[None, positions, None].expand(2, -1, 1)
            p, cross = cross_entropy(logits, right, smoothing)
            # z₁ - z₂ and z₂ - z₁, times α / 4: they differ from log(p₁ / p₂) and log(p₂ / p₁) by a constant
            apart = (logits - logits.flip(0)).mul_(alpha / 4)
            # KL(p₁‖p₂) + KL(p₂‖p₁) = Σ (p₁ - p₂) log(p₁ / p₂), in which a constant would cancel
            expected = (p * apart).sum(-1, keepdim=True)
            nats = cross.sum() / 2 + expected.sum()
            # ½ (p₁ - q) + α/4 (p₁ - p₂ + p₁ (z₁ - z₂ - its mean under p₁)), and with 1 and 2 exchanged
            logits_grad = apart.sub_(expected - (alpha / 4 + 0.5)).mul_(p).sub_(p.flip(0), alpha=alpha / 4)
            subtract_target(logits_grad, right, smoothing, 0.5)
            return nats, logits_grad

        return loss_with_gradients(ctx, hidden, weight, bias, loss_of)


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
