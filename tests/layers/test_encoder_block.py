"""EncoderBlock against `nn.TransformerEncoderLayer` with the same weights."""

import pytest
import torch
from torch import nn

from layers.dropout import Dropout
from layers.encoder_block import EncoderBlock
from layers.feed_forward import Activation, FeedForward
from layers.mask import causal_mask, padding_mask
from layers.multi_head_attention import MultiHeadAttention
from layers.scaled_dot_product_attention import attention_kernel
from tests.oracle import block_state

D, H, F = 8, 2, 12

IDS = torch.tensor([[4, 5, 6, 7, 8], [4, 5, 0, 0, 0]])


@pytest.mark.parametrize("norm_first", [True, False], ids=["norm first", "norm last"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])
@pytest.mark.parametrize("masked", [True, False], ids=["masked", "free"])
@pytest.mark.parametrize("eps", [1e-5, 0.1], ids=["usual epsilon", "another"])
def test_it_is_torchs_own_forward_and_back(
    norm_first: bool, activation: Activation, fused: bool, masked: bool, eps: float
) -> None:
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(
        D, H, F, 0.0, activation, batch_first=True, norm_first=norm_first, layer_norm_eps=eps
    ).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    attention = MultiHeadAttention(D, H, attention_kernel(fused, 0.0))
    ours = EncoderBlock(attention, FeedForward(D, F, activation), D, norm_first=norm_first, norm_eps=eps).double()
    ours.load_state_dict(block_state(theirs, "self", "feed"))

    x = torch.randn(2, 5, D, dtype=torch.float64, requires_grad=True)
    mask = padding_mask(IDS, 0) & causal_mask(5, 5) if masked else None
    a = ours(x, mask)
    b = theirs(
        x,
        src_mask=~causal_mask(5, 5) if masked else None,
        src_key_padding_mask=IDS == 0 if masked else None,
    )
    torch.testing.assert_close(a, b)
    with torch.no_grad():  # another kernel, where fused
        torch.testing.assert_close(ours(x, mask), b)
    direction = torch.randn_like(a)
    (mine,), (other,) = (torch.autograd.grad((out * direction).sum(), x) for out in (a, b))
    torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("norm_first", [True, False], ids=["norm first", "norm last"])
def test_dropout_is_around_both_sublayers(norm_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(Dropout, "forward", lambda self, x: x * (self.p == 0))
    block = EncoderBlock(MultiHeadAttention(D, H), FeedForward(D, F), D, dropout=0.5, norm_first=norm_first)
    x = torch.randn(2, 5, D)
    expected = x if norm_first else nn.LayerNorm(D)(nn.LayerNorm(D)(x))
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("m_len", [0, 1, 3, 9])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])
def test_with_a_memory_it_is_torchs_layer_over_memory_and_segment(
    m_len: int, activation: Activation, fused: bool
) -> None:
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(D, H, F, 0.0, activation, batch_first=True, norm_first=False).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    attention = MultiHeadAttention(D, H, attention_kernel(fused, 0.0))
    ours = EncoderBlock(attention, FeedForward(D, F, activation), D, norm_first=False).double()
    ours.load_state_dict(block_state(theirs, "self", "feed"))

    together = torch.randn(2, m_len + 4, D, dtype=torch.float64, requires_grad=True)
    memory, x = together[:, :m_len], together[:, m_len:]
    mask = causal_mask(4, m_len + 4)
    a = ours(x, mask, memory)
    b = theirs(together, src_mask=~causal_mask(m_len + 4, m_len + 4))[:, m_len:]
    torch.testing.assert_close(a, b)
    with torch.no_grad():  # another kernel, where fused
        torch.testing.assert_close(ours(x, mask, memory), b)
    direction = torch.randn_like(a)
    (mine,), (other,) = (torch.autograd.grad((out * direction).sum(), together) for out in (a, b))
    torch.testing.assert_close(mine, other)
