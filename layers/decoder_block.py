"""The right half of Figure 1, Vaswani et al. 2017: self-attention, attention to the source, feed-forward."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from config.model import Norm
from layers.feed_forward import FeedForward
from layers.multi_head_attention import KeyValue, MultiHeadAttention
from layers.residual import Residual


class DecoderBlock(nn.Module):
    """One of the N layers of a decoder; `dropout` and what follows are as for `Residual`."""

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        d_model: int,
        dropout: float = 0.0,
        norm_first: bool = True,
        norm_eps: float = 1e-5,
        norm: Norm = "layer",
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.around_self = Residual(d_model, dropout, norm_first, norm_eps, norm)
        self.around_cross = Residual(d_model, dropout, norm_first, norm_eps, norm)
        self.around_feed = Residual(d_model, dropout, norm_first, norm_eps, norm)

    def forward(
        self,
        x: Float[Tensor, "R T D"],
        source: KeyValue,
        mask: Bool[Tensor, "..."] | None = None,
        source_mask: Bool[Tensor, "..."] | None = None,
        past: KeyValue | None = None,
    ) -> tuple[Float[Tensor, "R T D"], KeyValue]:
        """Process T more target positions of R rows; return the output, and `past` with these positions appended.

        R is a multiple of the N sentences that `source` holds. The rows of a sentence (its beams) are adjacent, and
        attend to its source as queries side by side, so that the source is never repeated.
        """

        longer: KeyValue

        def attend_self(x: Tensor) -> Tensor:
            nonlocal longer
            longer = self.self_attention.project(x, past)
            return self.self_attention.attend(x, longer, mask)

        beams = source.key.size(0), -1, x.size(-1)
        x = self.around_self(x, attend_self)
        x = self.around_cross(
            x, lambda x: self.cross_attention.attend(x.reshape(beams), source, source_mask).view_as(x)
        )
        return self.around_feed(x, self.feed_forward), longer
