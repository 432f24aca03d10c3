"""What training minimises, as sums over tokens: means would depend on how the tokens were batched."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from const.token import PAD_ID
from models.transformer import Transformer
from utils.dataset.batch import Batch
from utils.training.projected_cross_entropy import projected_cross_entropy
from utils.training.projected_r_drop import projected_r_drop


class Loss(NamedTuple):
    """Loss of a batch."""

    nats: Tensor  # summed; differentiable
    tokens: Tensor  # number of tokens summed over
    memory: Any = None  # what is passed on to the batch that continues this one: tensors without gradient


# loss of a network, a batch, and the memory of the batch that this one continues
Objective = Callable[[Any, Any, Any], Loss]


def mean_loss(loss_of: Callable[[Any, Any], Loss], batches: Iterable[Any]) -> float:
    """Return the nats per target token over all batches, in order: the same however the text was batched.

    Args:
        loss_of: gives the loss of a batch, from the batch and the memory of the one before.
        batches: of a text.
    """
    nats, tokens, memory = torch.zeros(()), torch.zeros(()), None
    for batch in batches:
        loss = loss_of(batch, memory)
        nats, tokens, memory = nats + loss.nats, tokens + loss.tokens, loss.memory
    return (nats / tokens).item()


def token_loss(
    hidden: Float[Tensor, "B T D"], output: nn.Linear, target: Int[Tensor, "B T"], smoothing: float = 0.0
) -> Loss:
    """Return the loss of the correct tokens; where `target` is padding, nothing counts.

    Args:
        hidden: the decoder's (or encoder's) output, to be projected.
        output: the projection to the vocabulary.
        target: the correct tokens, PAD_ID where there is none.
        smoothing: ε of label smoothing.
    """
    real = target != PAD_ID
    if target.device.type == "cpu":
        nats = projected_cross_entropy(hidden[real], output.weight, output.bias, target[real], smoothing)
    else:  # selecting positions would make the CPU wait for the GPU to report their number
        rows, right, counted = (x.flatten(0, 1) for x in (hidden, target, real))
        nats = projected_cross_entropy(rows, output.weight, output.bias, right, smoothing, counted)
    return Loss(nats, real.sum())


class TranslationObjective:
    """Cross-entropy of the next target token at every position that is not padding.

    Args:
        smoothing: ε of label smoothing, in training mode only; the loss of a network in eval mode is not smoothed.
    """

    def __init__(self, smoothing: float = 0.0) -> None:
        self.smoothing = smoothing

    def __call__(self, net: Transformer, batch: Batch, _memory: None = None) -> Loss:
        """Return the summed loss in nats and the number of target tokens, padding not counted."""
        hidden = net.hidden(batch.src, batch.tgt[:, :-1])
        return token_loss(hidden, net.output, batch.tgt[:, 1:], self.smoothing if net.training else 0.0)


class RDropObjective:
    """Cross-entropy of two passes with different dropout, plus their divergence (R-Drop, Liang et al. 2021).

    Both passes run as one with twice the rows, so that a batch takes twice the time and memory.

    Args:
        smoothing: ε of label smoothing.
        alpha: α, weight of the divergence; the loss of a network in eval mode is plain cross-entropy.
    """

    def __init__(self, smoothing: float, alpha: float) -> None:
        self.smoothing = smoothing
        self.alpha = alpha

    def __call__(self, net: Transformer, batch: Batch, _memory: None = None) -> Loss:
        """Return the summed loss in nats and the number of target tokens, each counted once, padding not counted."""
        if not net.training:
            return TranslationObjective()(net, batch)
        src, tgt = batch.src.repeat(2, 1), batch.tgt.repeat(2, 1)
        hidden = net.hidden(src, tgt[:, :-1]).unflatten(0, (2, -1))
        target = batch.tgt[:, 1:]
        real = target != PAD_ID
        nats = projected_r_drop(
            hidden[:, real], net.output.weight, net.output.bias, target[real], self.smoothing, self.alpha
        )
        return Loss(nats, real.sum())


def build_objective(label_smoothing: float = 0.0, r_drop: float = 0.0) -> Objective:
    """Build the objective of a translator from its settings.

    Args:
        label_smoothing: ε of label smoothing.
        r_drop: α of R-Drop; 0: a single pass.

    Raises:
        ValueError: when a value is out of range.
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing={label_smoothing}: give at least 0 (none) and below 1, such as 0.1")
    if not 0 <= r_drop < math.inf:
        raise ValueError(f"r_drop={r_drop}: give 0 (a single pass) or more, such as 5")
    return RDropObjective(label_smoothing, r_drop) if r_drop else TranslationObjective(label_smoothing)
