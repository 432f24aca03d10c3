"""The left half of Figure 1, Vaswani et al. 2017: self-attention, then feed-forward, both with residual connections.

With a memory in front of its keys it is the layer of a Transformer-XL, Dai et al. 2019, 3.2.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from config.model import Norm
from layers.feed_forward import FeedForward
from layers.multi_head_attention import MultiHeadAttention
from layers.residual import Residual


class EncoderBlock(nn.Module):
    """One of the N layers of an encoder; `dropout` and what follows are as for `Residual`."""

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        d_model: int,
        dropout: float = 0.0,
        norm_first: bool = True,
        norm_eps: float = 1e-5,
        norm: Norm = "layer",
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.feed_forward = feed_forward
        self.around_self = Residual(d_model, dropout, norm_first, norm_eps, norm)
        self.around_feed = Residual(d_model, dropout, norm_first, norm_eps, norm)

    def forward(
        self,
        x: Float[Tensor, "B S D"],
        mask: Bool[Tensor, "..."] | None = None,
        memory: Float[Tensor, "B M D"] | None = None,
    ) -> Float[Tensor, "B S D"]:
        """Process all positions at once; mask as in `layers.mask`: True = may attend.

        The memory is this layer's input at the positions before x (norm last only: it is not normed), and the mask
        covers the memory, then x.
        """
        x = self.around_self(
            x, lambda x: self.self_attention(x, x if memory is None else torch.cat([memory, x], dim=1), mask)
        )
        return self.around_feed(x, self.feed_forward)
