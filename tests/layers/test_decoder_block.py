"""DecoderBlock against `nn.TransformerDecoderLayer` with the same weights, and its cached step against itself."""

import pytest
import torch
from torch import Tensor, nn

from layers.decoder_block import DecoderBlock
from layers.dropout import Dropout
from layers.feed_forward import Activation, FeedForward
from layers.mask import causal_mask, padding_mask
from layers.multi_head_attention import MultiHeadAttention
from layers.scaled_dot_product_attention import attention_kernel
from tests.oracle import block_state

T, S, D, H, F = 4, 5, 8, 2, 12

SRC = torch.tensor([[4, 5, 6, 7, 8], [4, 5, 0, 0, 0]])
TGT = torch.tensor([[4, 5, 0, 0], [4, 5, 6, 7]])

norms = pytest.mark.parametrize("norm_first", [True, False], ids=["norm first", "norm last"])
kernels = pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])


def decoder_block(norm_first: bool, fused: bool, activation: Activation = "relu", dropout: float = 0.0) -> DecoderBlock:
    own, cross = (MultiHeadAttention(D, H, attention_kernel(fused, 0.0)) for _ in range(2))
    return DecoderBlock(own, cross, FeedForward(D, F, activation), D, dropout, norm_first).double()


@norms
@kernels
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("masked", [True, False], ids=["masked", "free"])
def test_it_is_torchs_own_forward_and_back(norm_first: bool, fused: bool, activation: Activation, masked: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.TransformerDecoderLayer(D, H, F, 0.0, activation, batch_first=True, norm_first=norm_first).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours = decoder_block(norm_first, fused, activation)
    ours.load_state_dict(block_state(theirs, "self", "cross", "feed"))

    x = torch.randn(2, T, D, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(2, S, D, dtype=torch.float64, requires_grad=True)
    asked: tuple[Tensor, Tensor, Tensor | None, Tensor | None]
    if masked:
        asked = x, memory, padding_mask(TGT, 0) & causal_mask(T, T), padding_mask(SRC, 0)
        b = theirs(
            x,
            memory,
            tgt_mask=~causal_mask(T, T),
            tgt_key_padding_mask=TGT == 0,
            memory_key_padding_mask=SRC == 0,
        )
    else:
        asked = x, memory, None, None
        b = theirs(x, memory)
    a = ours(*asked)
    torch.testing.assert_close(a, b)
    with torch.no_grad():  # another kernel, where fused
        torch.testing.assert_close(ours(*asked), b)
    direction = torch.randn_like(a)
    mine, other = (torch.autograd.grad((out * direction).sum(), (x, memory)) for out in (a, b))
    for gradient, expected in zip(mine, other, strict=True):
        torch.testing.assert_close(gradient, expected)


@norms
@kernels
@pytest.mark.parametrize("beams", [1, 5])  # few rows and many: where fused, by the kernel and by the formula
@torch.no_grad()
def test_a_cached_step_is_the_whole_at_every_position_and_beam(norm_first: bool, fused: bool, beams: int) -> None:
    torch.manual_seed(0)
    block = decoder_block(norm_first, fused)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)  # no two norms alike
    x = torch.randn(2 * beams, T, D, dtype=torch.float64)  # the beams of a sentence are adjacent
    memory = torch.randn(2, S, D, dtype=torch.float64)
    source_mask = padding_mask(SRC, 0)
    whole = block(x, memory.repeat_interleave(beams, 0), causal_mask(T, T), source_mask.repeat_interleave(beams, 0))
    source = block.cross_attention.project(memory)
    past = block.self_attention.project(x[:, :0])
    for t in range(T):
        out, longer = block.step(x[:, t : t + 1], past, source, source_mask)
        torch.testing.assert_close(out, whole[:, t : t + 1])
        assert past.key.size(2) == t  # a step does not change the state that it is given
        past = longer


@norms
def test_dropout_is_around_all_three_sublayers(norm_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(Dropout, "forward", lambda self, x: x * (self.p == 0))
    block = decoder_block(norm_first, fused=True, dropout=0.5)
    x, memory = torch.randn(2, T, D, dtype=torch.float64), torch.randn(2, S, D, dtype=torch.float64)
    norm = nn.LayerNorm(D).double()
    torch.testing.assert_close(block(x, memory), x if norm_first else norm(norm(norm(x))))
