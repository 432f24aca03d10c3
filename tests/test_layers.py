"""Every other layer against its formula or torch's own: embeddings, positions, dropout, feed-forward, blocks."""

import math
from collections.abc import Callable
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from config.model import Activation, FeedForwardActivation, Norm
from layers.decoder_block import DecoderBlock
from layers.dropout import Dropout
from layers.encoder_block import EncoderBlock
from layers.feed_forward import ACTIVATION, FeedForward
from layers.mask import causal_mask, padding_mask
from layers.multi_head_attention import MultiHeadAttention
from layers.positional_encoding import LearnedPositionalEncoding, SinusoidalPositionalEncoding, sinusoid
from layers.residual import Residual
from layers.scaled_dot_product_attention import attention_kernel
from layers.token_embedding import TokenEmbedding
from tests.tiny import assert_twin, block_state, drawn


@pytest.mark.parametrize("d_model", [1, 7, 16])
def test_a_token_is_its_row_times_the_root_of_the_width(d_model: int) -> None:
    embedding, ids = TokenEmbedding(5, d_model), torch.tensor([[4, 0, 4], [1, 2, 3]])
    out = embedding(ids)
    for (b, t), token in zip([(b, t) for b in range(2) for t in range(3)], ids.flatten().tolist(), strict=True):
        torch.testing.assert_close(out[b, t], embedding.weight[token] * d_model**0.5)


both_encodings = pytest.mark.parametrize("encoding_type", [SinusoidalPositionalEncoding, LearnedPositionalEncoding])


def by_hand(position: int, component: int, d_model: int) -> float:
    angle = position / 10000 ** ((component - component % 2) / d_model)
    return math.cos(angle) if component % 2 else math.sin(angle)


@pytest.mark.parametrize("d_model", [1, 2, 5, 8, 15])
@pytest.mark.parametrize("position", [0, 1, 7, 4999])
def test_the_table_is_the_papers(d_model: int, position: int) -> None:
    row = sinusoid(position + 1, d_model)[position]
    expected = torch.tensor([by_hand(position, component, d_model) for component in range(d_model)])
    torch.testing.assert_close(row, expected, atol=1e-6, rtol=0)


@settings(max_examples=40)
@given(d_model=st.integers(1, 9), max_length=st.integers(1, 8), start=st.integers(0, 12), length=st.integers(1, 12))
def test_behind_the_end_of_the_table_the_same_table_goes_on(
    d_model: int, max_length: int, start: int, length: int
) -> None:
    nothing = torch.zeros(2, length, d_model)
    added = SinusoidalPositionalEncoding(d_model, max_length)(nothing, start)
    assert added.equal(sinusoid(start + length, d_model)[start:].expand(2, -1, -1))


@both_encodings
@pytest.mark.parametrize("start", [0, 1, 4, 6])
def test_a_later_start_is_a_slice_of_the_whole(encoding_type: type[nn.Module], start: int) -> None:
    encoding, x = encoding_type(6, 7), torch.randn(2, 7, 6)
    whole = encoding(x)
    assert encoding(x[:, start:], start=start).equal(whole[:, start:])
    assert not whole[:, start:].equal(x[:, start:])


@pytest.mark.parametrize("length", [4, 5], ids=["within", "beyond"])
def test_a_half_precision_model_stays_in_half_precision(length: int) -> None:
    encoding = SinusoidalPositionalEncoding(6, 4).bfloat16()
    added = encoding(torch.zeros(1, length, 6, dtype=torch.bfloat16))
    assert added.dtype == torch.bfloat16
    torch.testing.assert_close(added[0].float(), sinusoid(length, 6), atol=4e-3, rtol=0)


@both_encodings
def test_dropout_takes_the_sum(encoding_type: type[nn.Module]) -> None:
    encoding, x = encoding_type(6, 7, dropout=0.5), torch.randn(2, 7, 6)
    dropped, kept = encoding(x), encoding.eval()(x)
    torch.testing.assert_close(dropped, torch.where(dropped == 0, 0, 2 * kept))
    assert 20 < dropped.count_nonzero() < 64


def test_the_sinusoid_is_not_part_of_a_checkpoint() -> None:
    short, long = SinusoidalPositionalEncoding(6, 3), SinusoidalPositionalEncoding(6, 9)
    assert not list(short.parameters())
    long.load_state_dict(short.state_dict())
    assert long.table.equal(sinusoid(9, 6))


def test_learned_rows_are_added_and_each_is_trained_the_first_too() -> None:
    encoding, x = LearnedPositionalEncoding(6, 5), torch.randn(2, 4, 6)
    before = encoding.table.weight.detach().clone()
    assert encoding(x).equal(x + before[:4])
    encoding(x).sum().backward()
    torch.optim.SGD(encoding.parameters(), lr=0.5).step()
    moved = encoding.table.weight.detach() - before
    torch.testing.assert_close(moved[:4], torch.full((4, 6), -1.0))  # a gradient of 1 from each of two sentences
    assert moved[4].count_nonzero() == 0


