"""RecurrentBlock against the segment part of what torch's layer gives for memory and segment together."""

import pytest
import torch
from torch import nn

from layers.dropout import Dropout
from layers.feed_forward import Activation, FeedForward
from layers.mask import causal_mask
from layers.multi_head_attention import MultiHeadAttention
from layers.recurrent_block import RecurrentBlock
from layers.scaled_dot_product_attention import attention_kernel
from tests.oracle import block_state

B, T, D, H, F = 2, 4, 8, 2, 12


@pytest.mark.parametrize("m_len", [0, 1, 3, 9])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])
def test_it_is_torchs_layer_over_memory_and_segment(m_len: int, activation: Activation, fused: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(D, H, F, 0.0, activation, batch_first=True, norm_first=False).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    attention = MultiHeadAttention(D, H, attention_kernel(fused, 0.0))
    ours = RecurrentBlock(attention, FeedForward(D, F, activation), D).double()
    ours.load_state_dict(block_state(theirs, "self", "feed"))

    together = torch.randn(B, m_len + T, D, dtype=torch.float64, requires_grad=True)
    memory, x = together[:, :m_len], together[:, m_len:]
    mask = causal_mask(T, m_len + T)
    a = ours(x, memory, mask)
    b = theirs(together, src_mask=~causal_mask(m_len + T, m_len + T))[:, m_len:]
    torch.testing.assert_close(a, b)
    with torch.no_grad():  # another kernel, where fused
        torch.testing.assert_close(ours(x, memory, mask), b)
    direction = torch.randn_like(a)
    (mine,), (other,) = (torch.autograd.grad((out * direction).sum(), together) for out in (a, b))
    torch.testing.assert_close(mine, other)


def test_dropout_is_around_both_sublayers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(Dropout, "forward", lambda self, x: x * (self.p == 0))
    block = RecurrentBlock(MultiHeadAttention(D, H), FeedForward(D, F), D, dropout=0.5)
    x = torch.randn(B, T, D)
    torch.testing.assert_close(block(x, torch.randn(B, 3, D)), nn.LayerNorm(D)(nn.LayerNorm(D)(x)))
