"""A packed block takes the steps of the block that it was made of."""

from collections.abc import Callable
from itertools import product
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from layers.decoder_block import DecoderBlock
from layers.feed_forward import Activation, FeedForward
from layers.multi_head_attention import KeyValue, MultiHeadAttention
from layers.packed import PackedDecoderBlock, packed
from layers.relative_position_bias import RelativePositionBias
from layers.residual import Residual
from layers.scaled_dot_product_attention import attention_kernel

N, W, S, D, H, F = 2, 3, 5, 12, 3, 20


def lively_block(norm_first: bool, fused: bool, activation: Activation) -> DecoderBlock:
    torch.manual_seed(3)
    own, cross = (MultiHeadAttention(D, H, attention_kernel(fused, 0.1)) for _ in range(2))
    block = DecoderBlock(own, cross, FeedForward(D, F, activation, 0.1), D, 0.1, norm_first)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.4)
    return block


@pytest.mark.parametrize(("norm_first", "fused"), list(product([True, False], repeat=2)))
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@torch.no_grad()
def test_the_same_steps(norm_first: bool, fused: bool, activation: Activation) -> None:
    original = lively_block(norm_first, fused, activation)
    network = nn.Sequential(original)
    twin = packed(network, torch.float32)[0]
    assert isinstance(twin, PackedDecoderBlock)
    assert type(network[0]) is DecoderBlock
    original.eval()
    memory, mask = torch.randn(N, S, D), torch.tensor([[True] * S, [True, True, False, False, False]])[:, None, None]
    source = original.cross_attention.project(memory)
    past = twin_past = original.self_attention.project(torch.empty(N * W, 0, D))
    for _ in range(3):
        x = torch.randn(N * W, 1, D)
        expected, past = original.step(x, past, source, mask)
        found, twin_past = twin.step(x, twin_past, source, mask)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(twin_past, past, atol=1e-5, rtol=1e-5)


class HalfAttention(MultiHeadAttention):
    """Says half of what it has seen."""

    def attend(self, x: Tensor, kv: KeyValue, mask: Tensor | None = None) -> Tensor:
        return super().attend(x, kv, mask) / 2


class WideResidual(Residual):
    """Goes around twice as wide."""

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        return x + super().forward(x, f)


class Doubled(FeedForward):
    """Says everything twice as loudly."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Shifted(nn.LayerNorm):
    """Has another mean."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class TwiceFed(DecoderBlock):
    """Thinks again."""

    def step(
        self, x: Tensor, past: KeyValue, source: KeyValue, source_mask: Tensor | None = None
    ) -> tuple[Tensor, KeyValue]:
        x, past = super().step(x, past, source, source_mask)
        return self.around_feed(x, self.feed_forward), past


@pytest.mark.parametrize("kind", [HalfAttention, WideResidual, Doubled, Shifted, TwiceFed])
@torch.no_grad()
def test_another_kind_of_block_or_layer_takes_steps_of_its_own(kind: type[nn.Module]) -> None:
    original = lively_block(True, True, "relu").eval()
    around = original.around_cross
    for layer in (original, original.self_attention, original.feed_forward, around, around.norm):
        if issubclass(kind, type(layer)):
            layer.__class__ = kind
    twin = cast(DecoderBlock, packed(nn.Sequential(original), torch.float32)[0])
    x, source = torch.randn(1, 1, D), original.cross_attention.project(torch.randn(1, S, D))
    past = original.self_attention.project(x[:, :0])
    torch.testing.assert_close(twin.step(x, past, source), original.step(x, past, source), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_scores_have_their_bias() -> None:
    original = lively_block(True, True, "relu").eval()
    u, v = (nn.Parameter(torch.randn(H, D // H)) for _ in range(2))
    original.self_attention.score_bias = RelativePositionBias(D, H, u, v)
    twin = cast(DecoderBlock, packed(nn.Sequential(original), torch.float32)[0])
    x, source = torch.randn(1, 1, D), original.cross_attention.project(torch.randn(1, S, D))
    past = original.self_attention.project(torch.randn(1, 4, D))
    torch.testing.assert_close(twin.step(x, past, source), original.step(x, past, source), atol=1e-5, rtol=1e-5)


def test_a_block_by_itself_is_packed_without_its_step() -> None:
    assert type(packed(lively_block(True, True, "relu"), torch.float32)) is DecoderBlock


def test_its_weights_are_its_own() -> None:
    original = lively_block(True, True, "relu")
    twin = cast(DecoderBlock, packed(nn.Sequential(original), torch.float32)[0])
    x = torch.randn(1, 1, D)
    with torch.no_grad():
        source = original.cross_attention.project(torch.randn(1, S, D))
        past = original.self_attention.project(x[:, :0])
        before, _ = twin.step(x, past, source)
        for parameter in original.parameters():
            parameter.mul_(2)
        after, _ = twin.step(x, past, source)
    assert torch.equal(before, after)
