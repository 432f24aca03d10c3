"""Cross-entropy with label smoothing and the projection to the vocabulary in one: see `projected_loss`."""

from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from utils.training.projected_loss import ProjectedLoss, cross_entropy, loss_with_gradients, subtract_target


class _ProjectedCrossEntropy(ProjectedLoss):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        smoothing: float,
        counted: Tensor | None,
    ) -> Tensor:
        def loss_of(logits: Tensor, positions: slice) -> tuple[Tensor, Tensor]:
            right = target[None, positions, None]
            p, nats = cross_entropy(logits, right, smoothing)
            logits_grad = subtract_target(p, right, smoothing)
            if counted is not None:
                nats, logits_grad = nats * counted[positions], logits_grad.mul_(counted[positions, None])
            return nats.sum(), logits_grad

        return loss_with_gradients(ctx, hidden, weight, bias, loss_of)


def projected_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    target: Int[Tensor, " N"],
    smoothing: float,
    counted: Bool[Tensor, " N"] | None = None,
) -> Float[Tensor, ""]:
    """Σ H(q, softmax(hidden Wᵀ + b)) in nats, q = (1 - ε) one-hot(target) + ε / V (Szegedy et al. 2016, sec. 7).

    Matrix products run in the precision of the surrounding autocast, everything else in single precision.

    Args:
        hidden: what is projected.
        weight: of the output layer.
        bias: of the output layer.
        target: the correct token of each position.
        smoothing: ε.
        counted: positions whose loss counts; None: all.
    """
    nats: Tensor = _ProjectedCrossEntropy.apply(hidden[None], weight, bias, target, smoothing, counted)
    return nats
