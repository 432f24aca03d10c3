"""Projection to the vocabulary and label-smoothed cross-entropy in one, a slice of the positions at a time.

The logits of a whole batch are by far the largest tensors of a training step: at 2,000 positions and 8,000 tokens,
64 MB each for logits, log-probabilities and gradients. Here they are computed a slice at a time, each with its gradient
at once, so that neither forward nor backward ever holds more. On a CPU a slice is large enough for matrix products at
full speed, while element-wise operations run on smaller pieces that stay in a core's own cache.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from utils.training.projected_loss import ProjectedLoss, lowered, room_for_gradients

_SLICE = {"cpu": 2**23, "cuda": 2**27}  # logits per matrix product
_PIECE = {"cpu": 2**19, "cuda": 2**27}  # logits per element-wise operation


def _cut(n_rows: int, width: int, most: int) -> Iterator[slice]:
    step = max(1, most // width)
    return (slice(begin, begin + step) for begin in range(0, n_rows, step))


def _losses(logits: Tensor, target: Tensor, counted: Tensor | None, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the summed nats and their logit gradient: softmax(logits) - q, or 0 where a position is not counted."""
    vocab, right = logits.size(-1), target[:, None]
    likely = logits.softmax(-1)
    # log Z from the most likely token, whose probability is at least 1 / V and so has a logarithm
    log_z = logits.amax(-1) - likely.amax(-1).log()
    mean = (1 - smoothing) * logits.gather(1, right)[:, 0] + smoothing * logits.mean(-1)
    logits_grad = likely.sub_(smoothing / vocab)
    logits_grad.scatter_add_(1, right, torch.full_like(right, smoothing - 1, dtype=logits_grad.dtype))
    nats = log_z - mean
    if counted is not None:
        nats, logits_grad = nats * counted, logits_grad.mul_(counted[:, None])
    return nats.sum(), logits_grad


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
        device = hidden.device.type
        hidden_low, weight_low = lowered(hidden, weight)
        hidden_grad, weight_grad, bias_grad = room_for_gradients(ctx, hidden, weight, bias)
        nats = torch.zeros((), device=hidden.device)
        for part in _cut(len(hidden), len(weight), _SLICE[device]):
            logits = hidden_low[part] @ weight_low.t()
            for piece in _cut(len(logits), len(weight), _PIECE[device]):
                exact = logits[piece].float() if bias is None else logits[piece].float() + bias
                real = None if counted is None else counted[part][piece]
                loss, logits_grad = _losses(exact, target[part][piece], real, smoothing)
                nats += loss
                logits[piece] = logits_grad
                if bias_grad is not None:
                    bias_grad += logits_grad.sum(0)
            if hidden_grad is not None and weight_grad is not None:
                hidden_grad[part] = logits @ weight_low
                weight_grad += logits.t() @ hidden_low[part]
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        return nats


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
    nats: Tensor = _ProjectedCrossEntropy.apply(hidden, weight, bias, target, smoothing, counted)
    return nats
