"""A decoder block for inference: the same step in half as many operations, for the few rows of one sentence."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from layers.decoder_block import DecoderBlock
from layers.multi_head_attention import KeyValue, MultiHeadAttention
from layers.packed_linear import PackedLinear
from layers.residual import Residual


class PackedDecoderBlock(DecoderBlock):
    """A decoder block that computes the same with less overhead.

    A step of a single sentence is so little work that launching it takes longer than doing it. So query, key and
    value are one product here, and modules that do nothing outside training are not called.

    Args:
        block: a block with packed layers, which are taken over.
        query_key_value: its self-attention's three projections, W_Q above W_K above W_V, packed.
    """

    def __init__(self, block: DecoderBlock, query_key_value: PackedLinear) -> None:
        nn.Module.__init__(self)
        for name, layer in block.named_children():
            self.add_module(name, layer)
        self.query_key_value = query_key_value

    def step(
        self,
        x: Float[Tensor, "R 1 D"],
        past: KeyValue,
        source: KeyValue,
        source_mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "R 1 D"], KeyValue]:
        """Process one more target position, as `DecoderBlock.step` does."""
        attention, cross, feed_forward = self.self_attention, self.cross_attention, self.feed_forward
        n_rows, n_sentences = len(x), len(source.key)

        three = self.query_key_value(_enter(self.around_self, x)).view(n_rows, 1, 3, attention.n_heads, -1)
        query, key, value = three.permute(2, 0, 3, 1, 4).unbind(0)
        if attention.rotary is not None:
            start = past.key.size(2)
            query, key = attention.rotary(query, start), attention.rotary(key, start)
        past = past.append(KeyValue(key, value))
        x = _leave(self.around_self, x, attention.mix(query, past))

        beams = cross.query(_enter(self.around_cross, x)).view(n_sentences, -1, cross.n_heads, source.key.size(-1))
        x = _leave(self.around_cross, x, cross.mix(beams.transpose(1, 2), source, source_mask).view_as(x))

        bent = feed_forward.activation(feed_forward.widen(_enter(self.around_feed, x)))
        return _leave(self.around_feed, x, feed_forward.narrow(bent)), past


def packed_block(block: DecoderBlock, original: MultiHeadAttention, dtype: torch.dtype) -> PackedDecoderBlock:
    """Pack a block whose layers are already packed.

    Args:
        block: the block, not to be used afterwards.
        original: its self-attention before it was packed.
        dtype: precision of the matrix products.
    """
    projections = (original.query, original.key_value)
    joint = nn.Linear(original.query.in_features, sum(linear.out_features for linear in projections), device="meta")
    joint.weight = nn.Parameter(torch.cat([linear.weight.detach() for linear in projections]))
    joint.bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in projections]))
    return PackedDecoderBlock(block, PackedLinear(joint, dtype))


def _enter(around: Residual, x: Tensor) -> Tensor:
    return _norm(around, x) if around.norm_first else x


def _leave(around: Residual, x: Tensor, y: Tensor) -> Tensor:
    return x + y if around.norm_first else _norm(around, x + y)


def _norm(around: Residual, x: Tensor) -> Tensor:
    norm = around.norm
    return torch.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
