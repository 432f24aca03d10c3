"""What training minimises, as sums over tokens: means would depend on how the tokens were batched."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from const.token import PAD_ID
from layers.mask import padding_mask
from models.transformer import Transformer
from utils.dataset.batch import Batch
from utils.training.projected_cross_entropy import projected_cross_entropy
from utils.training.projected_r_drop import projected_r_drop


class Loss(NamedTuple):
    """What a batch costs."""

    nats: Tensor  # summed; differentiable
    tokens: Tensor  # that they are summed over
    memory: Any = None  # what the batch that goes on where this one ends must know: tensors without gradient


# of a network, a batch, and the memory of the batch that this one goes on from
Objective = Callable[[Any, Any, Any], Loss]


def mean_loss(loss_of: Callable[[Any, Any], Loss], batches: Iterable[Any]) -> float:
    """Nats per target token over all batches, in their order: the same however they were cut.

    Args:
        loss_of: of a batch, and the memory of the one before.
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
    """Of the right tokens where there is one; where `target` is padding, nothing is projected to the vocabulary.

    Args:
        hidden: what is projected.
        output: the layer that does it.
        target: the right tokens, PAD_ID where there is none.
        smoothing: ε of label smoothing.
    """
    real = target != PAD_ID
    if target.device.type == "cpu":
        nats = projected_cross_entropy(hidden[real], output.weight, output.bias, target[real], smoothing)
    else:  # to choose positions, a GPU would have to tell their number first
        rows, right, counted = (x.flatten(0, 1) for x in (hidden, target, real))
        nats = projected_cross_entropy(rows, output.weight, output.bias, right, smoothing, counted)
    return Loss(nats, real.sum())


class TranslationObjective:
    """The next target token at every real target position; what is padding is never projected to the vocabulary.

    Args:
        smoothing: ε of label smoothing, while the network trains; the loss of a network in eval mode is plain.
    """

    def __init__(self, smoothing: float = 0.0) -> None:
        self.smoothing = smoothing

    def __call__(self, net: Transformer, batch: Batch, _memory: None = None) -> Loss:
        """The summed loss in nats, and the number of real target tokens."""
        hidden = net.decode(batch.tgt[:, :-1], net.encode(batch.src), padding_mask(batch.src, PAD_ID))
        return token_loss(hidden, net.output, batch.tgt[:, 1:], self.smoothing if net.training else 0.0)


class RDropObjective:
    """The same, of two passes that differ in what dropout left, and how far these are apart (Liang et al. 2021).

    Both passes are one of twice the rows, so that a batch takes twice the time and memory.

    Args:
        smoothing: ε of label smoothing.
        alpha: α, what it costs to disagree; the loss of a network in eval mode is plain.
    """

    def __init__(self, smoothing: float, alpha: float) -> None:
        self.smoothing = smoothing
        self.alpha = alpha

    def __call__(self, net: Transformer, batch: Batch, _memory: None = None) -> Loss:
        """The summed loss in nats, and the number of real target tokens, each counted once."""
        if not net.training:
            return TranslationObjective()(net, batch)
        src, tgt = batch.src.repeat(2, 1), batch.tgt.repeat(2, 1)
        hidden = net.decode(tgt[:, :-1], net.encode(src), padding_mask(src, PAD_ID)).unflatten(0, (2, -1))
        target = batch.tgt[:, 1:]
        real = target != PAD_ID
        nats = projected_r_drop(
            hidden[:, real], net.output.weight, net.output.bias, target[real], self.smoothing, self.alpha
        )
        return Loss(nats, real.sum())


def build_objective(label_smoothing: float = 0.0, r_drop: float = 0.0) -> Objective:
    """What the settings ask for.

    Args:
        label_smoothing: ε.
        r_drop: α; 0 makes a single pass.

    Raises:
        ValueError: a value out of range.
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing={label_smoothing}: give 0 (none) to 1, such as 0.1")
    if not 0 <= r_drop < math.inf:
        raise ValueError(f"r_drop={r_drop}: give 0 (a single pass) or more, such as 5")
    return RDropObjective(label_smoothing, r_drop) if r_drop else TranslationObjective(label_smoothing)
