"""A layer of Transformer-XL, Dai et al. 2019, 3.2: its keys are the memory and the current segment."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from layers.feed_forward import FeedForward
from layers.multi_head_attention import MultiHeadAttention
from layers.residual import Residual


class RecurrentBlock(nn.Module):
    """One of the N layers; the norm comes last, as in the paper.

    Args:
        self_attention: each position attends to the memory and to the segment.
        feed_forward: applied to each position separately.
        d_model: width.
        dropout: probability of dropping a component of a sub-layer's output.
    """

    def __init__(
        self, self_attention: MultiHeadAttention, feed_forward: FeedForward, d_model: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.feed_forward = feed_forward
        self.around_self = Residual(d_model, dropout, norm_first=False)
        self.around_feed = Residual(d_model, dropout, norm_first=False)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B M D"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Process a segment x; memory is this layer's input at the positions before, and mask covers memory, then x."""
        x = self.around_self(x, lambda x: self.self_attention(x, torch.cat([memory, x], dim=1), mask))
        return self.around_feed(x, self.feed_forward)
