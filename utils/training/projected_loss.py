"""Projection to the vocabulary and a loss in one, a slice of the positions at a time, with the gradient by hand.

The logits of a whole batch are by far the largest tensors of a training step: at 2,000 positions and 8,000 tokens,
64 MB each for logits, log-probabilities and gradients. Here they are computed a slice at a time, each with its gradient
at once, so that neither forward nor backward ever holds more. On a CPU a slice is large enough for matrix products at
full speed, while element-wise operations run on smaller pieces that stay in a core's own cache.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

_SLICE = {"cpu": 2**23, "cuda": 2**27}  # logits per matrix product
_PIECE = {"cpu": 2**19, "cuda": 2**27}  # logits per element-wise operation

# gives the summed nats of the positions in a slice, from their logits, and the gradient with respect to these
LogitLoss = Callable[[Float[Tensor, "P n V"], slice], tuple[Float[Tensor, ""], Float[Tensor, "P n V"]]]


class ProjectedLoss(torch.autograd.Function):
    """A loss of (hidden, weight, bias, and three arguments without gradient) whose `forward` saves all gradients."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the saved gradients, times the gradient of the loss."""
        scaled = (saved * grads[0] if saved is not None else None for saved in ctx.saved_tensors)
        return *scaled, None, None, None


def loss_with_gradients(
    ctx: Any,
    hidden: Float[Tensor, "P N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    loss_of: LogitLoss,
) -> Float[Tensor, ""]:
    """Return Σ loss_of(hidden Wᵀ + b) over all positions, and save its gradients in `ctx`, if any are needed.

    Matrix products run in the precision of the surrounding autocast, everything else in single precision or better.

    Args:
        ctx: of the `forward` of a `ProjectedLoss`.
        hidden: what is projected: N positions, each of which has been through the network P times.
        weight: of the output layer.
        bias: of the output layer.
        loss_of: the loss of some of the positions.
    """
    device, passes, vocab = hidden.device.type, len(hidden), len(weight)
    precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    summing = torch.promote_types(precision, torch.float32)
    hidden_low, weight_low = hidden.to(precision), weight.to(precision)
    needed = any(ctx.needs_input_grad)
    hidden_grad, weight_grad = torch.empty_like(hidden), torch.zeros_like(weight)
    bias_grad = None if bias is None else torch.zeros_like(bias)
    nats = torch.zeros((), device=hidden.device, dtype=summing)
    for part in _cut(hidden.size(1), passes * vocab, _SLICE[device]):
        rows = hidden_low[:, part].flatten(0, 1)
        logits = (rows @ weight_low.t()).unflatten(0, (passes, -1))
        for piece in _cut(logits.size(1), passes * vocab, _PIECE[device]):
            exact = logits[:, piece].to(summing)
            if bias is not None:
                exact += bias
            loss, logits_grad = loss_of(exact, slice(part.start + piece.start, part.start + piece.stop))
            nats += loss
            logits[:, piece] = logits_grad
            if bias_grad is not None:
                bias_grad += logits_grad.sum((0, 1))
        if needed:
            gradient = logits.flatten(0, 1)
            hidden_grad[:, part] = (gradient @ weight_low).unflatten(0, (passes, -1))
            weight_grad += gradient.t() @ rows
    if needed:
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
    return nats


def cross_entropy(
    logits: Float[Tensor, "P n V"], target: Int[Tensor, "P n 1"], smoothing: float
) -> tuple[Float[Tensor, "P n V"], Float[Tensor, "P n"]]:
    """Return p = softmax(logits), and H(q, p) in nats, where q is the target smoothed by ε = `smoothing`."""
    p = logits.softmax(-1)
    # log Z from the most likely token, whose probability is at least 1 / V and so has a logarithm
    log_z = logits.amax(-1) - p.amax(-1).log()
    return p, log_z - (1 - smoothing) * logits.gather(2, target)[..., 0] - smoothing * logits.mean(-1)


def subtract_target(
    p: Float[Tensor, "P n V"], target: Int[Tensor, "P n 1"], smoothing: float, share: float = 1
) -> Float[Tensor, "P n V"]:
    """Subtract q, the smoothed target, times `share`, in place."""
    p.sub_(share * smoothing / p.size(2))
    return p.scatter_add_(2, target, torch.full_like(target, share * (smoothing - 1), dtype=p.dtype))


def _cut(n_positions: int, width: int, most: int) -> Iterator[slice]:
    step = max(1, most // width)
    return (slice(begin, min(begin + step, n_positions)) for begin in range(0, n_positions, step))
