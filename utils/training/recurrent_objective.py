"""What a Transformer-XL minimises, Dai et al. 2019, 3.2: the next token, knowing the segments before."""

from collections.abc import Sequence
from typing import Any

import torch

from models.transformer_xl import Memory, TransformerXL
from utils.dataset.stream import SegmentBatch
from utils.training.objective import Loss, token_loss


class RecurrentObjective:
    """The next token at every real position; the memory goes from a batch to the one that goes on with its streams.

    Args:
        memory_length: positions that a network in eval mode remembers; None: as many as in training.
    """

    def __init__(self, memory_length: int | None = None) -> None:
        self.memory_length = memory_length

    def __call__(self, net: TransformerXL, batch: SegmentBatch, memory: Sequence[Any] | None = None) -> Loss:
        """The summed loss in nats, the number of tokens, and what is remembered.

        Args:
            net: the network.
            batch: the segment.
            memory: of the one before, as it was returned or read from a checkpoint; None: nothing was before.
        """
        before = net.start(len(batch.ids), batch.ids.device) if memory is None else Memory(*memory)
        kept = None if net.training else self.memory_length
        hidden, after = net(batch.ids, before, batch.document, memory_length=kept)
        # what is not finite skips an update, and must not come back with the next ones
        sound = tuple(torch.where(layer.isfinite(), layer, 0.0) for layer in after.hidden)
        return token_loss(hidden, net.output, batch.target)._replace(memory=after._replace(hidden=sound))
