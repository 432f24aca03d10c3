"""The left half of Figure 1, Vaswani et al. 2017: self-attention, then feed-forward, both with residual connections."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from layers.feed_forward import FeedForward
from layers.multi_head_attention import MultiHeadAttention
from layers.residual import Residual


class EncoderBlock(nn.Module):
    """One of the N layers of an encoder.

    Args:
        self_attention: each position attends to all positions.
        feed_forward: applied to each position separately.
        d_model: width.
        dropout: probability of dropping a component of a sub-layer's output.
        norm_first: norm before each sub-layer (True) or after it (False).
        norm_eps: added to the variance before a norm divides by its square root.
    """

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        d_model: int,
        dropout: float = 0.0,
        norm_first: bool = True,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.feed_forward = feed_forward
        self.around_self = Residual(d_model, dropout, norm_first, norm_eps)
        self.around_feed = Residual(d_model, dropout, norm_first, norm_eps)

    def forward(self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "..."] | None = None) -> Float[Tensor, "B S D"]:
        """Process all source positions at once; mask as in `layers.mask`: True = may attend."""
        x = self.around_self(x, lambda x: self.self_attention(x, x, mask))
        return self.around_feed(x, self.feed_forward)
