"""What a Transformer-XL minimises (Dai et al. 2019, 3.2): the loss of the next token, given earlier segments."""

from collections.abc import Sequence
from typing import Any

import torch

from models.transformer_xl import Memory, TransformerXL
from utils.dataset.stream import SegmentBatch
from utils.training.objective import Loss, token_loss


class RecurrentObjective:
    """Cross-entropy of the next token, padding not counted; each batch passes its memory to the one that continues it.

    Args:
        memory_length: positions that a network in eval mode remembers; None: as many as in training.
    """

    def __init__(self, memory_length: int | None = None) -> None:
        self.memory_length = memory_length

    def __call__(self, net: TransformerXL, batch: SegmentBatch, memory: Sequence[Any] | None = None) -> Loss:
        """Return the summed loss in nats, the number of tokens, and the memory.

        Args:
            net: the network.
            batch: the segments.
            memory: of the batch before, as returned or as read from a checkpoint; None: there was none.
        """
        before = net.start(len(batch.ids), batch.ids.device) if memory is None else Memory(*memory)
        kept = None if net.training else self.memory_length
        hidden, after = net(batch.ids, before, batch.document, memory_length=kept)
        # a non-finite value skips an update, and must not spoil the next ones through the memory
        sound = tuple(torch.where(layer.isfinite(), layer, 0.0) for layer in after.hidden)
        return token_loss(hidden, net.output, batch.target)._replace(memory=after._replace(hidden=sound))