@pytest.mark.parametrize(("start", "length"), [(0, 6), (5, 1), (3, 3)])
def test_a_learned_table_that_is_too_short_says_so(start: int, length: int) -> None:
    with pytest.raises(ValueError, match=r"6 positions .* table of 5"):
        LearnedPositionalEncoding(4, 5)(torch.zeros(1, length, 4), start=start)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_p_of_the_components_are_dropped_and_the_others_grow(p: float, dtype: torch.dtype) -> None:
    dropout = Dropout(p)
    assert dropout.byte_p == pytest.approx(p, abs=1 / 512)
    p = dropout.byte_p
    out = dropout(torch.full((10_000, 16), 3.0, dtype=dtype))
    kept = out[out != 0]
    assert out.dtype == dtype
    torch.testing.assert_close(
        kept, torch.full_like(kept, 3 / (1 - p)), rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=0
    )
    assert 1 - kept.numel() / out.numel() == pytest.approx(p, abs=4 * (p * (1 - p) / out.numel()) ** 0.5)


@pytest.mark.parametrize("apart", [1, 2, 3, 4, 8])
def test_what_is_dropped_says_nothing_about_its_neighbours(apart: int) -> None:
    kept = Dropout(0.3)(torch.ones(10_000, 16)).flatten() != 0
    both = (kept[apart:] & kept[:-apart]).double().mean().item()
    assert both == pytest.approx(0.7**2, abs=0.005)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 0, 3), (5, 1, 7)])
def test_every_number_of_components_will_do_and_what_is_dropped_has_no_gradient(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, requires_grad=True)
    out = Dropout(0.5)(x)
    assert out.shape == shape
    assert ((out == 0) | (out == 2)).all()
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert gradient.equal((out != 0) * 2.0)


def test_each_call_drops_anew_a_seed_brings_it_back_and_nothing_happens_after_training_or_without_a_rate() -> None:
    dropout, x = Dropout(0.5), torch.randn(16, 8).T  # not contiguous
    first, second = dropout(x), dropout(x)
    torch.manual_seed(0)
    x = torch.randn(16, 8).T
    assert not first.equal(second)
    assert dropout(x).equal(first)
    assert dropout.eval()(x).equal(x)
    assert Dropout(0.0)(x).equal(x)


@pytest.mark.parametrize("p", [-0.1, 1e-3, 1 - 1e-3, 1.0, 1.5, float("nan")])
def test_what_eight_bits_cannot_say_or_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=f"dropout={p}: give 0, or a probability from 0.002 to 0.998"):
        Dropout(p)
    assert 0 < Dropout(0.002).byte_p < Dropout(0.998).byte_p < 1


def test_nothing_happens_after_training_or_without_a_rate() -> None:
    x = torch.randn(8, 16)
    assert Dropout(0.5).eval()(x).equal(x)
    assert Dropout(0.0)(x).equal(x)


BY_HAND: dict[Activation, Callable[[float], float]] = {
    "relu": lambda x: max(0.0, x),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "mish": lambda x: x * math.tanh(math.log(1 + math.exp(x))),
    "swish": lambda x: x / (1 + math.exp(-x)),
}


@pytest.mark.parametrize("name", [*ACTIVATION, "swiglu"])
def test_each_position_goes_alone_through_both_layers(name: FeedForwardActivation) -> None:
    feed, x = FeedForward(3, 8, name).double(), 5 * torch.randn(2, 4, 3, dtype=torch.float64)
    w1, b1, w2, b2 = (parameter.tolist() for parameter in feed.parameters())
    assert [len(w1), len(w2[0])] == ([16, 8] if name == "swiglu" else [8, 8])  # of d_ff=8, two thirds are about 8
    out = feed(x)
    for b, t in torch.cartesian_prod(torch.arange(2), torch.arange(4)).tolist():
        wide = [sum(x[b, t, i].item() * row[i] for i in range(3)) + bias for row, bias in zip(w1, b1, strict=True)]
        if name == "swiglu":  # the gate in front of what it lets through
            inner = [BY_HAND["swish"](gate) * value for gate, value in zip(wide[:8], wide[8:], strict=True)]
        else:
            inner = [BY_HAND[name](number) for number in wide]
        outer = [sum(w * number for w, number in zip(row, inner, strict=True)) + b2[i] for i, row in enumerate(w2)]
        torch.testing.assert_close(out[b, t], torch.tensor(outer, dtype=torch.float64))


def test_a_gate_costs_no_weights() -> None:
    plain, gated = (sum(p.numel() for p in FeedForward(128, 512, name).parameters()) for name in ("relu", "swiglu"))
    assert gated == pytest.approx(plain, rel=0.02)
    for matrix in FeedForward(128, 512, "swiglu").widen.weight.chunk(2):
        assert matrix.shape == (344, 128)


