"""What training minimises, as sums over tokens: means would depend on how the tokens were batched."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from const.token import PAD_ID
from layers.mask import padding_mask
from models.transformer import Transformer
from utils.dataset.batch import Batch
from utils.training.projected_cross_entropy import projected_cross_entropy

# from a network and a batch to the summed loss in nats, differentiable, and the number of tokens it was summed over
Objective = Callable[[Any, Batch], tuple[Tensor, Tensor]]


class TranslationObjective:
    """The next target token at every real target position; what is padding is never projected to the vocabulary.

    Args:
        smoothing: ε of label smoothing, while the network trains; the loss of a network in eval mode is plain.
    """

    def __init__(self, smoothing: float = 0.0) -> None:
        self.smoothing = smoothing

    def __call__(self, net: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
        """The summed loss in nats, and the number of real target tokens."""
        hidden = net.decode(batch.tgt[:, :-1], net.encode(batch.src), padding_mask(batch.src, PAD_ID))
        target = batch.tgt[:, 1:]
        real = target != PAD_ID
        smoothing = self.smoothing if net.training else 0.0
        nats = projected_cross_entropy(hidden[real], net.output.weight, net.output.bias, target[real], smoothing)
        return nats, real.sum()
