"""What training minimises, as sums over tokens: means would depend on how the tokens were batched."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from const.token import PAD_ID
from layers.mask import padding_mask
from models.transformer import Transformer
from utils.dataset.batch import Batch

# from a network and a batch to the summed loss in nats, differentiable, and the number of tokens it was summed over
Objective = Callable[[Any, Batch], tuple[Tensor, Tensor]]


def label_smoothed_nats(logits: Float[Tensor, "N V"], target: Int[Tensor, " N"], smoothing: float) -> Float[Tensor, ""]:
    """Σ H(q, softmax(logits)) with q = (1 - ε) one-hot(target) + ε / V, Szegedy et al. 2016, sec. 7.

    In single precision, whatever the logits come in.
    """
    return F.cross_entropy(logits.float(), target, reduction="sum", label_smoothing=smoothing)


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
        logits = net.project(hidden[real])
        nats = label_smoothed_nats(logits, target[real], self.smoothing if net.training else 0.0)
        return nats, real.sum()