def test_dropout_stands_between_the_activation_and_the_second_layer() -> None:
    feed, x = FeedForward(4, 4, "gelu", dropout=0.5), torch.randn(2, 8, 4)
    torch.nn.init.eye_(feed.narrow.weight)
    torch.nn.init.ones_(feed.narrow.bias)
    dropped, kept = feed(x) - 1, feed.eval()(x) - 1
    torch.testing.assert_close(dropped, torch.where(dropped == 0, 0, 2 * kept))
    assert 16 < dropped.count_nonzero() < 48


NORMS: dict[Norm, Callable[[Tensor], Tensor]] = {
    "layer": lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt(),
    "rms": lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt(),
}


@pytest.mark.parametrize("dropout", [0.0, 0.5], ids=["none dropped", "all dropped"])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("name", NORMS)
def test_it_is_its_formula_with_and_without_what_is_dropped(
    name: Norm, norm_first: bool, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dropout, "forward", lambda self, x: x * (self.p == 0))
    kept, norm, x = 0 if dropout else 1, NORMS[name], torch.randn(2, 3, 8, dtype=torch.float64)
    expected = x + kept * norm(x).cos() if norm_first else norm(x + kept * x.cos())
    torch.testing.assert_close(Residual(8, dropout, norm_first, norm=name).double()(x, torch.cos), expected)


T, S, D, H, F = 4, 5, 8, 2, 12

SRC = torch.tensor([[4, 5, 6, 7, 8], [4, 5, 0, 0, 0]])


def encoder_blocks(
    norm_first: bool, activation: Activation, fused: bool, eps: float = 1e-5
) -> tuple[EncoderBlock, nn.TransformerEncoderLayer]:
    """Ours and torch's with the same weights, in float64."""
    theirs = drawn(nn.TransformerEncoderLayer(D, H, F, 0.0, activation, eps, True, norm_first).double())
    attention = MultiHeadAttention(D, H, attention_kernel(fused, 0.0))
    ours = EncoderBlock(attention, FeedForward(D, F, activation), D, norm_first=norm_first, norm_eps=eps).double()
    ours.load_state_dict(block_state(theirs, "self", "feed"))
    return ours, theirs


@pytest.mark.parametrize("norm_first", [True, False], ids=["norm first", "norm last"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])
@pytest.mark.parametrize("masked", [True, False], ids=["masked", "free"])
@pytest.mark.parametrize("eps", [1e-5, 0.1], ids=["usual epsilon", "another"])
def test_an_encoder_block_is_torchs_own_forward_and_back(
    norm_first: bool, activation: Activation, fused: bool, masked: bool, eps: float
) -> None:
    ours, theirs = encoder_blocks(norm_first, activation, fused, eps)
    x = torch.randn(2, 5, D, dtype=torch.float64, requires_grad=True)
    mask = padding_mask(SRC, 0) & causal_mask(5, 5) if masked else None
    masks_of_torch = {"src_mask": ~causal_mask(5, 5), "src_key_padding_mask": SRC == 0} if masked else {}
    assert_twin(lambda: ours(x, mask), theirs(x, **masks_of_torch), x)


TGT = torch.tensor([[4, 5, 0, 0], [4, 5, 6, 7]])

norms = pytest.mark.parametrize("norm_first", [True, False], ids=["norm first", "norm last"])
kernels = pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])


def decoder_block(
    norm_first: bool, fused: bool, activation: Activation = "relu", dropout: float = 0.0, eps: float = 1e-5
) -> DecoderBlock:
    own, cross = (MultiHeadAttention(D, H, attention_kernel(fused, 0.0)) for _ in range(2))
    return DecoderBlock(own, cross, FeedForward(D, F, activation), D, dropout, norm_first, eps).double()


@norms
@kernels
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("masked", [True, False], ids=["masked", "free"])
def test_a_decoder_block_is_torchs_own_forward_and_back(
    norm_first: bool, fused: bool, activation: Activation, masked: bool
) -> None:
    eps = 0.1 if masked else 1e-5
    theirs = drawn(nn.TransformerDecoderLayer(D, H, F, 0.0, activation, eps, True, norm_first).double())
    ours = decoder_block(norm_first, fused, activation, eps=eps)
    ours.load_state_dict(block_state(theirs, "self", "cross", "feed"))

    x = torch.randn(2, T, D, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(2, S, D, dtype=torch.float64, requires_grad=True)
    masks = (padding_mask(TGT, 0) & causal_mask(T, T), padding_mask(SRC, 0)) if masked else (None, None)
    padding = {"tgt_key_padding_mask": TGT == 0, "memory_key_padding_mask": SRC == 0}
    masks_of_torch = padding | {"tgt_mask": ~causal_mask(T, T)} if masked else {}
    own, cross = masks

    def decoded() -> Tensor:
        return cast(Tensor, ours(x, ours.cross_attention.project(memory), own, cross)[0])

    assert_twin(decoded, theirs(x, memory, **masks_of_torch), x, memory)
